"""What a saved run came to, in a table of its file, so that a replay can be compared with it at its end.

    [recorded]
    verdict = "fail"
    codes = ["deadlock.cycle"]
    digest = "0f2c..."                     # of the trace
    choices = 23                           # 0 if nobody counted: round robin is not asked

A file without the table is replayed all the same, and compared with nothing but its schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import tomlkit

from ddpsim import Code, Result, Verdict
from ddpsim.scenarios.files.toml_source import open_toml
from ddpsim.scenarios.training.training import Whole

KEY = "recorded"
"""The table's name."""


class RecordedOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run came to."""

    verdict: Verdict
    codes: tuple[Code, ...] = ()
    """Of all findings, in their order."""
    digest: str = ""
    choices: Whole = 0
    """How many there were; 0 if nobody counted."""

    def difference(self, other: RecordedOutcome) -> str:
        """The first difference from another run, with both sides; "" if there is none."""
        for what, side in _SIDES:
            one, again = side(self), side(other)
            if one == again or (what == _CHOICES and "0" in (one, again)):
                continue
            late = "late" if other.choices > self.choices else "early"
            return f"{what}: recorded {one}; now {again}" + (f", it ended {late}" if what == _CHOICES else "")
        return ""


_CHOICES = "choices"
_SIDES: tuple[tuple[str, Callable[[RecordedOutcome], str]], ...] = (
    ("verdict", lambda run: run.verdict.value),
    ("findings", lambda run: ", ".join(map(str, run.codes)) or "none"),
    (_CHOICES, lambda run: str(run.choices)),
    ("digest of the trace", lambda run: run.digest),
)


def outcome_of(result: Result) -> RecordedOutcome:
    """What a run came to, as it is to be recorded."""
    codes = tuple(finding.code for finding in result.findings)
    return RecordedOutcome(result.verdict, codes, result.trace.digest(), len(result.schedule.choices))


def with_outcome(text: str, result: Result) -> str:
    """The text of a scenario file, which does not have the table yet, with what a run of that file came to."""
    return f"{text.rstrip()}\n\n{tomlkit.dumps({KEY: msgspec.to_builtins(outcome_of(result))})}"


def read_outcome(name: str) -> RecordedOutcome | None:
    """What the file of that name says was recorded; None for what is no such file, or says nothing.

    Raises UsageError if it is wrong.
    """
    file = open_toml(Path(name)) if name.endswith(".toml") else None
    return file.read(RecordedOutcome, KEY) if file is not None and KEY in file.values else None
