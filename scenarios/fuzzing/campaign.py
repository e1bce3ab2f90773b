"""A fuzzing campaign: run the corpus, then batch after batch within the budget; then shrink and save the failures."""

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
from ddpsim.scenarios.fuzzing.batch import use_campaign_settings
from ddpsim.scenarios.fuzzing.campaign_report import BatchReport, CampaignTotals, make_batch_report, merge_batch_reports
from ddpsim.scenarios.fuzzing.corpus import (
    CorpusFileResult,
    CorpusFileState,
    FailureSaver,
    SavedFailure,
    check_corpus_folder,
    run_corpus_files,
)
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.workers import Reports, reports_of_workers
from ddpsim.simulator.ctrl_c import CtrlCGuard
from ddpsim.simulator.exploration.workers import Workers, WorkersLostError
from ddpsim.simulator.wording import count_with_noun

_CORPUS_BATCH = -1
"""The batch number under which runs of the corpus (saved failures) are reported."""


class CampaignEnd(Enum):
    """The reason why a campaign ended."""

    BUDGET = "the budget is used up"
    INTERRUPT = "interrupted"
    LOST = "the workers were lost"


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """The state of a running campaign, for a progress display."""

    totals: CampaignTotals
    seconds: float
    doing: str

    @property
    def executions_per_second(self) -> float:
        """Executions per second so far."""
        return self.totals.execution_count / self.seconds if self.seconds else 0.0


OnProgress = Callable[[CampaignProgress], object]


@dataclass(frozen=True, slots=True)
class Campaign:
    """The result of a campaign."""

    plan: CampaignPlan
    totals: CampaignTotals
    """The counts of executions and outcomes, including the runs of the corpus."""
    corpus: tuple[CorpusFileResult, ...]
    kept: tuple[SavedFailure, ...]
    seconds: float
    end: CampaignEnd
    note: str = ""
    """A note on how worker processes were lost, or how many batches Ctrl-C dropped."""
    standing: str = ""
    """Where each rank of the run stood that Ctrl-C ended; "" if it ended none."""

    @property
    def has_failures(self) -> bool:
        """Return True if a scenario of the corpus or of a batch failed."""
        return bool(self.kept) or any(tried.state is CorpusFileState.FAILS for tried in self.corpus)

    @property
    def interrupted(self) -> bool:
        """Return True if Ctrl-C ended the campaign."""
        return self.end is CampaignEnd.INTERRUPT


def run_campaign(
    plan: CampaignPlan,
    *,
    seconds: float = 60.0,
    workers: Workers | None = None,
    corpus: Path = CORPUS,
    on_tried: Callable[[CorpusFileResult], object] | None = None,
    on_progress: OnProgress | None = None,
) -> Campaign:
    """Fuzz for a number of seconds, or for the number of executions in the plan.

    The batches that a plan draws do not depend on the number of workers. Ctrl-C ends the campaign early and keeps the
    failures. Raises UsageError for an empty budget, a corpus that is no folder, and a cluster that does not answer.
    """
    check_campaign_budget(plan, seconds)
    check_corpus_folder(corpus)
    with use_campaign_settings(), reports_of_workers(workers or Workers()) as reports:
        return _RunningCampaign(plan, seconds, corpus, on_progress).run_to_end(reports, on_tried)


def check_campaign_budget(plan: CampaignPlan, seconds: float) -> None:
    """Raise UsageError unless the numbers of seconds and executions are above 0, and the seed is not negative."""
    if not (isfinite(seconds) and seconds > 0):
        raise UsageError(f"seconds is {seconds:g}, expected a number above 0: say how long to fuzz")
    if plan.executions is not None and plan.executions < 1:
        raise UsageError(f"executions is {plan.executions}, expected 1 or more: say how many runs to make")
    if plan.seed < 0:
        raise UsageError(f"seed is {plan.seed}, expected 0 or more: batch i draws from seed + i")


