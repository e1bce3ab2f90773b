"""Rows of a table in one test: for cases that are alike and take milliseconds, as a test of its own does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def rows(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Any = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but one test runs all rows, also after one that fails, and names those that fail.

    The rows share the test's fixtures, so none may change what the next one sees.
    """
    arguments = (names,) if isinstance(names, str) else names
    table = [(value,) if isinstance(names, str) else value for value in values]
    assert table, "expected at least one row"
    assert not any(hasattr(value, "marks") for row in table for value in row), "a row has no marks: use parametrize"
    labels = list(map(str, ids)) if ids is not None and not callable(ids) else None

    def label(number: int) -> str:
        if labels is not None:
            return labels[number]
        return f"{number} ({', '.join(str(ids(value) if ids else repr(value)) for value in table[number])})"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(**fixtures: Any) -> None:
            failures: list[tuple[int, Exception]] = []
            for number, row in enumerate(table):
                try:
                    test(**fixtures, **dict(zip(arguments, row, strict=True)))
                except Exception as error:
                    failures.append((number, error))
            if failures:
                texts = [f"row {label(number)}: {type(error).__name__}: {error}" for number, error in failures]
                raise AssertionError(f"{len(failures)} of {len(table)} rows fail\n" + "\n".join(texts)) from failures[
                    0
                ][1]

        parameters = inspect.signature(test).parameters
        left = [parameter for name, parameter in parameters.items() if name not in arguments]
        assert len(left) + len(arguments) == len(parameters), f"expected arguments {arguments}"
        all_rows.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        return all_rows

    return decorate
