"""Measure how long scenarios take. Rounds alternate between the cases, so machine load affects all of them equally."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddpsim import Result
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario, outcome_text
from ddpsim.scenarios.running.runner import run_scenario


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A scenario, with its world size, to measure on an engine."""

    scenario: Scenario
    engine: Engine


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run: the time from its start until the whole text of its result is formatted."""

    number: int
    case: MeasuredCase
    seconds: float
    result: Result


@dataclass(frozen=True, slots=True)
class Measurement:
    """All runs of a measured case."""

    case: MeasuredCase
    seconds: tuple[float, ...]
    """The time of each run, in the order of the runs."""
    events: int
    """The number of events in the trace of the last run."""
    results: tuple[Result, ...]
    """Results of the first run and of the runs that differ from it: a program may keep state between runs."""

    @property
    def median(self) -> float:
        """Median run time in seconds."""
        return statistics.median(self.seconds)

    @property
    def events_per_second(self) -> float:
        """Events in the trace divided by the median run time."""
        return self.events / self.median


def measure_runs(
    cases: Sequence[MeasuredCase],
    rounds: int,
    transport: str = "memory",
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[MeasuredRun]:
    """Run each case once per round. A first round is not counted, because it imports modules and warms up."""
    for number in range(rounds + 1):
        for index, case in enumerate(cases):
            start = clock()
            result = run_scenario(case.scenario, case.engine, transport=transport)
            str(result)
            seconds = clock() - start
            if number:
                yield MeasuredRun(index, case, seconds, result)


def collect_measurements(samples: Iterable[MeasuredRun]) -> list[Measurement]:
    """Return one measurement per case, in the order of the cases."""
    measured: dict[int, Measurement] = {}
    for sample in samples:
        before = measured.get(sample.number, Measurement(sample.case, (), 0, ()))
        is_new = outcome_text(sample.result) not in map(outcome_text, before.results)
        measured[sample.number] = Measurement(
            sample.case,
            (*before.seconds, sample.seconds),
            len(sample.result.trace.events),
            (*before.results, sample.result) if is_new else before.results,
        )
    return list(measured.values())
