"""Runs an exploration in several processes, with exactly the executions and the order that one process has.

A strategy gives its next part, a strategy, too, with `next_part(most)`: it ends by itself, or after some `most`
executions, and what it does depends on its `key` only. `absorb(end)` goes on behind the executions of the part, which
has come to the state `end`; `skip(part)` goes on as if the part had no effect on what follows. So a copy of the
strategy tells which parts probably come, and workers run these, too. What they did is kept until the strategy comes to
the part, and absorbed then, in order, if a part with that key was run. So the workers' number and speed decide only
what is run in vain. Results are not sent: what is reported is run again (explorer.py).
"""

import pickle
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from ddpsim.simulator.budget import Budget
from ddpsim.simulator.exploration.explorer import Execution, OpenRun, run_policy
from ddpsim.simulator.exploration.workers import Pool, Workers, WorkersLostError, connect_workers, raise_if_lost
from ddpsim.simulator.runtime.gc_freeze import freeze_existing_objects
from ddpsim.simulator.verdict import Verdict

_SECONDS_OF_TASK = 0.5
_MOST_EXECUTIONS = 64
"""The size of a task."""
_MOST_AHEAD = 200
"""How many parts are looked at that come next: those of the workers, and others that were cut off before them."""
_MOST_TRIES = 2
"""How often a task is run again of which the worker died."""


@dataclass(slots=True)
class PartReport:
    """What a worker did of a part."""

    executions: list[Execution | None]
    """None stands for a run that does not count."""
    end: Any
    """The state of the part behind them."""
    seconds: float


def run_parts(open_run: OpenRun, parts: list[Any], most: int, budget: Budget, *, keep_going: bool) -> list[PartReport]:
    """Run parts one after another, with some `most` executions in all; the last ones may be left out."""
    reports: list[PartReport] = []
    deadline, left = time.monotonic() + budget.seconds, most
    with open_run() as run, freeze_existing_objects(0):
        for part in parts:
            start, done = time.monotonic(), list[Execution | None]()
            while (policy := part.next_policy()) is not None:
                seconds = deadline - time.monotonic()
                last = done[-1] if done else None
                if seconds <= 0 or (
                    last is not None and (left <= 0 or (last.verdict is Verdict.FAIL and not keep_going))
                ):
                    break  # never behind a run that does not count: it may have to be repeated
                execution = run_policy(part, run, policy, budget, seconds)
                done.append(execution and replace(execution, result=None))
                left -= execution is not None
            reports.append(PartReport(done, part, time.monotonic() - start))
            if left <= 0:
                break
    return reports


@contextmanager
def executions_of_workers(
    workers: Workers, open_run: OpenRun, budget: Budget, keep_going: bool
) -> Iterator["ExecutionsOfWorkers"]:
    """Connect the workers, and yield the executions of an exploration."""
    with connect_workers(workers) as pool:
        yield ExecutionsOfWorkers(pool, open_run, budget, keep_going=keep_going)


def _copied(strategy: Any) -> Any:
    return pickle.loads(pickle.dumps(strategy))  # ten times as fast as deepcopy


class ExecutionsOfWorkers:
    """The executions of an exploration, from workers."""

    def __init__(self, pool: Pool, open_run: OpenRun, budget: Budget, *, keep_going: bool) -> None:
        self._pool = pool
        self._run = partial(run_parts, open_run, keep_going=keep_going)
        self._budget = Budget(*(getattr(budget, name) for name in Budget.__slots__))  # one that shows stays here
        self._keep_going = keep_going
        self._deadline = time.monotonic() + budget.seconds
        self._kept: list[tuple[Any, PartReport | None]] = []
        """Each part that is under way, or has run and is not absorbed, with its report."""
        self._tasks: dict[Future[list[PartReport]], tuple[list[Any], int]] = {}
        """By task under way, its parts, and how often it was tried before."""
        self._rest: Iterator[Execution | None] = iter(())
        self._seconds, self._count = 0.0, 0
        self.lost = ""
        """How a worker was lost last, if one was."""

    def in_order(self, strategy: Any) -> Iterator[Execution | None]:
        """Yield each execution, with None before it and in place of a run that does not count."""
        while (part := strategy.next_part(self._most)) is not None:
            yield None  # the caller looks at its limits before we wait
            while (report := self._find(part)[1]) is None:
                self._hand_out(strategy)
                self._collect()
            self._kept = [each for each in self._kept if each[1] is not report]
            strategy.absorb(report.end)
            self._rest = iter(report.executions)
            for execution in self._rest:
                yield None
                yield execution

    def out_of_order(self, strategy: Any, most: int) -> Iterator[Execution]:
        """Yield what has run already of what comes later, when there is no time for what comes before it."""
        reports = [report for _, report in islice(self._look_ahead(strategy), _MOST_AHEAD) if report is not None]
        return islice(filter(None, chain(self._rest, *(report.executions for report in reports))), most)

    @property
    def _most(self) -> int:
        return max(1, min(_MOST_EXECUTIONS, int(_SECONDS_OF_TASK * self._count / (self._seconds or 1))))

    def _find(self, part: Any) -> tuple[Any, PartReport | None]:
        return next((each for each in self._kept if each[0].key == part.key), (None, None))

    def _look_ahead(self, strategy: Any) -> Iterator[tuple[Any, PartReport | None]]:
        ahead = _copied(strategy)
        while (part := ahead.next_part(self._most)) is not None:
            kept, report = self._find(part)
            yield (part, None) if kept is None else (None, report)
            if report is None:
                ahead.skip(kept or part)
            elif not self._keep_going and any(each and each.verdict is Verdict.FAIL for each in report.executions):
                return
            else:
                ahead.absorb(_copied(report.end))

    def _hand_out(self, strategy: Any) -> None:
        free = self._pool.width - len(self._tasks)
        most = strategy.parts_of_task * free
        new = [part for part, _ in islice(self._look_ahead(strategy), _MOST_AHEAD) if part is not None][:most]
        share = max(1, -(-len(new) // max(1, free)))
        for first in range(0, len(new), share):
            task = new[first : first + share]
            self._kept += [(part, None) for part in task]
            self._submit(task)

    def _submit(self, task: list[Any], tries: int = 0) -> None:
        budget = replace(self._budget, seconds=max(self._deadline - time.monotonic(), 0.001))
        self._tasks[self._pool.submit(self._run, task, self._most, budget)] = task, tries

    def _collect(self) -> None:
        done, _ = wait(self._tasks, return_when=FIRST_COMPLETED)
        for future in done:
            task, tries = self._tasks.pop(future)
            try:
                with raise_if_lost():
                    reports = future.result()
            except WorkersLostError as error:
                if tries == _MOST_TRIES or isinstance(error.__cause__, CancelledError):
                    raise
                self.lost = str(error)
                self._submit(task, tries + 1)
                continue
            self._kept = [each for each in self._kept if each[0] not in task]
            self._kept += zip(task, reports, strict=False)
            self._count += sum(len(report.executions) for report in reports)
            self._seconds += sum(report.seconds for report in reports)
