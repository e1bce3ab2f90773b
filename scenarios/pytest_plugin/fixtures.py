"""Fixtures of marked tests: `rank`, `world_size`, and `per_rank`, which makes fixtures of a rank's own.

An ordinary fixture is made once per test, before the ranks start, and every rank gets the same value. One made with
`per_rank` is made on each rank, inside the simulation. pytest knows it under its name with what it asks for, so that
ordinary fixtures below it are made as always; but its function is called on the ranks only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from ddpsim.scenarios.pytest_plugin.marker import MARKER, MarkerError, Options

OPTIONS_KEY = pytest.StashKey[Options]()
"""What the marker of a test says, on its item."""

SEED = "ddpsim_seed"
"""The fixture that a test with `seeds=` is parametrized by."""


def per_rank(function: Callable[..., Any]) -> Any:
    """Make a fixture of the function below that each rank has of its own, made on that rank.

    It may ask for `rank`, for ordinary fixtures and for others made with `per_rank`. What stands behind a `yield` runs
    at the rank's end, however that comes.
    """

    @wraps(function)
    def made_elsewhere(*arguments: object, **named: object) -> None:
        raise AssertionError("refuse_outside comes first")

    made_elsewhere.made_on_each_rank = function  # type: ignore[attr-defined]
    return pytest.fixture(made_elsewhere)


@per_rank
def rank() -> int:
    """The number of the rank that runs the test."""
    import torch.distributed as dist

    return dist.get_rank()


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """How many ranks run the test."""
    options = request.node.stash.get(OPTIONS_KEY, None)
    if options is None:
        pytest.fail(f"fixture 'world_size' is for tests marked @pytest.mark.{MARKER}: mark the test", pytrace=False)
    return int(options.world_size)


@pytest.fixture
def ddpsim_seed(request: pytest.FixtureRequest) -> int:
    """The seed of a test with `seeds=`."""
    return int(request.param)


def refuse_outside(request: Any, definition: pytest.FixtureDef[Any]) -> None:
    """Called when pytest is about to make a fixture: fail if it is one that ranks make, by the name asked for."""
    if maker_of(definition) is None:
        return
    chain = [each._fixturedef for each in request._iter_chain()]
    asked = next(each for each, above in zip(chain, [*chain[1:], None], strict=True) if not _is_own(above))
    if asked is chain[-1] and OPTIONS_KEY in request._pyfuncitem.stash:
        raise MarkerError(
            f"fixture {asked.argname!r} is asked for by name while a rank runs, and is made before that, expected an "
            f"argument of the test: write {asked.argname} there, and use that"
        )
    pytest.fail(
        f"fixture {asked.argname!r} is made on each rank, expected a test marked @pytest.mark.{MARKER}, or a fixture "
        "made with @per_rank, to ask for it: mark the test, or use per_rank (from ddpsim.scenarios import per_rank) in "
        "the place of pytest.fixture",
        pytrace=False,
    )


def _is_own(definition: pytest.FixtureDef[Any] | None) -> bool:
    return definition is not None and maker_of(definition) is not None


# --- what is made on the ranks ----------------------------------------------------------------------------------------


def maker_of(definition: pytest.FixtureDef[Any]) -> Callable[..., Any] | None:
    """The function that `per_rank` was given; None for an ordinary fixture."""
    function: Callable[..., Any] | None = getattr(definition.func, "made_on_each_rank", None)
    return function


def definitions_of(item: pytest.Function) -> dict[str, pytest.FixtureDef[Any]]:
    """The fixtures that a test gets, by name."""
    return {name: found[-1] for name, found in item._fixtureinfo.name2fixturedefs.items() if found}


def names_on_ranks(item: pytest.Function) -> tuple[str, ...]:
    """The fixtures of a test that are made on each rank."""
    return tuple(name for name, definition in definitions_of(item).items() if maker_of(definition))


class RankFixtures:
    """The fixtures that one rank has of its own."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item
        self._definitions = definitions_of(item)
        self._values: dict[str, Any] = {}
        self._open: list[tuple[str, Iterator[Any]]] = []

    def value(self, name: str) -> Any:
        """The value of a fixture; one of the rank's own is made when it is first asked for."""
        __tracebackhide__ = True
        maker = maker_of(self._definitions[name]) if name in self._definitions else None
        if maker is None:
            return self._item.funcargs[name]
        if name not in self._values:
            definition = self._definitions[name]
            if inspect.ismethod(definition.func):
                maker = maker.__get__(self._item.instance)
            self._values[name] = self._make(name, maker, {each: self.value(each) for each in definition.argnames})
        return self._values[name]

    def _make(self, name: str, maker: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        if not inspect.isgeneratorfunction(maker):
            return maker(**arguments)
        made: Iterator[Any] = maker(**arguments)
        for value in made:
            self._open.append((name, made))
            return value
        raise MarkerError(f"fixture {name!r} did not yield, expected one yield")

    def close(self) -> list[BaseException]:
        """Run what stands behind the `yield` of the fixtures, the last one made first; what it raised."""
        __tracebackhide__ = True
        errors: list[BaseException] = []
        while self._open:
            name, made = self._open.pop()
            try:
                for _ in made:
                    raise MarkerError(f"fixture {name!r} yields twice, expected one yield")
            except BaseException as error:
                errors.append(error)
        return errors
