"""Faults on the command line: `crash:rank=1,before_call=3`, with the names that Python and TOML files use."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from typing import Any

from ddpsim import Crash, Delay, EarlyReturn, UsageError
from ddpsim.simulator.faults import Fault

_KINDS: dict[str, type[Any]] = {"crash": Crash, "delay": Delay, "early_return": EarlyReturn}
_EXPECTED = (
    "expected crash:rank=R,before_call=N, early_return:rank=R,before_call=N or "
    "delay:rank=R,before_call=N,seconds=S: calls of a rank count from 0"
)


def fault_of(text: str) -> Fault:
    """Return the fault that a text describes. Raises UsageError if it describes none."""
    kind_name, _, rest = text.partition(":")
    kind = _KINDS.get(kind_name)
    given = dict(word.partition("=")[::2] for word in rest.split(",")) if kind is not None else {}
    needed = {each.name for each in fields(kind) if each.default is MISSING} if kind is not None else set()
    known = {each.name for each in fields(kind)} if kind is not None else set()
    if kind is None or not needed <= set(given) <= known or len(given) != len(rest.split(",")):
        raise UsageError(f"fault is {text!r}, {_EXPECTED}")
    try:
        fault: Fault = kind(**{name: _value(name, value) for name, value in given.items()})
    except ValueError:
        raise UsageError(f"fault is {text!r}, {_EXPECTED}") from None
    return fault


def text_of(fault: Fault) -> str:
    """Return the text that `fault_of` reads as this fault."""
    kind = next(name for name, kind in _KINDS.items() if type(fault) is kind)
    defaults = {each.name: each.default for each in fields(fault)}
    said = {name: value for name, value in asdict(fault).items() if value != defaults[name]}
    return f"{kind}:" + ",".join(f"{name}={value}" for name, value in said.items())


def _value(name: str, text: str) -> int | float | str:
    return text if name == "message" else float(text) if name == "seconds" else int(text)