class _RunningCampaign:
    def __init__(self, plan: CampaignPlan, seconds: float, corpus: Path, on_progress: OnProgress | None) -> None:
        self._plan = plan
        self._seconds = seconds
        self._corpus = corpus
        self._on_progress = on_progress
        self._start = time.perf_counter()
        self._tried: list[CorpusFileResult] = []
        self._reports: dict[int, BatchReport] = {}
        self._handed_out = 0
        self._totals = CampaignTotals()
        self._keeper = FailureSaver(corpus, plan)
        self._kept: list[SavedFailure] = []
        self._end = CampaignEnd.BUDGET
        self._note = ""
        self._standing = ""

    def run_to_end(self, reports: Reports, on_tried: Callable[[CorpusFileResult], object] | None) -> Campaign:
        """Run the corpus and the batches, then shrink and save the failures."""
        with CtrlCGuard(raises=False) as between:
            self._run_corpus_and_batches(reports, on_tried)
            self._save_failures(between)
        if between.is_pressed:
            self._end = CampaignEnd.INTERRUPT
        return Campaign(
            self._plan,
            self._total_counts(),
            tuple(self._tried),
            tuple(self._kept),
            self._elapsed_seconds(),
            self._end,
            self._note,
            self._standing,
        )

    def _run_corpus_and_batches(self, reports: Reports, on_tried: Callable[[CorpusFileResult], object] | None) -> None:
        try:
            with CtrlCGuard() as ctrl_c:
                self._run_corpus(on_tried, ctrl_c)
                self._run_batches(reports, ctrl_c)
        except WorkersLostError as error:
            self._end, self._note = CampaignEnd.LOST, str(error)
        if ctrl_c.is_pressed:
            dropped = self._handed_out - len(self._reports)  # 0 in one process, which reports the batch that it ends
            note = f"{count_with_noun(dropped, 'batch', 'batches')} under way dropped" if dropped else ""
            self._end, self._note = CampaignEnd.INTERRUPT, note

    def _run_corpus(self, on_tried: Callable[[CorpusFileResult], object] | None, ctrl_c: CtrlCGuard) -> None:
        for tried in run_corpus_files(self._corpus, self._plan.engines):
            self._tried.append(tried)
            self._show_progress("trying the corpus")
            if on_tried is not None:
                on_tried(tried)
            ctrl_c.raise_if_pressed()

    def _run_batches(self, reports: Reports, ctrl_c: CtrlCGuard) -> None:
        now = time.perf_counter
        deadline = now() + self._seconds
        numbers = self._next_batch_numbers(deadline, ctrl_c)
        with closing(reports(self._plan, numbers, lambda: deadline - now())) as stream:
            for report in stream:
                self._add_batch_report(report)
                ctrl_c.raise_if_pressed()
                self._standing = report.standing
                if report.is_interrupted:
                    raise KeyboardInterrupt

    def _next_batch_numbers(self, deadline: float, ctrl_c: CtrlCGuard) -> Iterator[int]:
        """Yield the number of the next batch whenever a worker is free."""
        for number in itertools.count():
            if ctrl_c.is_pressed or time.perf_counter() >= deadline or not self._plan.executions_of_batch(number):
                return
            self._handed_out += 1
            yield number

    def _add_batch_report(self, report: BatchReport) -> None:
        """Add the report of a batch to the totals. A report delivered twice counts once, by its batch number."""
        if report.number in self._reports:
            return
        for failure in report.failures:
            if failure.group not in self._totals.failures:
                with suppress(UsageError):  # a full disk: `finish` tries again, and reports it
                    self._keeper.save_unshrunk(failure)
        self._reports[report.number] = report
        self._totals += report.totals
        self._show_progress("fuzzing")

    def _save_failures(self, between: CtrlCGuard) -> None:
        """Shrink and save the failures. Ctrl-C ends the shrinking, and the remaining failures are saved unshrunk."""
        totals, failures = merge_batch_reports(self._reports.values())
        for failure in failures:
            self._show_progress(f"shrinking {failure.group.code}")
            count = totals.failures[failure.group]
            is_early = self._end is CampaignEnd.INTERRUPT or between.is_pressed
            each = self._keeper.shrink_and_save(failure, count, shrinks=not is_early)
            self._end = CampaignEnd.INTERRUPT if is_early or each.is_interrupted else self._end
            self._kept.append(each)
        self._keeper.delete_unshrunk_files(self._kept)

    def _total_counts(self) -> CampaignTotals:
        executions = [each for tried in self._tried for each in tried.executions]
        return make_batch_report(_CORPUS_BATCH, executions, 0.0).totals + self._totals

    def _elapsed_seconds(self) -> float:
        return time.perf_counter() - self._start

    def _show_progress(self, doing: str) -> None:
        if self._on_progress is not None:
            self._on_progress(CampaignProgress(self._total_counts(), self._elapsed_seconds(), doing))


def campaign_summary(campaign: Campaign) -> str:
    """Return the summary of a campaign: how much was run, the outcomes, and each failure with its file."""
    standing = [campaign.standing, ""] if campaign.standing else []
    return "\n".join([*standing, *_count_lines(campaign), "", *_failure_lines(campaign)])


def _count_lines(campaign: Campaign) -> list[str]:
    totals, seconds = campaign.totals, campaign.seconds
    rate = totals.execution_count / seconds if seconds else 0.0
    why = ": ".join(filter(None, [campaign.end.value, campaign.note]))
    end = f"  ({why})" if campaign.end is not CampaignEnd.BUDGET else ""
    by_kind = sorted(totals.executions.items(), key=lambda each: (each[0][0], each[0][1].value))
    by_count = sorted(totals.outcomes.items(), key=lambda each: (-each[1], each[0]))
    return [
        f"{totals.execution_count} executions in {seconds:.1f} s, {rate:.0f} a second, "
        f"from seed {campaign.plan.seed}{end}",
        *(f"  {count:>7}  {kind} on {engine.value}" for (kind, engine), count in by_kind),
        "outcomes",
        *(f"  {count:>7}  {outcome}" for outcome, count in by_count),
    ]


def _failure_lines(campaign: Campaign) -> list[str]:
    lines = [line for kept in campaign.kept for line in (*str(kept).splitlines(), "")]
    old = sum(tried.state is CorpusFileState.FAILS for tried in campaign.corpus)
    again = f"{count_with_noun(old, 'failure')} reproduced from the corpus" if old else ""
    count = sum(not kept.is_known for kept in campaign.kept)
    new = count_with_noun(count, "new failure") if count else ""
    found = " and ".join(part for part in (new, again) if part)
    return [*lines, f"found: {found}" if found else "nothing found"]
