"""A program on which simulator and gloo disagree, as a file: the program, where it comes from, and what both said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from ddpsim.scenarios.agreement.both import MOST_RANKS
from ddpsim.scenarios.agreement.breaking import Kind, LabelledProgram
from ddpsim.scenarios.agreement.comparison import Comparison
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.json_form import program_of, to_json
from ddpsim.simulator.programs.validation import validate

FORMAT = "ddpsim disagreement"
VERSION = 1


def save(comparison: Comparison, folder: Path, *, world_size: str) -> Path:
    """Write it into a folder, over no other program; returns the file. Raises UsageError if that cannot be.

    `world_size` is what the program was drawn with: of another range, the same seed is another program.
    """
    path = folder / f"disagreement-{comparison.labelled.seed}.json"
    try:
        path = next(each for each in _paths(path) if not each.exists() or _holds(each, comparison.labelled))
        path.write_text(_text(comparison, world_size), encoding="utf-8")
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


def _paths(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_stem(f"{path.stem}-{number}") for number in count(2))


def _holds(path: Path, labelled: LabelledProgram) -> bool:
    try:
        return load(path) == labelled
    except UsageError:
        return False


def _text(comparison: Comparison, world_size: str) -> str:
    labelled = comparison.labelled
    head = {
        "format": FORMAT,
        "version": VERSION,
        "seed": labelled.seed,
        "world_size": world_size,
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
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise UsageError(f"version is {value.get('version')!r}, expected {VERSION}: use the ddpsim that saved it")
    program = program_of(value.get("program"))
    validate(program)
    if program.world_size > MOST_RANKS:
        raise UsageError(
            f"world size is {program.world_size}, expected at most {MOST_RANKS}: take a program of fewer ranks"
        )
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
