"""A program on which simulator and gloo disagree, as a file: the program, where it comes from, and what both said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scenarios.agreement.breaking import Kind, LabelledProgram
from scenarios.agreement.comparison import Comparison
from simulator.errors import UsageError
from simulator.programs.json_form import program_of, to_json
from simulator.programs.validation import validate

FORMAT = "ddpsim disagreement"
VERSION = 1


def save(comparison: Comparison, folder: Path) -> Path:
    """Write it into a folder; returns the file. Raises UsageError if that cannot be."""
    path = folder / f"disagreement-{comparison.labelled.seed}.json"
    try:
        path.write_text(_text(comparison), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name a folder that can be") from None
    return path


def load(path: Path) -> LabelledProgram:
    """The program in a file. Raises UsageError, one line with where, if it is damaged or something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a file that `ddpsim agree` saved") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON ({error}): name a file that `ddpsim agree` saved") from None
    try:
        return _labelled(value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _text(comparison: Comparison) -> str:
    labelled = comparison.labelled
    head = {
        "format": FORMAT,
        "version": VERSION,
        "seed": labelled.seed,
        "kind": labelled.kind.value,
        "rank": labelled.rank,
        "disagreement": comparison.disagreement,
        "simulator": list(comparison.found),
        "gloo": [
            f"{ending.value}: {error}" if error else ending.value
            for ending, error in zip(comparison.endings, comparison.errors, strict=True)
        ],
    }
    program = to_json(labelled.program).rstrip().replace("\n", "\n  ")
    return f'{json.dumps(head, indent=2)[:-2]},\n  "program": {program}\n}}\n'


def _labelled(value: Any) -> LabelledProgram:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UsageError(f'found no "format": "{FORMAT}": name a file that `ddpsim agree` saved')
    if value.get("version") != VERSION:
        raise UsageError(f"version is {value.get('version')!r}, expected {VERSION}: use the ddpsim that saved it")
    program = program_of(value.get("program"))
    validate(program)
    seed, rank, kinds = value.get("seed"), value.get("rank"), [kind.value for kind in Kind]
    if type(seed) is not int:
        raise UsageError(f"seed is {seed!r}, expected a whole number: save the program again")
    if rank is not None and (type(rank) is not int or rank not in range(program.world_size)):
        raise UsageError(
            f"rank is {rank!r}, expected one of {program.world_size} ranks or null: save the program again"
        )
    if value.get("kind") not in kinds:
        raise UsageError(f"kind is {value.get('kind')!r}, expected one of {', '.join(kinds)}: save the program again")
    return LabelledProgram(seed, program, Kind(value["kind"]), rank)
