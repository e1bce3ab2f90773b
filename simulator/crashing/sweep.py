"""The sweep: runs of all points, on all cores, and what came of them."""

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import Any, NamedTuple

import torch

from ddpsim.simulator.crashing.judging import first_difference, has_resumed, judge, notes_of, other_loss, torn_read
from ddpsim.simulator.crashing.points import points_of
from ddpsim.simulator.crashing.runs import CrashRuns
from ddpsim.simulator.crashing.values import BadPoint, CrashCode, CrashSweep, Diaries, Point
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.explorer import report_progress
from ddpsim.simulator.faults import How, Strike
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import count_with_noun

_FEWEST_POINTS = 12
"""A process of its own takes as long to begin as some points do."""

_LONGER = 10
"""How many times as long as undisturbed a disturbed run may take."""


class _Tried(NamedTuple):
    """What came of one point."""

    point: Point
    bad: tuple[BadPoint, ...] = ()
    has_resumed: bool | None = None
    rejected: str = ""
    """The name of a half-written file that a rank read without harm."""
    other_loss: str = ""
    """Of what has no other fault: how the last printed loss differs."""
    undecided: tuple[str, str] = ("", "")
    """The code and summary of a finding that says nothing."""


def crash(
    program: Any,
    world_size: int,
    *,
    seconds: float = 60.0,
    points: Sequence[Sequence[Strike]] = (),
    on_progress: Callable[[tuple[int, int]], object] | None = None,
    **options: Any,
) -> CrashSweep:
    """Disturb a program, a command as for `simulate_program`, at each of its operations, and judge what comes of it.

    `seconds` is a budget: when it runs out, the points left are not tried. `points`: only these are tried, each given
    by its strikes. Options are those of `simulate`.

    Raises UsageError as `simulate` does, for faults, max_restarts, a point that the program does not have, and a
    program that fails undisturbed.
    """
    began = time.monotonic()
    with CrashRuns(program, world_size, options, seconds) as runs:
        whole = runs.run(())
        runs.seconds = _LONGER * (time.monotonic() - began)
        if whole.result.verdict is not Verdict.PASS:
            code = whole.result.findings[0].code
            raise UsageError(f"the undisturbed run finds {code}, expected a pass: see `ddpsim run`")
        again = runs.run(())
        if has_cache := bool(first_difference(whole.first, again.first)):  # the first run may have filled a cache
            whole, again = again, runs.run(())
        if unstable := first_difference(whole.first, again.first):
            return CrashSweep(0, 0, 0, unstable=unstable, seconds=time.monotonic() - began)
        possible, those = points_of(whole.first, options.get("nnodes") or 1, points)
        share = _Share(those, whole.first, began + seconds, program, world_size, options, runs.seconds, has_cache)
        tried = _try_on_all_cores(share, runs, on_progress)
        notes = notes_of(whole.first, runs.folder, {each.has_resumed for each in tried})
    decided = [each for each in tried if not each.undecided[0]]
    left = Counter(point.how for point in those) - Counter(each.point.how for each in tried)
    place = {point: number for number, point in enumerate(those)}
    return CrashSweep(
        possible,
        len(those),
        len(decided),
        tuple(bad for each in sorted(decided, key=lambda each: place[each.point]) for bad in each.bad),
        (*_notes_of_points(tried), *notes),
        len(tried) - len(decided),
        {how: left[how] for how in How if left[how]},
        seconds=time.monotonic() - began,
    )


class _Share(NamedTuple):
    """The points to try, of which each process takes some."""

    points: list[Point]
    whole: Diaries
    until: float
    program: Any
    world_size: int
    options: Mapping[str, Any]
    run_seconds: float
    has_cache: bool
    """True if the first run in a folder may fill a cache elsewhere, for the path of the folder."""

    def try_points(self, runs: CrashRuns, number: int, of: int) -> Iterator[_Tried]:
        """Try each `of`-th point until the time is over."""
        ordered = sorted(self.points, key=lambda each: [*How].index(each.how))
        for point in ordered[number::of]:
            if time.monotonic() > self.until:
                return
            yield _try_point(point, runs, self.whole, may_skip=not self.options.get("private_disk"))


