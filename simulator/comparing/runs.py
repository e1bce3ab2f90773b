"""The three runs of a comparison: on several ranks, the reference, and the reference moved by one rounding."""

import io
import shutil
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ddpsim.simulator.calls import Phase
from ddpsim.simulator.comparing.batches import describe_overlap
from ddpsim.simulator.comparing.comparison import ROUNDINGS, Answer
from ddpsim.simulator.comparing.explanation import ranks_of
from ddpsim.simulator.comparing.judgement import Comparison, judge_records
from ddpsim.simulator.comparing.printed import Kept, describe_other_line
from ddpsim.simulator.comparing.records import Kind, Recording, read_steps
from ddpsim.simulator.comparing.working_folder import Writes, times_of_files, working_folder_without, writes_since
from ddpsim.simulator.diagnosis.explain import summarized_finding
from ddpsim.simulator.events import RAW_MEMORY, EventKind
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Code, Verdict
from ddpsim.simulator.wording import LabelledLine

RunRecorded = Callable[[Recording], Result]
"""A function that runs a program while its ranks record."""


class Reference:
    """A training's reference, and its twin, which are made when the first run of the training has passed."""

    def __init__(self, run: RunRecorded, steps: int, what: str, *, is_exact: bool = False) -> None:
        """`what` is the reference in words. `is_exact`: only equal bits are equal."""
        self._is_exact = is_exact
        self._run, self._what, self._steps = run, what, steps
        self._folders = [self._new_folder() for _ in range(3)]
        """What the ranks, the reference and its twin recorded."""
        self._size = 0
        """The number of ranks of the reference; 0 before it has run."""
        self._failed = ""
        """What was found in the reference or its twin."""
        self._printed: list[str] = []
        self._writes = Writes()
        """What the ranks wrote in the working folder before the reference was made."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy in another process reads the same reference; it records the ranks for itself."""
        vars(self).update(state)
        self._folders = [self._new_folder(), *self._folders[1:]]

    def _new_folder(self) -> Path:
        folder = mkdtemp(prefix="ddpsim-compare-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def check(self, run_ranks: RunRecorded) -> Result:
        """Return a run of the training, with a finding if it is not that of the reference, or if that is not known."""
        result, found = self.compare(run_ranks)
        if result.verdict is not Verdict.PASS:
            return result
        if found.is_same:
            return replace(result, notes=(*result.notes, f"against {self._what}: {found.line}", *found.notes))
        first = found.first
        kind = first.kind if first else Kind.PARAMETER
        ranks = tuple(ranks_of(first, found.rows, result.world_size) if first else ())
        is_known, of_kind = found.answer is Answer.DIFFERENT, _CODES.get(kind, Code.DIVERGENCE_GRADIENTS)
        code, line = of_kind if is_known else Code.UNCHECKED, f"against {self._what}: {found.line}"
        finding = summarized_finding(code, ranks, line, found.lines)
        return replace(result, findings=(finding, *result.findings)).with_replay(result.replay)

    def compare(self, run_ranks: RunRecorded) -> tuple[Result, Comparison]:
        """Run the training, and make the reference if there is none yet, whose output is hidden. Compare both."""
        before, printed = {} if self._size else times_of_files(), Kept(sys.stdout)
        with redirect_stdout(printed):
            first = run_ranks(Recording(str(self._folders[0]), self._steps))
        if first.verdict is not Verdict.PASS:
            line = f"the run on {first.world_size} ranks did not pass: {first.findings[0].summary}"
            return first, Comparison(Answer.UNKNOWN, line)
        calls = [event.call for event in first.trace if event.call is not None]
        sent = max((ROUNDINGS.get(str(call.signature.dtype), 0.0) for call in calls), default=0.0)
        if not self._size:
            self._writes = writes_since(before)
            self._make(first.world_size, sent)
        if self._failed:
            line = f"the reference on {self._what} did not pass: {self._failed}"
            return first, Comparison(Answer.UNKNOWN, line, notes=tuple(self._writes.notes()))
        sizes, has_hook = (first.world_size, self._size), any(call.origin.by_hook for call in calls)
        by_step = _calls_by_step(first.trace)
        found = judge_records(self._folders, sizes, by_step, rounding=sent, is_exact=self._is_exact, has_hook=has_hook)
        overlap = describe_overlap(self._folders[0])
        if found.is_same and overlap is not None:
            line, told = overlap
            lines = tuple(LabelledLine(label, text) for label, text in told.items())
            found = replace(found, answer=Answer.DIFFERENT, line=line, lines=lines)
        notes = [*found.notes, *(each for each in first.notes if each.startswith(RAW_MEMORY))]
        if not found.is_same:
            notes += self._writes.notes()
        if found.is_same or (found.rows and all(row.answer is not Answer.DIFFERENT for row in found.rows)):
            notes += filter(None, [describe_other_line(printed.getvalue(), *self._printed)])
        return first, replace(found, notes=tuple(notes))

    def _make(self, world_size: int, sent: float) -> None:
        """Run the reference with the batches that the ranks recorded, and its twin moved by one rounding."""
        seen = {
            (each.dtype, each.name if each.kind is Kind.NOTE else "")
            for rank in range(world_size)
            for step in read_steps(self._folders[0], rank)
            for each in step.entries
        }
        freezes = any(note.startswith("BatchNorm") for _, note in seen)
        folder, batches_of = map(str, self._folders[1::-1])
        own = Recording(folder, self._steps, batches_of, world_size, freezes_batch_norm=freezes)
        moved_by = max([sent, *(ROUNDINGS.get(dtype, 0.0) for dtype, _ in seen)])
        for recording in (own, own._replace(folder=str(self._folders[2]), moved_by=moved_by)):
            printed = Kept(io.StringIO())
            with redirect_stdout(printed), redirect_stderr(io.StringIO()), working_folder_without(self._writes):
                result = self._run(recording)
            self._printed.append(printed.getvalue())
            self._size = result.world_size
            if result.verdict is not Verdict.PASS:
                self._failed = result.findings[0].summary
                return


_AFTER_STEP = Kind.RATE, Kind.PARAMETER, Kind.STATE, Kind.EVALUATED, Kind.WRITTEN
_CODES = {
    **dict.fromkeys(_AFTER_STEP, Code.DIVERGENCE_PARAMETERS),
    **dict.fromkeys((Kind.BUFFER, Kind.METRIC), Code.DIVERGENCE_BUFFERS),
}
"""By the kind of the first tensor that differs, the code of a finding, if it is not that of gradients."""


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
