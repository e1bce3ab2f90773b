"""Every deadlock and mismatch of the zoo on real gloo: what torch's recorder has of it, and what is made of that.

    python -m tests.records.on_gloo FOLDER    # some 20 minutes; what FOLDER has already is not run again

Runs the scenarios in processes, two at once, diagnoses the dumps, asks torch's `fr_trace` about the same ones, and
writes `gloo.json`, and of that the table of docs/real_records.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpsim.scenarios import Scenario, load, registry
from ddpsim.scenarios.jobs import in_rank
from ddpsim.scenarios.records.found_records import find_records
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_diagnosis import diagnose_job
from tests.records.torchs_reader import told_by_torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("gloo.json")
PAGE = ROOT / "docs" / "real_records.md"
_BEGIN, _END = "<!-- table: python -m tests.records.on_gloo -->\n", "<!-- end of table -->\n"
_LANES = 2
_RECORDS = "rank_?"

Finding = tuple[str, tuple[int, ...]]
"""A code and the ranks to blame."""

LACKS = {
    "mismatch.reduction": "reductions",
    "mismatch.root": "roots",
    "mismatch.splits": "splits",
    "mismatch.origin": "whose call it is",
    "mismatch.value": "values",
    "mismatch.group": "who is to be in a new group",
}
"""What gloo's records have not, by the finding that takes it."""
MESSAGES = "messages"
MEMBERS = "the members of its groups"
ABORTED = "gloo ended the process of the odd rank"
OTHERWISE = {
    "first-call-left-behind": "which ranks were connected",
    "group-first-used-after-exit": "which ranks were connected",
    "restart-count-as-store-prefix": "waits for keys of the store",
    "groups-in-a-ring": MEMBERS,
    "two-wrapped-models-in-their-own-groups": MEMBERS,
    "local-clock-decides": "it takes the simulation's clock to happen",
    "local-observation-decides": "it takes the simulation's clock to happen",
    "two-threads-one-group": "it takes another order of threads to happen",
}
"""Of single scenarios."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one scenario."""

    name: str
    simulated: Finding
    diagnosed: tuple[Finding, ...]
    refused: str
    """Why there is no diagnosis."""
    lost: tuple[int, ...]
    """Ranks that gloo ended before they could write."""
    fr_trace: str

    @property
    def lacks(self) -> str:
        """What the records have not that the finding takes; "" if they can show it."""
        if self.name in OTHERWISE:
            return OTHERWISE[self.name]
        if self.simulated[0] in LACKS:
            return LACKS[self.simulated[0]]
        if self.lost and set(self.lost) & set(self.simulated[1]):
            return ABORTED
        return MESSAGES if self.refused.startswith("found no call") else ""

    @property
    def is_same(self) -> bool:
        """True if the same ranks are blamed."""
        return self.simulated[1] in {ranks for _, ranks in self.diagnosed}


def names() -> list[str]:
    """Every scenario that is expected to deadlock, or in which calls do not agree."""
    return [name for name in sorted(registry) if str(load(name).expected.code).startswith(("deadlock.", "mismatch."))]


def rows(results: Mapping[str, Any]) -> list[Row]:
    """What `gloo.json` has, beside what is expected of the simulation."""
    return [_row(name, results[name]) for name in names() if name in results]


def _row(name: str, result: Mapping[str, Any]) -> Row:
    scenario = load(name)
    ranks = scenario.expected.ranks
    blamed = ranks(scenario.world_size) if callable(ranks) else ranks
    diagnosed = tuple((code, tuple(ranks)) for code, ranks in result["diagnosed"])
    simulated = (str(scenario.expected.code), tuple(blamed or ()))
    return Row(name, simulated, diagnosed, result["refused"], tuple(result["lost"]), result["fr_trace"])


def table(found: Sequence[Row]) -> str:
    """The part of the page that is made."""
    shown = [row for row in found if not row.lacks]
    same = [row for row in shown if row.is_same]
    of_torch = [row for row in shown if _blames(row)]
    aborted = [row for row in found if row.lacks == ABORTED]
    as_well = [row for row in aborted if row.is_same]
    lines = [
        f"Of {len(found)} deadlocks and mismatches of the zoo gloo's records have all that the finding takes in "
        f"{len(shown)}. `diagnose` blames the ranks that the simulation blames in {len(same)} of these, `fr_trace` in "
        f"{len(of_torch)}. Where gloo ended the process of the odd rank, `diagnose` still does in {len(as_well)} of "
        f"{len(aborted)}, and says otherwise that the records do not show why.",
        "",
        "| scenario | simulation | `diagnose` on the real dump | `fr_trace` on the same dump | not in the records |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        diagnosed = ", ".join(map(_text, row.diagnosed)) or row.refused or "pass"
        sign = "" if row.lacks or row.is_same else " (**other**)"
        lines.append(f"| {row.name} | {_text(row.simulated)} | {diagnosed}{sign} | {row.fr_trace} | {row.lacks} |")
    return "\n".join(lines) + "\n"


def _text(finding: Finding) -> str:
    code, ranks = finding
    return f"{code} {', '.join(map(str, ranks))}".strip()


def _blames(row: Row) -> bool:
    named = re.search(r"(?:missing|culprit) ranks? ([\d, ]+)", row.fr_trace)
    return named is not None and tuple(map(int, named[1].split(","))) == row.simulated[1]


def page(text: str, made: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + "\n" + made + "\n" + _END + rest.partition(_END)[2]


# --- running ----------------------------------------------------------------------------------------------------------


def run(folder: Path, wanted: Sequence[str]) -> None:
    """Run what the folder has not yet."""
    left = [name for name in wanted if not (folder / name / in_rank.NOW).exists()]
    words = [sys.executable, "-W", "ignore", "-m", "tests.records.real_jobs", str(folder)]
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "500"}
    lanes = [
        subprocess.Popen([*words, *own], cwd=ROOT, env=environment)
        for own in (left[lane::_LANES] for lane in range(_LANES))
        if own
    ]
    for lane in lanes:
        lane.wait()


def result_of(folder: Path, scenario: Scenario) -> dict[str, Any]:
    """What is made of the dumps of one scenario."""
    lost = [rank for rank in range(scenario.world_size) if not (folder / in_rank.DONE.format(rank)).exists()]
    diagnosed, refused = [], ""
    try:
        job = combine_records(find_records([str(folder / _RECORDS)]).records, scenario.world_size)
        diagnosed = [[str(finding.code), list(finding.ranks)] for finding in diagnose_job(job).findings]
    except RecordError as error:
        refused = str(error).partition(" (")[0]
    return {"diagnosed": diagnosed, "refused": refused, "lost": lost, "fr_trace": said_by_torch(folder)}


def said_by_torch(folder: Path) -> str:
    """What torch's own reader says, in a few words."""
    try:
        text = told_by_torch(folder)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:40]}".strip(": ")
    if missing := re.search(r"missing ranks: \{([\d, ]+)\}", text):
        return f"missing ranks {missing[1]}"
    if culprit := re.search(r"Culprit rank (\d+); Error type: (\w+)", text):
        return f"culprit rank {culprit[1]}, {culprit[2]}"
    return "nothing"


def main() -> None:
    """Run the scenarios, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    run(options.folder, names())
    results = {name: result_of(options.folder / name, load(name)) for name in names()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), table(rows(results))), encoding="utf-8")


if __name__ == "__main__":
    main()
