"""Read a TOML file into forms: msgspec structs with one field per key. Each error message is one line.

The forms check structure and types. msgspec reports where a value is invalid, and the expected value follows from the
types of the form. Where types do not say enough, a field has its own text, `Meta(extra={"expected": ...})`. The line of
a key is searched only if an error needs it.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from ddpsim import UsageError
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.training.training import LARGEST

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")


def read_toml_file(path: Path) -> "TomlFile":
    """Return the contents of a file, parsed as TOML. Raises UsageError if the file is not valid TOML."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}), expected a scenario: correct the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        location = re.search(r"\(at line (\d+).*\)", str(error))
        line = location[1] if location else max(1, len(text.splitlines()))  # the error is at the end of the document
        expected = "expected lines like `world_size = 4`: correct this one"
        raise UsageError(f"{path}:{line} is not TOML ({error}), {expected}") from error
    except (ValueError, RecursionError) as error:  # neither has a position
        reason = "a number has too many digits" if isinstance(error, ValueError) else "arrays are nested too deeply"
        raise UsageError(f"{path} cannot be read ({reason}), expected a scenario in TOML: correct it") from error


@dataclass(frozen=True)
class TomlFile:
    """The values of a TOML file and the lines of its keys. For a key in an inline table, it is the table's line."""

    path: Path
    text: str
    values: Mapping[str, Any]

    def read_form(self, form: type[_T], *path: str | int) -> _T:
        """Return the file, or its table at `path`, as a form. Raises UsageError if the contents do not fit the form."""
        try:
            return msgspec.convert(value_at(self.values, path), form)
        except msgspec.ValidationError as error:
            wrong, text = describe_error(error, form, self.values, path)
            raise UsageError(f"{self.location(*wrong)} {text}") from None

    def location(self, *path: str | int) -> str:
        """Return the file and line of a key, for the beginning of a message."""
        known = path
        while known and known not in self._line_by_key:
            known = known[:-1]
        return f"{self.path}:{self._line_by_key.get(known, 1)}:"

    def reject_value(self, *path: str | int, expected: str) -> NoReturn:
        """Raise UsageError for a key that has a wrong value."""
        self.reject_key(*path, says=f"is {shorten_value(value_at(self.values, path))}, expected {expected}")

    def reject_key(self, *path: str | int, says: str) -> NoReturn:
        """Raise UsageError for a key. The message has the file, the line, the key and the text `says`."""
        raise UsageError(f"{self.location(*path)} {key_name(path)} {says}")

    @cached_property
    def _line_by_key(self) -> "Mapping[KeyPath, int]":
        return _lines_of_keys(self.text)


# --- the line of each key, which the parser does not report -----------------------------------------------------------

_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEYS})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*({_KEYS})\s*=")
_COMMENT_OR_STRING = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""", re.DOTALL
)


def _lines_of_keys(text: str) -> "dict[KeyPath, int]":
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    # Of a multi-line string only the line ends are kept, because it has no keys.
    only_lines = _COMMENT_OR_STRING.sub(lambda found: "\n" * found[0].count("\n") or found[0], text)
    for number, line in enumerate(only_lines.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _split_key(header[2])
            if header[1] == "[[":
                index = counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, number)
                table = (*table, index)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_split_key(key[1])), number)
    return lines


def _split_key(text: str) -> "KeyPath":
    return tuple(part.strip("\"'") for part in re.findall(_PART, text))


# --- the message about an invalid value: its key, the value found, and the value expected -----------------------------

KeyPath = tuple["str | int", ...]
"""The path to a value: keys of tables, and indices of arrays."""
_LONGEST_TEXT = 80
"""The length up to which the text of a value is shown."""
_ARRAYS = (inspect.VarTupleType, inspect.ListType)
_WHERE = re.compile(r" - at `\$(.*)`$")
_NO_FIELD = re.compile(r"Object contains unknown field `(.*?)`")
_NOT_GIVEN = re.compile(r"Object missing required field `(.*?)`")
_KINDS: tuple[tuple[type, tuple[type, ...]], ...] = (
    (bool, (inspect.BoolType,)),
    (int, (inspect.IntType, inspect.FloatType)),
    (float, (inspect.FloatType,)),
    (str, (inspect.StrType, inspect.EnumType)),
    (list, _ARRAYS),
    (dict, (inspect.StructType, inspect.DictType)),
)
"""The types of a value with their names in messages. The first type that fits counts."""


def describe_error(error: msgspec.ValidationError, form: Any, values: Any, start: KeyPath = ()) -> tuple[KeyPath, str]:
    """Return the invalid value's path, and a sentence about it. `form` is the type of the part at `start`."""
    where = _WHERE.search(str(error))
    parts = re.findall(r"\.(\w+)|\[(\d+)\]", where[1] if where else "")
    below = tuple(int(number) if number else key for key, number in parts)
    path, kind = (*start, *below), _type_at(inspect.type_info(form), below, value_at(values, start))
    if unknown := _NO_FIELD.match(str(error)):
        table = _table_type(kind, value_at(values, path))
        known = sorted(filter(None, [*(field.encode_name for field in table.fields), table.tag_field]))
        path = (*path, unknown[1])
        return path, f"{key_name(path)} is not a known key, expected {_one_of_text(known, unknown[1])}"
    if missing := _NOT_GIVEN.match(str(error)):
        kind = _type_at(kind, (missing[1],), value_at(values, path))
        path = (*path, missing[1])
        return path, f"{key_name(path)} is missing, expected {_expected_text(kind, None, missing[1])}"
    if isinstance(path[-1], int) and not isinstance(kind, inspect.EnumType):  # an array is described as a whole
        path, below = path[:-1], below[:-1]
        kind = _type_at(inspect.type_info(form), below, value_at(values, start))
    value = value_at(values, path)
    return path, f"{key_name(path)} is {shorten_value(value)}, expected {_expected_text(kind, value, str(path[-1]))}"


