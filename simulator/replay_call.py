"""The call of `replay` that repeats a run, as text to paste."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddpsim.simulator.choices import Schedule

_LONGEST_LITERAL = 80
"""More characters of arguments than this would hide the rest of the replay line."""
_MOST_ITEMS = 40


def replay_call(program: Callable[..., Any], world_size: int, schedule: Schedule, options: dict[str, Any]) -> str:
    """The call that repeats a run, to paste into Python; `...` stands for a value that has no short literal."""
    arguments = [_named(program), str(world_size), f'"{schedule}"']
    arguments += [
        f"{option}={value if option == 'faults' else _literal(value)}"
        for option, value in options.items()
        if value and (option, value) != ("transport", "memory")
    ]
    return f"replay({', '.join(arguments)})"


def _named(program: Callable[..., Any]) -> str:
    if isinstance(command := getattr(program, "command", None), tuple):  # of a program that is no function
        return _literal(list(command))
    name = getattr(program, "__name__", "")
    return name if name.isidentifier() else "program"


def _literal(value: Any) -> str:
    """A short literal for the value, or `...`; looks at few items only, since arguments may be large."""
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value) if not isinstance(value, str) or len(value) <= _LONGEST_LITERAL else "..."
    elif type(value) in (tuple, list) and len(value) <= _MOST_ITEMS:
        items = [_literal(item) for item in value]
        text = "..." if "..." in items else f"[{', '.join(items)}]" if type(value) is list else _tuple_literal(items)
    else:
        text = "..."
    return text if len(text) <= _LONGEST_LITERAL else "..."


def _tuple_literal(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
