"""Read a TOML file into forms: msgspec structs with one field per key. Each error message is one line.

The forms check structure and types, and `form_errors.py` describes what msgspec refuses. The line of a key is searched
only if an error needs it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from ddpsim import UsageError
from ddpsim.scenarios.files.form_errors import KeyPath, describe_error, key_name, shorten_value, value_at

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")


def read_toml_file(path: Path) -> TomlFile:
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
    def _line_by_key(self) -> Mapping[KeyPath, int]:
        return _lines_of_keys(self.text)


# --- the line of each key, which the parser does not report -----------------------------------------------------------

_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEYS})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*({_KEYS})\s*=")
_COMMENT_OR_STRING = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""", re.DOTALL
)


def _lines_of_keys(text: str) -> dict[KeyPath, int]:
    """Return the line of each key in a TOML text."""
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


def _split_key(text: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_PART, text))
