"""Choices: all that a run leaves open goes through `choose(point, options)`; the list of what was chosen is a schedule.

A schedule has a short, versioned text form, the replay token:

    s1:0x12.1.2:w128:u28.80:9c1e03ab
    |  |        |    |      |
    |  |        |    |      4 hex digits that name the program and world size, 4 that check the whole
    |  |        |    how ranks of programs start: unlike (u) or alike (a), and the hash seeds they have in turn
    |  |        the world size, where it is more than 64; up to that the digits that name it are tried for each
    |  the choices, in order; `AxN` stands for N times A; zeros at the end are left out
    version

Choice 0 is always the default (the running rank goes on, or else the next one), so a schedule with few switches is
short.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, groupby, repeat
from typing import NamedTuple, Protocol

from ddpsim.simulator.errors import ReplayError

VERSION = "s1"
_TOKEN = re.compile(
    r"(?P<version>s\d+):(?P<choices>[0-9x.]+)(?::w(?P<ranks>\d{1,10}))?(?::(?P<start>[ua](?:\d{1,10}(?:\.\d{1,10})*)?))?"
    r":(?P<program>[0-9a-f]{4})(?P<check>[0-9a-f]{4})"
)
_RUN = re.compile(r"(\d+)(?:x(\d+))?")
_LONGEST_RUN = 10_000_000


class ChoiceKind(Enum):
    """What is being chosen."""

    RANK = "rank"
    """Which enabled rank runs next; the options are ranks."""
    SOURCE = "source"
    """Whose message a receive from any source takes; the options are ranks."""


class Who(NamedTuple):
    """A rank, or a thread that it started."""

    rank: int
    thread: str = ""
    """The name of the thread, if it is not the one that runs the rank's program."""

    def __str__(self) -> str:
        return f'rank {self.rank}, thread "{self.thread}"' if self.thread else f"rank {self.rank}"


class ChoicePoint(NamedTuple):
    """Where a choice is made. What is said of ranks holds of threads that they start, each by a number of its own."""

    kind: ChoiceKind
    number: int
    """How many choice points came before, in this execution."""
    rank: int
    """The rank that stands at the point."""
    numbered: tuple[Who, ...] = ()
    """Who has each number; () as long as all are ranks."""

    def who(self, number: int) -> Who:
        """The rank or thread of a number."""
        return self.numbered[number] if self.numbered else Who(number)


class RedundantRun(Exception):  # no error
    """Raised by a policy to break off an execution that others stand for. It does not count."""


class Policy(Protocol):
    """Decides what a run leaves open."""

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return an index into `options`, which are never fewer than two; 0 is the default."""


HASH_SEEDS = (28, 80)
"""Of the hashes of neighbouring ranks. A set of two strings has only two orders: with these it has one here and the
other there for most of the usual names (weight and bias, train and val, x and y)."""


class Start(NamedTuple):
    """How the ranks of an execution start. What differs between them is drawn once, so that each run repeats it."""

    is_alike: bool = False
    """All have the same seeds; else each has its own, as under torchrun."""
    hash_seeds: tuple[int, ...] = ()
    """Of Python's hashes, by which sets of strings are ordered: ranks have them in turn. () for that of the caller."""

    @property
    def own_hash_seed(self) -> int | None:
        """The PYTHONHASHSEED of whoever ran it; None for the seeds that ranks have otherwise."""
        is_given = len(self.hash_seeds) == 1 and not (self.is_alike and self.hash_seeds == HASH_SEEDS[:1])
        return self.hash_seeds[0] if is_given else None

    def __str__(self) -> str:
        return ("a" if self.is_alike else "u") + ".".join(map(str, self.hash_seeds))

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read what `str` wrote."""
        return cls(text[0] == "a", tuple(int(seed) for seed in text[1:].split(".") if seed))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices made in one execution. `str(schedule)` is its replay token."""

    choices: tuple[int, ...] = ()
    program: str = ""
    """What the choices belong to: the name of the program and the world size."""
    start: Start | None = None
    """How its ranks start; None for the way that goes with the program."""

    def __str__(self) -> str:
        _, ranks = _name_and_ranks(self.program)
        body = f"{VERSION}:{choices_text(self.choices)}"
        body += f":w{ranks}" if ranks > _MOST_TRIED else ""
        body += f":{self.start}" if self.start is not None else ""
        name = _checksum(self.program)
        return f"{body}:{name}{_checksum(body + name)}"

    @classmethod
    def parse(cls, token: str, *, program: str) -> Schedule:
        """Read a token recorded for `program`.

        Raises ReplayError if it is damaged, of another version, or of another program.
        """
        token = token.strip()
        found = _whole(token)
        if not _is_of(found, program):
            raise ReplayError(f"replay token {_shown(token)} was recorded for another {_what_differs(found, program)}")
        start = start_in(token)
        return cls(_without_defaults_at_the_end(list(_decode(found["choices"], token))), program, start)

    @classmethod
    def is_recorded_for(cls, token: str, program: str) -> bool:
        """True if a token was recorded for `program`. Raises ReplayError if it is damaged, or of another version."""
        return _is_of(_whole(token), program)


