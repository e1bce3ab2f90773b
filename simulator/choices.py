"""Choices and schedules: a policy makes every nondeterministic choice of a run; the list of choices is its schedule.

A schedule has a short, versioned text form, the replay token:

    s1:0x12.1.2:w128:u28.80:rank_error:9c1e03ab
    |  |        |    |      |          |
    |  |        |    |      |          4 hex digits of a hash of the program and world size, 4 of a checksum
    |  |        |    |      the first finding of a run that failed; left out if it did not, and in older tokens
    |  |        |    how ranks start: different (u) or equal (a) seeds, and the hash seeds, assigned to ranks in turn;
    |  |        |    then, as in n2r1slurm, the numbers of nodes and restarts, and the launcher, if not 1, 0, torchrun
    |  |        the world size, if above 64; a smaller one is found by comparing the hash with each size's
    |  the choices, in order; `AxN` is N times A; zeros at the end are omitted
    version

Choice 0 is always the default (the running rank continues, else the next one runs), so a schedule with few switches
is short.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, groupby, repeat
from typing import NamedTuple, Protocol

from ddpsim.simulator.errors import ReplayError
from ddpsim.simulator.hosts import TORCHRUN

VERSION = "s1"
_TOKEN = re.compile(
    r"(?P<version>s\d+):(?P<choices>[0-9x.]+)(?::w(?P<ranks>\d{1,10}))?(?::(?P<start>[ua](?:\d{1,10}(?:\.\d{1,10})*)?"
    r"(?:n\d{1,5}(?:r\d{1,5})?[a-z]*)?))?"
    r"(?::(?P<found>[a-z_]{4,}(?:\.[a-z_]+)?))?:(?P<program>[0-9a-f]{4})(?P<check>[0-9a-f]{4})"
)
_RUN = re.compile(r"(\d+)(?:x(\d+))?")
_LONGEST_RUN = 10_000_000


class ChoiceKind(Enum):
    """The kinds of choices."""

    RANK = "rank"
    """Which runnable rank runs next; the options are ranks."""
    SOURCE = "source"
    """Which rank's message a receive from any source takes; the options are ranks."""


class RankOrThread(NamedTuple):
    """A rank, or a thread that it started."""

    rank: int
    thread: str = ""
    """The name of the thread; "" for the thread that runs the rank's program."""

    def __str__(self) -> str:
        return f'rank {self.rank}, thread "{self.thread}"' if self.thread else f"rank {self.rank}"


class ChoicePoint(NamedTuple):
    """The place in a run where the scheduler makes a choice.

    A thread that a rank starts counts like a rank, with a number of its own.
    """

    kind: ChoiceKind
    number: int
    """The number of choice points earlier in this run."""
    rank: int
    """The rank that is running."""
    numbered: tuple[RankOrThread, ...] = ()
    """The rank or thread that each number stands for; () while no thread has a number."""

    def who(self, number: int) -> RankOrThread:
        """Return the rank or thread that this number stands for."""
        return self.numbered[number] if self.numbered else RankOrThread(number)


class RedundantRun(Exception):  # no error
    """Raised by a policy to abort a run that is equivalent to another one. The aborted run is not counted."""