def _try_on_all_cores(
    share: _Share, runs: CrashRuns, on_progress: Callable[[tuple[int, int]], object] | None
) -> list[_Tried]:
    """Try the points, in this process and in forks of it, each with servers and a folder of its own."""
    cores = len(os.sched_getaffinity(0)) if len(share.points) >= _FEWEST_POINTS else 1
    tried = []
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(max(1, cores - 1), fork, initializer=gc.freeze) as others:  # as in explorations
        coming = [others.submit(_try_elsewhere, share, number, cores) for number in range(1, cores)]
        for each in share.try_points(runs, 0, cores):
            tried.append(each)
            done = min(len(tried) * cores, len(share.points))
            on_progress = report_progress(on_progress, (done, len(share.points)))
        for number, other in enumerate(coming, 1):
            try:
                tried += other.result()
            except BrokenExecutor:  # the system has killed it, as where memory is short: what it tried is lost
                tried += share.try_points(runs, number, cores)
    return tried


def _try_elsewhere(share: _Share, number: int, of: int) -> list[_Tried]:
    torch.set_num_threads(1)  # a fork lacks the threads of its parent
    with CrashRuns(share.program, share.world_size, share.options, share.run_seconds) as runs:
        if share.has_cache:
            runs.run(())
        return list(share.try_points(runs, number, of))


def _try_point(point: Point, runs: CrashRuns, whole: Diaries, *, may_skip: bool) -> _Tried:
    attempts = runs.run(point.strikes, may_skip=may_skip)
    is_known = attempts.result.verdict is not Verdict.UNKNOWN
    if is_known and attempts.is_copied and any(judge(attempts, whole)):
        attempts = runs.run(point.strikes)  # so that the result is its own
    result = attempts.result
    if result.verdict is Verdict.UNKNOWN:  # which says nothing
        worst = next(each for each in result.findings if each.code.verdict is Verdict.UNKNOWN)
        return _Tried(point, undecided=(worst.code.value, worst.summary))
    found = [*judge(attempts, whole)]
    if any(code is CrashCode.HALF_CHECKPOINT for code, _ in found):
        found = [*judge(attempts, whole, runs.run([_when_complete(point)], may_skip=may_skip))]
    bad = tuple(BadPoint(point, *each, result) for each in found)
    torn, reader = torn_read(attempts)
    is_harmless = reader is not None and all(each.code is CrashCode.LOST_CHECKPOINT for each in bad)
    rejected = os.path.basename(torn) if is_harmless else ""
    return _Tried(point, bad, has_resumed(attempts), rejected, "" if bad else other_loss(attempts, whole))


def _when_complete(point: Point) -> Strike:
    """Return the strike that kills the rank as soon as the file is complete that a point leaves half written."""
    (torn,) = point.strikes
    return Strike(torn.rank, torn.before_operation + (torn.how is How.FULL))


def _notes_of_points(tried: Sequence[_Tried]) -> Iterator[str]:
    undecided = [each.undecided for each in tried if each.undecided[0]]
    for code, count in Counter(code for code, _ in undecided).items():
        yield f"{count_with_noun(count, 'point')} not decided: {dict(reversed(undecided))[code]}"
    if others := [each for each in tried if each.other_loss]:
        after = f"with the same parameters after {count_with_noun(len(others), 'point')}"
        yield f"{others[0].other_loss}, {after}: so it is with a mean over an attempt, or a buffer that is not restored"
    for name, count in Counter(each.rejected for each in tried if each.rejected).items():
        yield f"{name} was read half written after {count_with_noun(count, 'point')}; the end was the same"
