"""The JSON form of a program, versioned: one step per line, without values that are the default.

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

import json
import re
from dataclasses import astuple
from typing import Any, NoReturn

import msgspec
from msgspec import structs

from ddpsim.simulator.calls import Shape, Splits
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import DEFAULT, CrashStep, Group, Issue, Program, Return, Step, Wait

FORMAT = "ddpsim program"
VERSION = 1


def _json_object_type(name: str, *fields: tuple[str, Any] | tuple[str, Any, Any]) -> type[msgspec.Struct]:
    """Return the type of a JSON object with these keys. Each key has a type, and a default if it is optional."""
    return msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True, omit_defaults=True)


_PROGRAM = _json_object_type(
    "Program", ("format", str), ("version", int), ("world_size", int), ("groups", list), ("ranks", list[list[Any]])
)
_GROUP = _json_object_type("Group", ("name", str), ("ranks", tuple[int, ...]))
_WAIT = _json_object_type("Wait", ("wait", str))
_ISSUE = _json_object_type(
    "Issue",
    ("issue", str),
    ("operation", str),
    ("group", str, DEFAULT),
    ("shapes", tuple[Shape, ...], ()),
    ("dtype", str, None),
    ("reduction", str, None),
    ("root", int, None),
    ("splits", Splits, None),
    ("peer", int, None),
    ("tag", int, 0),
    ("at", str, ""),
)
"""The keys of an issue in JSON, in the order of the fields of `Issue`."""
_PLAIN: dict[str, Step] = {"return": Return(), "crash": CrashStep()}


def to_json(program: Program) -> str:
    """Return a program as JSON text; `from_json` reads it."""
    ranks = ",\n".join(_rank_text(steps) for steps in program.ranks)
    groups = ", ".join(json.dumps({"name": group.name, "ranks": group.ranks}) for group in program.groups)
    return (
        f'{{\n  "format": {json.dumps(FORMAT)}, "version": {VERSION},\n  "world_size": {program.world_size},\n'
        f'  "groups": [{groups}],\n  "ranks": [\n{ranks}\n  ]\n}}\n'
    )


def _rank_text(steps: tuple[Step, ...]) -> str:
    if not steps:
        return "    []"
    return "    [\n" + ",\n".join(f"      {json.dumps(_step_value(step))}" for step in steps) + "\n    ]"


def _step_value(step: Step) -> Any:
    if isinstance(step, (Wait, Issue)):
        return msgspec.to_builtins((_WAIT if isinstance(step, Wait) else _ISSUE)(*astuple(step)))
    return next(word for word, plain in _PLAIN.items() if plain == step)


def from_json(text: str) -> Program:
    """Return the program in a JSON text. Raises UsageError, one line with the place, if the text is not a program.
    Ranks may still be unable to run the program: see `validate_program`."""
    try:
        value = json.loads(text)
    except ValueError as error:  # also a number of too many digits
        raise UsageError(f"no JSON: {error}; expected a {FORMAT}: give the file that was saved") from None
    except RecursionError:
        raise UsageError(f"JSON nested too deep, expected a {FORMAT}: give the file that was saved") from None
    return program_from_value(value)


def program_from_value(value: Any) -> Program:
    """Return the program in a parsed JSON value. Raises UsageError if the value is no program, as `from_json` does."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        _raise_usage_error("the file", f'no "format": "{FORMAT}"', f"a {FORMAT}")
    version = value.get("version")
    if type(version) is not int or version != VERSION:  # true and 1.0 are equal to 1
        _raise_usage_error("version", _shortened_repr(version), f"{VERSION}, which this ddpsim reads")
    _, _, world_size, groups, ranks = _read_object(value, _PROGRAM, "")
    return Program(
        world_size,
        tuple(Group(*_read_object(each, _GROUP, f"groups[{index}]")) for index, each in enumerate(groups)),
        tuple(
            tuple(_step_from_value(step, f"ranks[{rank}][{index}]") for index, step in enumerate(steps))
            for rank, steps in enumerate(ranks)
        ),
    )


def _step_from_value(value: Any, where: str) -> Step:
    if isinstance(value, str) and value in _PLAIN:
        return _PLAIN[value]
    if isinstance(value, dict) and "wait" in value:
        return Wait(*_read_object(value, _WAIT, where))
    if not isinstance(value, dict) or "issue" not in value:
        _raise_usage_error(where, _shortened_repr(value), '{"issue": ...}, {"wait": ...}, "return" or "crash"')
    return Issue(*_read_object(value, _ISSUE, where))


_EXPECTED = {"array": "a list", "str": "a text", "int": "a whole number"}
"""By a type's name in error messages of msgspec, our words for the type."""


def _read_object(value: Any, form: type[msgspec.Struct], where: str) -> tuple[Any, ...]:
    """Return the values of a JSON object in the order of its keys. Raises UsageError for the first wrong value."""
    try:
        return structs.astuple(msgspec.convert(value, form))
    except msgspec.ValidationError as error:
        text, _, path = str(error).rstrip("`").partition(" - at `$")
    keys = ", ".join(form.__struct_fields__)
    if not isinstance(value, dict):
        _raise_usage_error(where, _shortened_repr(value), f"an object with {keys}")
    if field := re.fullmatch(r"Object (\w+) \w+ field `(.*?)`?", text, re.DOTALL):
        if field[1] == "missing":
            return _read_object({**value, field[2]: None}, form, where)
        _raise_usage_error(where or "the file", f"key {_shortened_repr(field[2])}", f"only {keys}")
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[int(index) if index else key]
    where = f"{where}{path}".lstrip(".")
    if "of length 2" in text:
        _raise_usage_error(where, f"{len(value)} lists", "two, of what is sent and what is received")
    _raise_usage_error(where, _shortened_repr(value), _EXPECTED[text.split("`")[1]])


def _shortened_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _raise_usage_error(where: str, found: str, expected: str) -> NoReturn:
    raise UsageError(f"{where}: found {found}, expected {expected}: correct the file, or save the program again")