class Policy(Protocol):
    """Makes the scheduling choices of a run."""

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return an index into `options`, of which there are at least two. Index 0 is the default."""


HASH_SEEDS = (28, 80)
"""The hash seeds of neighbouring ranks. With these two seeds, a set of two common names (weight and bias, train and
val, x and y) mostly has different iteration orders on the two ranks."""


class RankSeeds(NamedTuple):
    """How the ranks of a run start: their seeds, which are fixed, so that every run has the same; and their hosts."""

    is_alike: bool = False
    """True if all ranks have the same seeds; else each rank has its own seeds, as under torchrun."""
    hash_seeds: tuple[int, ...] = ()
    """Values of PYTHONHASHSEED, assigned to the ranks in turn; they decide the order of sets of strings. () for the
    hash seed of the calling process."""
    nodes: int = 1
    """The number of hosts."""
    launcher: str = TORCHRUN
    max_restarts: int = 0

    @property
    def own_hash_seed(self) -> int | None:
        """The PYTHONHASHSEED that the user had set; None if ranks have ddpsim's default hash seeds."""
        is_given = len(self.hash_seeds) == 1 and not (self.is_alike and self.hash_seeds == HASH_SEEDS[:1])
        return self.hash_seeds[0] if is_given else None

    def __str__(self) -> str:
        seeds = ("a" if self.is_alike else "u") + ".".join(map(str, self.hash_seeds))
        hosts = f"n{self.nodes}" + f"r{self.max_restarts}" * bool(self.max_restarts)
        hosts += self.launcher * (self.launcher != TORCHRUN)
        return seeds if hosts == "n1" else seeds + hosts

    @classmethod
    def parse(cls, text: str) -> "RankSeeds":
        """Return the seeds in a text of the form that `str(seeds)` has."""
        seeds, _, hosts = text[1:].partition("n")
        numbers = re.match(r"(\d*)(?:r(\d+))?", hosts)
        assert numbers is not None, "it matches everywhere"
        return cls(
            text[0] == "a",
            tuple(int(seed) for seed in seeds.split(".") if seed),
            int(numbers[1] or 1),
            hosts[numbers.end() :] or TORCHRUN,
            int(numbers[2] or 0),
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices made in one run. `str(schedule)` is its replay token."""

    choices: tuple[int, ...] = ()
    program: str = ""
    """The program's name and the world size, as one text that `program_identity` makes."""
    start: RankSeeds | None = None
    """The seeds of the ranks; None for the default of the program."""
    found: str = field(default="", compare=False)
    """The code of the first finding of a run that failed; "" for another run, and where this was not recorded."""

    def __str__(self) -> str:
        _, ranks = _name_and_ranks(self.program)
        body = f"{VERSION}:{choices_text(self.choices)}"
        body += f":w{ranks}" if ranks > _MOST_TRIED else ""
        body += f":{self.start}" if self.start is not None else ""
        body += f":{self.found}" if self.found else ""
        name = _checksum(self.program)
        return f"{body}:{name}{_checksum(body + name)}"

    @classmethod
    def parse(cls, token: str, *, program: str) -> "Schedule":
        """Return the schedule of a replay token that was recorded for `program`.

        Raises ReplayError if the token is damaged, of another version, or of another program.
        """
        token = token.strip()
        found = _match_token(token)
        if not _is_recorded_for_program(found, program):
            difference = _describe_difference(found, program)
            raise ReplayError(f"replay token {_shorten_token(token)} was recorded for another {difference}")
        start = seeds_in_token(token)
        choices = without_trailing_defaults(list(_decode_choices(found["choices"], token)))
        return cls(choices, program, start, found["found"] or "")

    @classmethod
    def is_recorded_for(cls, token: str, program: str) -> bool:
        """Return True if a token was recorded for `program`. Raises ReplayError if damaged or of another version."""
        return _is_recorded_for_program(_match_token(token), program)


def seeds_in_token(token: str) -> RankSeeds | None:
    """Return the seeds of ranks in a replay token; None if it has none. Raises ReplayError if it is damaged."""
    found = _match_token(token)
    return RankSeeds.parse(found["start"]) if found["start"] else None


def is_token(text: str) -> bool:
    """Return True if a text has the form of a replay token."""
    return _TOKEN.fullmatch(text) is not None


def program_identity(name: str, world_size: int) -> str:
    """Return a text that identifies a program by its name and world size."""
    return f"{name} on {world_size} ranks"


def identity_in_words(program: str) -> str:
    """Return the text of `program_identity` in proper English: "on 1 rank", not "on 1 ranks"."""
    return f"{program.removesuffix(' on 1 ranks')} on 1 rank" if program.endswith(" on 1 ranks") else program


def choices_text(choices: Sequence[int]) -> str:
    """Return choices in the form of a replay token, such as "0x12.1.2". Zeros at the end are omitted."""
    runs = [(choice, sum(1 for _ in same)) for choice, same in groupby(without_trailing_defaults(choices))]
    texts = chain.from_iterable([f"{choice}x{n}"] if n > 2 else [str(choice)] * n for choice, n in runs)
    return ".".join(texts) or "0"


def parse_choices(text: str) -> tuple[int, ...]:
    """Return the choices in a text that `choices_text` made. Raises ReplayError for any other text."""
    return without_trailing_defaults(list(_decode_choices(text, text)))


def _match_token(token: str) -> re.Match[str]:
    """Split an undamaged replay token into its parts. Raises ReplayError for any other text."""
    token = token.strip()
    found = _TOKEN.fullmatch(token)
    version, shown = token.partition(":")[0], f"replay token {_shorten_token(token)}"
    if re.fullmatch(r"s\d+", version) and version != VERSION:
        raise ReplayError(
            f"{shown} has version {version}, this ddpsim reads {VERSION}: record the failure again with this version"
        )
    if found is None:
        raise ReplayError(
            f"{shown} is not valid, expected something like {VERSION}:0x12.1.2:9c1e03ab: copy the whole token"
        )
    if _checksum(token.rpartition(":")[0] + found["program"]) != found["check"]:
        raise ReplayError(f"{shown} does not match its checksum, so it was changed: copy it again from the report")
    return found


_ON_RANKS = re.compile(r"(?P<name>.*) on (?P<ranks>[1-9]\d{0,9}) ranks", re.DOTALL)
_FILE = re.compile(r"(?P<path>\S+\.(?:py|toml))(?P<rest>(?::|\s).*)")
"""Matches the name of a program that begins with the path of a file."""
_MOST_TRIED = 64
"""The largest world size that is tried for a token without one. With more, its hash may match by chance."""


def _is_recorded_for_program(found: re.Match[str], program: str) -> bool:
    """Return True if a token was recorded for a program. Any path of the program's file counts as the same file."""
    names = [program]
    file = _FILE.fullmatch(program)
    if file is not None:
        path = os.path.relpath(file["path"])
        paths = path, os.path.join(os.curdir, path), os.path.abspath(path), os.path.basename(path)
        names += [each + file["rest"] for each in paths]
    return found["program"] in map(_checksum, names)


def _describe_difference(found: re.Match[str], program: str) -> str:
    """Return the end of an error for another program's token: whether program or world size differ, and what to do."""
    name, ranks = _name_and_ranks(program)
    sizes = [int(found["ranks"])] if found["ranks"] else range(1, _MOST_TRIED + 1)
    for size in sizes if ranks else ():
        if found["program"] == _checksum(program_identity(name, size)):
            return f"world size than {program}: replay it on {size} rank{'s' * (size != 1)}, where it came from"
    also = f", on {found['ranks']} ranks," if found["ranks"] and int(found["ranks"]) != ranks else ""
    return f"program{also} than {program}: replay it with the one it came from"


def _name_and_ranks(program: str) -> tuple[str, int]:
    """Return the name and world size that a text of `program_identity` contains; 0 ranks for any other text."""
    found = _ON_RANKS.fullmatch(program)
    return (found["name"], int(found["ranks"])) if found else (program, 0)


def _shorten_token(token: str) -> str:
    return repr(token if len(token) <= 60 else token[:57] + "...")


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()) & 0xFFFF:04x}"


def without_trailing_defaults(choices: Sequence[int]) -> tuple[int, ...]:
    """Return the choices without default choices at the end, which a schedule need not contain."""
    end = len(choices)
    while end and choices[end - 1] == 0:
        end -= 1
    return tuple(choices[:end])


def _decode_choices(text: str, token: str) -> Iterator[int]:
    for part in text.split("."):
        run = _RUN.fullmatch(part)
        if run is None or int(run[2] or 1) > _LONGEST_RUN:
            raise ReplayError(f"replay token {_shorten_token(token)} has the answer {part!r}, expected a number or NxM")
        yield from repeat(int(run[1]), int(run[2] or 1))
