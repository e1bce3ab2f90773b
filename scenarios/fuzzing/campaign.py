"""A campaign: run the corpus, then batch after batch within the budget; then shrink and save the failures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from pathlib import Path

from ddpsim import UsageError
from ddpsim.scenarios.fuzzing import CORPUS
from ddpsim.scenarios.fuzzing.batch import quiet
from ddpsim.scenarios.fuzzing.campaign_report import BatchReport, Totals, batch_report, merged
from ddpsim.scenarios.fuzzing.corpus import CorpusState, Tried, check_folder, try_all
from ddpsim.scenarios.fuzzing.keeping import Keeper, Kept
from ddpsim.scenarios.fuzzing.plan import Plan
from ddpsim.scenarios.fuzzing.shrinking.size_text import counted
from ddpsim.scenarios.fuzzing.workers import Reports, Workers, WorkersLostError, connected
from ddpsim.simulator.ctrl_c import CtrlC

_OF_CORPUS = -1
"""The batch number of the corpus."""


class End(Enum):
    """Why a campaign ended."""

    BUDGET = "the budget is used up"
    INTERRUPT = "interrupted"
    LOST = "the workers were lost"


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """The state of a running campaign, for a progress display."""

    totals: Totals
    seconds: float
    doing: str

    @property
    def rate(self) -> float:
        """Executions per second so far."""
        return self.totals.count / self.seconds if self.seconds else 0.0


OnProgress = Callable[[CampaignProgress], object]


@dataclass(frozen=True, slots=True)
class Campaign:
    """The result of a campaign."""

    plan: Plan
    totals: Totals
    """The counts, which include the runs of the corpus."""
    corpus: tuple[Tried, ...]
    kept: tuple[Kept, ...]
    seconds: float
    end: End
    note: str = ""
    """How the workers were lost, or how many batches Ctrl-C dropped."""

    @property
    def has_found(self) -> bool:
        """Return True if a scenario of the corpus or of a batch failed."""
        return bool(self.kept) or any(tried.state is CorpusState.FAILS for tried in self.corpus)

    @property
    def interrupted(self) -> bool:
        """Return True if Ctrl-C ended the campaign."""
        return self.end is End.INTERRUPT


def run_campaign(
    plan: Plan,
    *,
    seconds: float = 60.0,
    workers: Workers | None = None,
    corpus: Path = CORPUS,
    on_tried: Callable[[Tried], object] | None = None,
    on_progress: OnProgress | None = None,
) -> Campaign:
    """Fuzz for a number of seconds, or for the executions of the plan.

    The same plan draws the same batches with any workers. Ctrl-C ends the campaign early and keeps the failures. Raises
    UsageError for an empty budget, a corpus that is no folder, and a cluster that does not answer.
    """
    check_budget(plan, seconds)
    check_folder(corpus)
    with quiet(), connected(workers or Workers()) as reports:
        return _RunningCampaign(plan, seconds, corpus, on_progress).to_its_end(reports, on_tried)


def check_budget(plan: Plan, seconds: float) -> None:
    """Raise UsageError for a budget that allows nothing."""
    if not (isfinite(seconds) and seconds > 0):
        raise UsageError(f"seconds is {seconds:g}, expected a number above 0: say how long to fuzz")
    if plan.executions is not None and plan.executions < 1:
        raise UsageError(f"executions is {plan.executions}, expected 1 or more: say how many runs to make")
    if plan.seed < 0:
        raise UsageError(f"seed is {plan.seed}, expected 0 or more: batch i draws from seed + i")


class _RunningCampaign:
    """A campaign while it runs."""

    def __init__(self, plan: Plan, seconds: float, corpus: Path, on_progress: OnProgress | None) -> None:
        self._plan = plan
        self._seconds = seconds
        self._corpus = corpus
        self._on_progress = on_progress
        self._start = time.perf_counter()
        self._tried: list[Tried] = []
        self._reports: dict[int, BatchReport] = {}
        self._handed_out = 0
        self._totals = Totals()
        self._keeper = Keeper(corpus, plan)
        self._kept: list[Kept] = []
        self._end = End.BUDGET
        self._note = ""

    def to_its_end(self, reports: Reports, on_tried: Callable[[Tried], object] | None) -> Campaign:
        """Run the corpus and the batches, and process the failures."""
        with CtrlC(raises=False) as between:
            self._search(reports, on_tried)
            self._keep(between)
        if between.is_pressed:
            self._end = End.INTERRUPT
        return Campaign(
            self._plan, self._all(), tuple(self._tried), tuple(self._kept), self._elapsed(), self._end, self._note
        )

    def _search(self, reports: Reports, on_tried: Callable[[Tried], object] | None) -> None:
        try:
            with CtrlC() as ctrl_c:
                self._try_corpus(on_tried, ctrl_c)
                self._run_batches(reports, ctrl_c)
        except WorkersLostError as error:
            self._end, self._note = End.LOST, str(error)
        if ctrl_c.is_pressed:
            self._end, self._note = End.INTERRUPT, self._dropped()

    def _dropped(self) -> str:
        """Describe the batches that are dropped; "" in one process, which ends its batch and reports it."""
        count = self._handed_out - len(self._reports)
        return f"{counted(count, 'batch', 'batches')} under way dropped" if count else ""

    def _try_corpus(self, on_tried: Callable[[Tried], object] | None, ctrl_c: CtrlC) -> None:
        for tried in try_all(self._corpus, self._plan.engines):
            self._tried.append(tried)
            self._show_progress("trying the corpus")
            if on_tried is not None:
                on_tried(tried)
            ctrl_c.check()

    def _run_batches(self, reports: Reports, ctrl_c: CtrlC) -> None:
        now = time.perf_counter
        deadline = now() + self._seconds
        with closing(reports(self._plan, self._numbers(deadline, ctrl_c), lambda: deadline - now())) as stream:
            for report in stream:
                self._take(report)
                ctrl_c.check()
                if report.is_interrupted:
                    raise KeyboardInterrupt

    def _numbers(self, deadline: float, ctrl_c: CtrlC) -> Iterator[int]:
        """Yield the number of the next batch whenever a worker is free."""
        for number in itertools.count():
            if ctrl_c.is_pressed or time.perf_counter() >= deadline or not self._plan.share(number):
                return
            self._handed_out += 1
            yield number

    def _take(self, report: BatchReport) -> None:
        """Take a report into account, once per batch number, even if it is delivered twice."""
        if report.number in self._reports:
            return
        for failure in report.failures:
            if failure.group not in self._totals.failures:
                with suppress(UsageError):  # a full disk: `finish` tries again, and reports it
                    self._keeper.save(failure)
        self._reports[report.number] = report
        self._totals += report.totals
        self._show_progress("fuzzing")

    def _keep(self, between: CtrlC) -> None:
        """Shrink and save the failures; Ctrl-C ends shrinking, and the rest is saved unshrunk."""
        totals, failures = merged(self._reports.values())
        for failure in failures:
            self._show_progress(f"shrinking {failure.group.code}")
            count = totals.failures[failure.group]
            is_early = self._end is End.INTERRUPT or between.is_pressed
            each = self._keeper.finish(failure, count, shrinks=not is_early)
            self._end = End.INTERRUPT if is_early or each.is_interrupted else self._end
            self._kept.append(each)
        self._keeper.clear(self._kept)

    def _all(self) -> Totals:
        executions = [each for tried in self._tried for each in tried.executions]
        return batch_report(_OF_CORPUS, executions, 0.0).totals + self._totals

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start

    def _show_progress(self, doing: str) -> None:
        if self._on_progress is not None:
            self._on_progress(CampaignProgress(self._all(), self._elapsed(), doing))


# --- the summary -----------------------------------------------------------------------------------------------------


def summary(campaign: Campaign) -> str:
    """Return how much was run, the outcomes, and each failure with its file; the last line counts the failures."""
    return "\n".join([*_extent(campaign), "", *_found(campaign)])


def _extent(campaign: Campaign) -> list[str]:
    totals, seconds = campaign.totals, campaign.seconds
    rate = totals.count / seconds if seconds else 0.0
    why = ": ".join(filter(None, [campaign.end.value, campaign.note]))
    end = f"  ({why})" if campaign.end is not End.BUDGET else ""
    by_kind = sorted(totals.executions.items(), key=lambda each: (each[0][0], each[0][1].value))
    by_count = sorted(totals.outcomes.items(), key=lambda each: (-each[1], each[0]))
    return [
        f"{totals.count} executions in {seconds:.1f} s, {rate:.0f} a second, from seed {campaign.plan.seed}{end}",
        *(f"  {count:>7}  {kind} on {engine.value}" for (kind, engine), count in by_kind),
        "outcomes",
        *(f"  {count:>7}  {outcome}" for outcome, count in by_count),
    ]


def _found(campaign: Campaign) -> list[str]:
    lines = [line for kept in campaign.kept for line in (*str(kept).splitlines(), "")]
    old = sum(tried.state is CorpusState.FAILS for tried in campaign.corpus)
    again = f"{counted(old, 'failure')} reproduced from the corpus" if old else ""
    count = sum(not kept.is_known for kept in campaign.kept)
    new = counted(count, "new failure") if count else ""
    found = " and ".join(part for part in (new, again) if part)
    return [*lines, f"found: {found}" if found else "nothing found"]
