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
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from ddpsim import Code, Result, Verdict
from ddpsim.scenarios.files.toml_table import Table, open_toml

KEY = "recorded"
"""The table's name."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run came to."""

    verdict: Verdict
    codes: tuple[Code, ...]
    """Of all findings, in their order."""
    digest: str
    choices: int
    """How many there were; 0 if nobody counted."""

    def difference(self, other: Recorded) -> str:
        """The first difference from another run, with both sides; "" if there is none."""
        for what, side in _SIDES:
            one, again = side(self), side(other)
            if one == again or (what == _CHOICES and "0" in (one, again)):
                continue
            late = "late" if other.choices > self.choices else "early"
            return f"{what}: recorded {one}; now {again}" + (f", it ended {late}" if what == _CHOICES else "")
        return ""


_CHOICES = "choices"
_SIDES: tuple[tuple[str, Callable[[Recorded], str]], ...] = (
    ("verdict", lambda run: run.verdict.value),
    ("findings", lambda run: ", ".join(map(str, run.codes)) or "none"),
    (_CHOICES, lambda run: str(run.choices)),
    ("digest of the trace", lambda run: run.digest),
)


def recorded_of(result: Result) -> Recorded:
    """What a run came to, as it is to be recorded."""
    codes = tuple(finding.code for finding in result.findings)
    return Recorded(result.verdict, codes, result.trace.digest(), len(result.schedule.answers))


def with_recorded(text: str, result: Result) -> str:
    """The text of a scenario file, which does not have the table yet, with what a run of that file came to."""
    recorded = recorded_of(result)
    values = {
        "verdict": recorded.verdict.value,
        "codes": [code.value for code in recorded.codes],
        "digest": recorded.digest,
        "choices": recorded.choices,
    }
    return f"{text.rstrip()}\n\n{tomlkit.dumps({KEY: values})}"


def recorded_in(table: Table) -> Recorded | None:
    """What the table of a whole file says was recorded; None if it says nothing. Raises UsageError if it is wrong."""
    own = table.table(KEY)
    if own is None:
        return None
    verdict = own.one_of("verdict", Verdict)
    if verdict is None:
        own.contradict("verdict", f"is missing, expected one of {', '.join(each.value for each in Verdict)}")
    known = {code.value: code for code in Code}
    if unknown := [name for name in own.texts("codes") if name not in known]:
        own.contradict("codes", f"has {unknown[0]!r}, expected finding codes such as {Code.DEADLOCK_CYCLE}")
    codes = tuple(known[name] for name in own.texts("codes"))
    recorded = Recorded(verdict, codes, own.text("digest"), own.whole("choices", 0))
    own.done()
    return recorded


def read_recorded(name: str) -> Recorded | None:
    """What the file of that name says was recorded; None for what is no such file, or says nothing."""
    return recorded_in(open_toml(Path(name))) if name.endswith(".toml") else None
