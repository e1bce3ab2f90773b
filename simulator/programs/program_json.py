"""The JSON form of a program, versioned: one step a line, and only what is not the default.

{
  "format": "ddpsim program", "version": 1,
  "world_size": 2,
  "groups": [],
  "ranks": [
    [
      {"issue": "a", "operation": "all_reduce", "shapes": [[4]], "dtype": "float32", "reduction": "SUM"},
      {"wait": "a"},
      "return"
    ],
    ...
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import Crash, Group, Issue, Program, Return, Step, Wait

FORMAT = "ddpsim program"
VERSION = 1

_OPTIONAL = ("group", "shapes", "dtype", "reduction", "root", "splits", "peer", "tag")
_PLAIN: dict[str, Step] = {"return": Return(), "crash": Crash()}


def to_json(program: Program) -> str:
    """The text of a program; `from_json` reads it."""
    ranks = ",\n".join(_rank_text(steps) for steps in program.ranks)
    groups = ", ".join(json.dumps({"name": group.name, "ranks": group.ranks}) for group in program.groups)
    return (
        f'{{\n  "format": {json.dumps(FORMAT)}, "version": {VERSION},\n  "world_size": {program.world_size},\n'
        f'  "groups": [{groups}],\n  "ranks": [\n{ranks}\n  ]\n}}\n'
    )


def from_json(text: str) -> Program:
    """The program in a text. Raises UsageError, one line with where, if it is damaged or something else.

    What it reads may still be no program that ranks could run: see `validation.validate`.
    """
    try:
        value = json.loads(text)
    except ValueError as error:  # also a number of too many digits
        raise UsageError(f"no JSON: {error}; expected a {FORMAT}: give the file that was saved") from None
    except RecursionError:
        raise UsageError(f"JSON nested too deep, expected a {FORMAT}: give the file that was saved") from None
    return program_of(value)


def program_of(value: Any) -> Program:
    """The program in a value that JSON was read into. Raises UsageError as `from_json` does."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        _refuse("the file", f'no "format": "{FORMAT}"', f"a {FORMAT}")
    version = value.get("version")
    if type(version) is not int or version != VERSION:  # true and 1.0 are equal to 1
        _refuse("version", _shown(version), f"{VERSION}, which this ddpsim reads")
    _check_keys(value, ("format", "version", "world_size", "groups", "ranks"), "the file")
    return Program(
        _whole(value.get("world_size"), "world_size"),
        _all(value.get("groups"), "groups", _group),
        _all(value.get("ranks"), "ranks", lambda steps, where: _all(steps, where, _step)),
    )


# --- writing ----------------------------------------------------------------------------------------------------------


def _rank_text(steps: tuple[Step, ...]) -> str:
    if not steps:
        return "    []"
    return "    [\n" + ",\n".join(f"      {json.dumps(_value(step))}" for step in steps) + "\n    ]"


def _value(step: Step) -> Any:
    if isinstance(step, Wait):
        return {"wait": step.name}
    if isinstance(step, Issue):
        default = Issue("", "")
        options = {key: getattr(step, key) for key in _OPTIONAL if getattr(step, key) != getattr(default, key)}
        return {"issue": step.name, "operation": step.operation, **options}
    return next(word for word, plain in _PLAIN.items() if plain == step)


# --- reading ----------------------------------------------------------------------------------------------------------


def _group(value: Any, where: str) -> Group:
    entry = _entry(value, where, ("name", "ranks"))
    return Group(_text(entry.get("name"), f"{where}.name"), _wholes(entry.get("ranks"), f"{where}.ranks"))


def _step(value: Any, where: str) -> Step:
    if isinstance(value, str) and value in _PLAIN:
        return _PLAIN[value]
    if isinstance(value, dict) and "wait" in value:
        return Wait(_text(_entry(value, where, ("wait",))["wait"], f"{where}.wait"))
    if not isinstance(value, dict) or "issue" not in value:
        _refuse(where, _shown(value), '{"issue": ...}, {"wait": ...}, "return" or "crash"')
    entry = _entry(value, where, ("issue", "operation", *_OPTIONAL))
    options = {key: _READ[key](entry[key], f"{where}.{key}") for key in _OPTIONAL if key in entry}
    name, operation = _text(entry["issue"], f"{where}.issue"), _text(entry.get("operation"), f"{where}.operation")
    return Issue(name, operation, **options)


def _entry(value: Any, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, _shown(value), f"an object with {', '.join(keys)}")
    _check_keys(value, keys, where)
    return dict(value)


def _check_keys(value: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in value if key not in keys), None)
    if unknown is not None:
        _refuse(where, f"key {_shown(unknown)}", f"only {', '.join(keys)}")


def _all(value: Any, where: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _refuse(where, _shown(value), "a list")
    return tuple([read(each, f"{where}[{index}]") for index, each in enumerate(value)])


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, _shown(value), "a text")
    return value


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(where, _shown(value), "a whole number")
    return value


def _wholes(value: Any, where: str) -> tuple[int, ...]:
    return _all(value, where, _whole)


def _splits(value: Any, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides = _all(value, where, _wholes)
    if len(sides) != 2:
        _refuse(where, f"{len(sides)} lists", "two, of what is sent and what is received")
    return sides[0], sides[1]


_READ: dict[str, Callable[[Any, str], Any]] = {
    "group": _text,
    "shapes": lambda value, where: _all(value, where, _wholes),
    "dtype": _text,
    "reduction": _text,
    "root": _whole,
    "splits": _splits,
    "peer": _whole,
    "tag": _whole,
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(where: str, found: str, expected: str) -> NoReturn:
    raise UsageError(f"{where}: found {found}, expected {expected}: correct the file, or save the program again")
