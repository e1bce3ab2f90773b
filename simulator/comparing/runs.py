"""The three runs of a comparison: on several ranks, the reference, and the reference moved by one rounding."""

import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpsim.simulator.calls import Phase
from ddpsim.simulator.comparing.batches import describe_overlap
from ddpsim.simulator.comparing.comparison import ROUNDINGS, Answer
from ddpsim.simulator.comparing.judgement import Comparison, judge_records
from ddpsim.simulator.comparing.printed import Kept, describe_other_line
from ddpsim.simulator.comparing.records import Kind, Recording, read_steps
from ddpsim.simulator.events import RAW_MEMORY, EventKind
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import LabelledLine

RunRecorded = Callable[[Recording], Result]
"""A function that runs a program while its ranks record."""


def compare_runs(
    run_ranks: RunRecorded, run_reference: RunRecorded, steps: int, *, program: str, what: str
) -> Comparison:
    """Run a training, its reference and the twin of that, whose output is hidden, and compare what they recorded.

    `program` and `what` are the training and the reference in words.
    """
    unknown = Comparison(Answer.UNKNOWN, "", program, what)
    with TemporaryDirectory(prefix="ddpsim-compare-") as folder:
        folders = [Path(folder, each) for each in ("ranks", "reference", "twin")]
        for each in folders:
            each.mkdir()
        ranks, own, twin = (Recording(str(each), steps) for each in folders)
        before = _times_of_files()
        printed = [Kept(sys.stdout)]
        with redirect_stdout(printed[0]):
            first = run_ranks(ranks)
        written = [name for name, time in _times_of_files().items() if before.get(name) != time]
        if first.verdict is not Verdict.PASS:
            line = f"the run on {first.world_size} ranks did not pass: {first.findings[0].summary}"
            return replace(unknown, line=line)
        seen = {
            (each.dtype, each.name if each.kind is Kind.NOTE else "")
            for rank in range(first.world_size)
            for step in read_steps(folders[0], rank)
            for each in step.entries
        }
        calls = [event.call for event in first.trace if event.call is not None]
        sent = max((ROUNDINGS.get(str(call.signature.dtype), 0.0) for call in calls), default=0.0)
        moved_by = max([sent, *(ROUNDINGS.get(dtype, 0.0) for dtype, _ in seen)])
        freezes = any(note.startswith("BatchNorm") for _, note in seen)
        own = own._replace(batches_of=ranks.folder, freezes_batch_norm=freezes)
        for recording in (own, own._replace(folder=twin.folder, moved_by=moved_by)):
            printed.append(Kept(io.StringIO()))
            with redirect_stdout(printed[-1]), redirect_stderr(io.StringIO()):
                ran = run_reference(recording)
            if ran.verdict is not Verdict.PASS:
                return replace(unknown, line=f"the reference on {what} did not pass: {ran.findings[0].summary}")
        sizes, has_hook = (first.world_size, ran.world_size), any(call.origin.by_hook for call in calls)
        calls_by_step = _calls_by_step(first.trace)
        found = judge_records(folders, sizes, calls_by_step, written, rounding=sent, has_hook=has_hook)
        overlap = describe_overlap(folders[0])
    if found.is_same and overlap is not None:
        line, cause, advice = overlap
        lines = LabelledLine("cause", cause), LabelledLine("do", advice)
        found = replace(found, answer=Answer.DIFFERENT, line=line, lines=lines)
    notes = [*found.notes, *(each for each in first.notes if each.startswith(RAW_MEMORY))]
    if found.is_same:
        notes += filter(None, [describe_other_line(*(each.getvalue() for each in printed))])
    return replace(found, program=program, against=what, notes=tuple(notes))


def _times_of_files() -> dict[str, int]:
    """Return when each file and folder in the current folder was last written."""
    found = {}
    for each in os.scandir():
        with suppress(FileNotFoundError):  # it may be removed meanwhile
            found[each.name] = each.stat(follow_symlinks=False).st_mtime_ns
    found.pop("__pycache__", None)
    return found


def _calls_by_step(trace: Trace) -> dict[int, list[str]]:
    """Return the calls that rank 0 made in each optimizer step, by the program or for it."""
    found: dict[int, Counter[str]] = {}
    step = 0
    for event in trace:
        if event.rank == 0 and event.kind is EventKind.STEP:
            step += 1
        elif event.rank == 0 and event.kind is EventKind.ISSUE and event.call is not None:
            call = event.call
            if call.operation in ("new_group", "barrier") or call.origin.phase not in (Phase.USER, Phase.BUCKET):
                continue
            reduction = f" {call.signature.reduction}" if call.signature.reduction else ""
            by = "" if call.origin.is_of_program else f" ({str(call.origin).partition(' of step')[0]})"
            found.setdefault(step, Counter())[f"{call.operation}{reduction} at {call.site}{by}"] += 1
    return {step: [f"{text} x {n}" if n > 1 else text for text, n in own.items()] for step, own in found.items()}
