"""Tables of a TOML file, read key by key; what is wrong is told with file, line, key, what was found and expected."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ddpsim import UsageError
from ddpsim.scenarios.names import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)

KeyPath = tuple["str | int", ...]
"""The way to a value: keys of tables, and numbers in arrays."""
LARGEST = 2**63 - 1
"""No whole number is larger: torch would not take it."""
_SHOWN = 80
"""So much of a value is shown."""


def open_toml(path: Path) -> Table:
    """The whole of a file. Raises UsageError if it is no TOML."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return Table(tomllib.loads(text), (), Source(path, text))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}), expected a scenario in TOML") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"\(at line (\d+).*\)", str(error))
        line = place[1] if place else max(1, len(text.splitlines()))  # else it says: at the end of the document
        raise UsageError(f"{path}:{line} is no TOML ({error}), expected lines like `world_size = 4`") from error
    except (ValueError, RecursionError) as error:  # neither says where
        problem = "a number has too many digits" if isinstance(error, ValueError) else "arrays are nested too deeply"
        raise UsageError(f"{path} cannot be read ({problem}), expected a scenario in TOML") from error


class Source:
    """Where in a file each key stands; what its parser does not tell.

    Keys inside an inline table count as standing where that begins.
    """

    _PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
    _KEYS = rf"{_PART}(?:\s*\.\s*{_PART})*"
    _HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEYS})\s*\]\]?\s*(?:#.*)?$")
    _KEY = re.compile(rf"\s*({_KEYS})\s*=")
    _COMMENT_OR_STRING = re.compile(
        r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""", re.DOTALL
    )

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._lines: dict[KeyPath, int] = {}
        counts: dict[KeyPath, int] = {}
        table: KeyPath = ()
        for number, line in enumerate(self._COMMENT_OR_STRING.sub(_in_one_line, text).split("\n"), 1):
            if header := self._HEADER.match(line):
                table = _keys(header[2])
                if header[1] == "[[":
                    index = counts[table] = counts.get(table, -1) + 1
                    self._lines.setdefault(table, number)
                    table = (*table, index)
                self._lines.setdefault(table, number)
            elif key := self._KEY.match(line):
                self._lines.setdefault((*table, *_keys(key[1])), number)

    def line(self, path: KeyPath) -> int:
        """The line of a key, or of what it stands in."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def _keys(text: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(Source._PART, text))


def _in_one_line(found: re.Match[str]) -> str:
    """Nothing but the line ends of a string of several lines: what stands there is no key. All else as it is."""
    return "\n" * found[0].count("\n") or found[0]


class Table:
    """One table. Each key is taken once; `done` refuses those that nobody took."""

    def __init__(self, values: Mapping[str, Any], path: KeyPath, source: Source) -> None:
        self._values = dict(values)
        self._taken: set[str] = set()
        self._path = path
        self.source = source

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def raw(self, key: str) -> Any:
        """A value as it is; None if there is none."""
        self._taken.add(key)
        return self._values.get(key)

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        return str(self._take(key, default, lambda value: isinstance(value, str), "a string"))

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        return bool(self._take(key, default, lambda value: isinstance(value, bool), "true or false"))

    def whole(self, key: str, default: int, least: int = 0, most: int = LARGEST) -> int:
        """A whole number."""
        expected = f"a whole number from {least} {_up_to(most)}"
        return int(self._take(key, default, lambda value: is_whole(value, least, most), expected))

    def number(self, key: str, default: float, *, below: float = math.inf) -> float:
        """A number from 0 on."""
        expected = "a number from 0 on" + ("" if below == math.inf else f", below {below:g}")
        return float(self._take(key, default, lambda value: is_amount(value) and value < below, expected))

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of strings."""
        is_good = lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value)  # noqa: E731
        return tuple(self._take(key, (), is_good, "an array of strings"))

    def wholes(self, key: str) -> tuple[int, ...] | None:
        """An array of whole numbers; None if there is none."""
        is_good = lambda value: isinstance(value, list) and all(map(is_whole, value))  # noqa: E731
        found = self._take(key, None, is_good, "an array of whole numbers from 0 on")
        return None if found is None else tuple(found)

    def one_of(self, key: str, kind: type[_E], default: _E | None = None) -> _E | None:
        """A member of an enumeration of strings."""
        value = self.raw(key)
        if value is None:
            return default
        names = [str(member.value) for member in kind]
        if value not in names:
            advice = nearest(str(value), names)
            self.refuse(key, f"one of {', '.join(names)}" + (f": {advice}" if advice else ""))
        return kind(value)

    def table(self, key: str) -> Table | None:
        """A table inside; None if there is none."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, "a table")
        return Table(value, (*self._path, key), self.source)

    def tables(self, key: str) -> list[Table]:
        """An array of tables; a single table is an array of one."""
        value = self.raw(key)
        if value is None:
            return []
        if isinstance(value, dict):
            return [Table(value, (*self._path, key), self.source)]
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.refuse(key, f"tables, each under [[{key}]]")
        return [Table(each, (*self._path, key, index), self.source) for index, each in enumerate(value)]

    def done(self) -> None:
        """Refuse keys that nobody has taken."""
        for key in self._values:
            if key not in self._taken:
                known = sorted(self._taken)
                advice = nearest(key, known)
                raise UsageError(
                    f"{self.place(key)} {self._name(key)} is no key, expected one of {', '.join(known)}"
                    + (f": {advice}" if advice else "")
                )

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise UsageError for the value of a key."""
        raise UsageError(f"{self.place(key)} {self._name(key)} is {_shown(self._values.get(key))}, expected {expected}")

    def contradict(self, key: str, message: str) -> NoReturn:
        """Raise UsageError for a value that does not go with others."""
        raise UsageError(f"{self.place(key)} {self._name(key)} {message}")

    def _take(self, key: str, default: Any, is_good: Callable[[Any], bool], expected: str) -> Any:
        value = self.raw(key)
        if value is None:
            return default
        if not is_good(value):
            self.refuse(key, expected)
        return value

    def place(self, key: str) -> str:
        """File and line of a key, as an error begins."""
        return f"{self.source.path}:{self.source.line((*self._path, key))}:"

    def _name(self, key: str) -> str:
        name = ""
        for part in (*self._path, key):
            name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
        return name


def is_whole(value: object, least: int = 0, most: int = LARGEST) -> bool:
    """True for a whole number from `least` to `most`; `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_amount(value: object) -> bool:
    """True for a number from 0 on that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _up_to(most: int) -> str:
    return "on" if most == LARGEST else f"to {most}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not write whole numbers with thousands of digits
        return "a number too long to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