def value_at(values: Any, path: KeyPath) -> Any:
    """Return the value at a path in the file; None if the file has no value there."""
    for part in path:
        values = values[part] if isinstance(part, int) else values.get(part)
    return values


def key_name(path: KeyPath) -> str:
    """Return the path of a key as users write it: `exception[1].ranks`."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def shorten_value(value: object) -> str:
    """Return the text of a value, or a short replacement if the text is too long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not format integers with thousands of digits
        return "a number too long to show"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


# --- the types of a form ----------------------------------------------------------------------------------------------


def _possible_types(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _possible_types(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _possible_types(each)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _type_at(kind: inspect.Type, path: KeyPath, value: Any) -> inspect.Type:
    for part in path:
        if isinstance(part, int):
            kind = next(each.item_type for each in _possible_types(kind) if isinstance(each, _ARRAYS))
        else:
            kind = _field_type(kind, part, value)
        value = value_at(value, (part,))
    return kind


def _field_type(kind: inspect.Type, key: str, value: Any) -> inspect.Type:
    """Return the type of a key in a table. For the key that selects the kind of table, return all allowed kinds."""
    tables = [each for each in _possible_types(kind) if isinstance(each, inspect.StructType)]
    if key == tables[0].tag_field:
        return inspect.LiteralType(tuple(str(each.tag) for each in tables))
    return next(field.type for field in _table_type(kind, value).fields if field.encode_name == key)


def _table_type(kind: inspect.Type, value: Any) -> inspect.StructType:
    """Return the form (a class) of a table. If several forms are possible, a key of the table selects one."""
    tables = [each for each in _possible_types(kind) if isinstance(each, inspect.StructType)]
    return next(table for table in tables if table.tag == value.get(table.tag_field))


# --- what is expected -------------------------------------------------------------------------------------------------


def _expected_text(kind: inspect.Type, value: object, key: str) -> str:
    if isinstance(kind, inspect.Metadata) and kind.extra:
        return str(kind.extra["expected"])
    possible = list(_possible_types(kind))
    similar = next((kinds for own, kinds in _KINDS if isinstance(value, own)), ())
    described = [each for each in possible if isinstance(each, similar)] or possible
    return " or ".join(dict.fromkeys(_type_text(each, value, key) for each in described))


def _type_text(kind: inspect.Type, value: object, key: str) -> str:
    if isinstance(kind, inspect.IntType):
        return f"a whole number {_range_text(kind)}"
    if isinstance(kind, inspect.FloatType):
        return "a number from 0 on" + ("" if kind.lt is None else f", below {kind.lt:g}")
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.EnumType):
        return _one_of_text([str(member.value) for member in kind.cls], value)
    if isinstance(kind, inspect.LiteralType):
        return _one_of_text(list(map(str, kind.values)), value)
    if isinstance(kind, _ARRAYS):
        return _array_text(kind.item_type, key)
    return "a string" if isinstance(kind, inspect.StrType) else "a table"


def _array_text(item: inspect.Type, key: str) -> str:
    if isinstance(item, inspect.IntType):
        return f"an array of whole numbers {_range_text(item)}"
    if isinstance(item, (inspect.StrType, inspect.EnumType)):
        return "an array of strings"
    return f"tables, each under [[{key}]]"


def _range_text(kind: inspect.IntType) -> str:
    return f"from {kind.ge} {'on' if kind.le == LARGEST else f'to {kind.le}'}"


def _one_of_text(names: Iterable[str], found: object) -> str:
    known = list(names)
    advice = suggest_nearest_name(str(found), known) if found is not None else ""
    return f"one of {', '.join(known)}" + (f": {advice}" if advice else "")
