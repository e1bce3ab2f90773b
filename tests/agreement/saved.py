"""A program on which simulator and gloo disagree, as a file: the program, where it comes from, and what both said."""

from __future__ import annotations

import json
from pathlib import Path

from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind
from ddpsim.simulator.programs.program_json import from_json, to_json
from ddpsim.simulator.programs.validation import validate_program
from tests.agreement.comparison import Comparison, what_it_said
from tests.agreement.labelled import LabelledProgram

_MOST_FILES = 1000


def save(comparison: Comparison, folder: Path, *, world_size: str) -> Path:
    """Write it into a folder, over no other program; returns the file.

    `world_size` is what the program was drawn with: of another range, the same seed is another program.
    """
    labelled = comparison.labelled
    head = {
        "seed": labelled.seed,
        "world_size": world_size,
        "kind": labelled.kind.value,
        "rank": labelled.rank,
        "disagreement": comparison.disagreement,
        "simulator": list(comparison.found),
        "gloo": [f"{each.ending.value}: {what_it_said(each)}".removesuffix(": ") for each in comparison.reports],
        "program": json.loads(to_json(labelled.program)),
    }
    name = f"disagreement-{labelled.seed}"
    paths = (folder / f"{name}{end}.json" for end in ("", *(f"-{number}" for number in range(2, _MOST_FILES))))
    path = next(path for path in paths if not path.exists() or _holds(path, labelled))
    path.write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> LabelledProgram:
    """The program in a file. Raises OSError, ValueError, LookupError or UsageError if it is damaged or none."""
    value = json.loads(path.read_text(encoding="utf-8"))
    program = from_json(json.dumps(value["program"]))
    validate_program(program)
    return LabelledProgram(value["seed"], program, BreakKind(value["kind"]), value["rank"])


def _holds(path: Path, labelled: LabelledProgram) -> bool:
    try:
        return load(path) == labelled
    except Exception:  # whatever it is, it is not ours to overwrite
        return False
