"""The outcome of a saved run, in the table `[recorded]` of its scenario file, so that a replay can be compared with it.

A file without this table can still be replayed; then only the schedule is compared.
"""

from pathlib import Path

import msgspec
import tomlkit

from ddpsim import Code, Result, Verdict
from ddpsim.scenarios.files.toml_source import read_toml_file
from ddpsim.scenarios.training.training import Whole

KEY = "recorded"
"""The name of the table in a scenario file."""


class RecordedOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded outcome of a run."""

    verdict: Verdict
    codes: tuple[Code, ...] = ()
    """The codes of all findings, in their order."""
    digest: str = ""
    choices: Whole = 0
    """The number of scheduling choices in the run; 0 if they were not counted."""

    def first_difference(self, other: "RecordedOutcome") -> str:
        """Return the first difference from another run, with both values; "" if there is none."""
        now = other._parts_as_text()
        for what, recorded in self._parts_as_text().items():
            if recorded == now[what] or (what == "choices" and "0" in (recorded, now[what])):
                continue
            late = "late" if other.choices > self.choices else "early"
            return f"{what}: recorded {recorded}; now {now[what]}" + (f", so it ended {late}" * (what == "choices"))
        return ""

    def _parts_as_text(self) -> dict[str, str]:
        return {
            "verdict": self.verdict.value,
            "findings": ", ".join(map(str, self.codes)) or "none",
            "choices": str(self.choices),
            "digest of the trace": self.digest,
        }


def recorded_outcome_of(result: Result) -> RecordedOutcome:
    """Return the outcome of a run, in the form in which it is recorded and compared."""
    codes = tuple(finding.code for finding in result.findings)
    return RecordedOutcome(result.verdict, codes, result.trace.digest(), len(result.schedule.choices))


def append_outcome(text: str, result: Result) -> str:
    """Add the outcome of a run to the text of a scenario file. The text must not have a table `[recorded]` yet."""
    return f"{text.rstrip()}\n\n{tomlkit.dumps({KEY: msgspec.to_builtins(recorded_outcome_of(result))})}"


def read_recorded_outcome(name: str) -> RecordedOutcome | None:
    """Return the outcome recorded in the TOML file of that name; None if there is none.

    Raises UsageError if the table is invalid.
    """
    file = read_toml_file(Path(name)) if name.endswith(".toml") else None
    return file.read_form(RecordedOutcome, KEY) if file is not None and KEY in file.values else None