def start_in(token: str) -> Start | None:
    """How the ranks of a recorded execution started, if its token says so. Raises ReplayError if it is damaged."""
    found = _whole(token)
    return Start.parse(found["start"]) if found["start"] else None


def is_token(text: str) -> bool:
    """True for what looks like a whole replay token."""
    return _TOKEN.fullmatch(text) is not None


def program_on(name: str, world_size: int) -> str:
    """What a schedule belongs to, see `Schedule.program`."""
    return f"{name} on {world_size} ranks"


def in_words(program: str) -> str:
    """What `program_on` made, as it is read: on 1 rank."""
    return f"{program.removesuffix(' on 1 ranks')} on 1 rank" if program.endswith(" on 1 ranks") else program


def choices_text(choices: Sequence[int]) -> str:
    """Choices as they stand in a token, such as "0x12.1.2"; zeros at the end are left out."""
    runs = [(choice, sum(1 for _ in same)) for choice, same in groupby(_without_defaults_at_the_end(choices))]
    texts = chain.from_iterable([f"{choice}x{n}"] if n > 2 else [str(choice)] * n for choice, n in runs)
    return ".".join(texts) or "0"


def choices_in(text: str) -> tuple[int, ...]:
    """The choices in a text that `choices_text` wrote. Raises ReplayError for another text."""
    return _without_defaults_at_the_end(list(_decode(text, text)))


def _whole(token: str) -> re.Match[str]:
    """The parts of a token that is undamaged. Raises ReplayError for another."""
    token = token.strip()
    found = _TOKEN.fullmatch(token)
    version = token.partition(":")[0]
    if re.fullmatch(r"s\d+", version) and version != VERSION:
        raise ReplayError(
            f"replay token {_shown(token)} has version {version}, this ddpsim reads {VERSION}: "
            "record the failure again with this version"
        )
    if found is None:
        raise ReplayError(
            f"replay token {_shown(token)} is not whole, expected something like "
            f"{VERSION}:0x12.1.2:9c1e03ab: copy the token to its end"
        )
    if _checksum(token.rpartition(":")[0] + found["program"]) != found["check"]:
        raise ReplayError(
            f"replay token {_shown(token)} does not match its own checksum, expected an unchanged token: "
            "copy it again from the report"
        )
    return found


_ON_RANKS = re.compile(r"(?P<name>.*) on (?P<ranks>[1-9]\d{0,9}) ranks", re.DOTALL)
_FILE = re.compile(r"(?P<path>\S+\.(?:py|toml))(?P<rest>(?::|\s).*)")
"""A program that is named by its file."""
_MOST_TRIED = 64
"""World sizes up to this are tried where a token does not say its own; more would fit four digits by chance."""


def _is_of(found: re.Match[str], program: str) -> bool:
    """True if a token is of a program, however the path of its file is spelled."""
    return found["program"] in {_checksum(each) for each in _spellings(program)}


def _spellings(program: str) -> Iterator[str]:
    """What the same file may have been called: as it is, from the working folder, from the root, in its own folder."""
    yield program
    file = _FILE.fullmatch(program)
    if file is not None:
        path = os.path.relpath(file["path"])
        for each in (path, os.path.join(os.curdir, path), os.path.abspath(path), os.path.basename(path)):
            yield each + file["rest"]


def _what_differs(found: re.Match[str], program: str) -> str:
    """What a token is not of, with what to do."""
    name, ranks = _name_and_ranks(program)
    sizes = [int(found["ranks"])] if found["ranks"] else range(1, _MOST_TRIED + 1)
    for size in sizes if ranks else ():
        if found["program"] == _checksum(program_on(name, size)):
            return f"world size than {program}: replay it on {size} rank{'s' * (size != 1)}, where it came from"
    also = f", on {found['ranks']} ranks," if found["ranks"] and int(found["ranks"]) != ranks else ""
    return f"program{also} than {program}: replay it with the one it came from"


def _name_and_ranks(program: str) -> tuple[str, int]:
    """What `program_on` was given; 0 ranks for a text of another form."""
    found = _ON_RANKS.fullmatch(program)
    return (found["name"], int(found["ranks"])) if found else (program, 0)


def _shown(token: str) -> str:
    return repr(token if len(token) <= 60 else token[:57] + "...")


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()) & 0xFFFF:04x}"


def _without_defaults_at_the_end(choices: Sequence[int]) -> tuple[int, ...]:
    end = len(choices)
    while end and choices[end - 1] == 0:
        end -= 1
    return tuple(choices[:end])


def _decode(text: str, token: str) -> Iterator[int]:
    for part in text.split("."):
        run = _RUN.fullmatch(part)
        if run is None or int(run[2] or 1) > _LONGEST_RUN:
            raise ReplayError(f"replay token {_shown(token)} has the answer {part!r}, expected a number or NxM")
        yield from repeat(int(run[1]), int(run[2] or 1))
