"""Run the batches of a campaign in this process, in several, or on the workers of a cluster.

A worker gets a new batch when it has finished its batch, so a campaign that is asked to stop ends within one batch. A
batch depends on its number only. If a worker of a cluster dies, the cluster runs the worker's batch again elsewhere.
The receiver counts each batch number once, so no batch is lost or counted twice.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial

from ddpsim.scenarios.fuzzing.batch import run_batch
from ddpsim.scenarios.fuzzing.campaign_report import BatchReport
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.simulator.exploration.workers import Pool, Workers, connect_workers, raise_if_lost

Reports = Callable[[CampaignPlan, Iterable[int], Callable[[], float]], Generator[BatchReport, None, None]]
"""A function that takes batch numbers and the seconds left, runs each batch, and yields reports in any order."""


@contextmanager
def reports_of_workers(workers: Workers) -> Iterator[Reports]:
    """Yield the function that runs batches on the workers. Raises UsageError if a cluster cannot be reached."""
    if workers.is_this_process:
        yield lambda plan, numbers, left: (run_batch(plan, number, left()) for number in numbers)
        return
    with connect_workers(workers) as pool:
        yield partial(_run_batches, pool)


def _run_batches(
    pool: Pool, plan: CampaignPlan, numbers: Iterable[int], left: Callable[[], float]
) -> Generator[BatchReport, None, None]:
    coming, running = iter(numbers), set[Future[BatchReport]]()
    while True:
        for number in itertools.islice(coming, pool.width - len(running)):
            running.add(pool.submit(run_batch, plan, number, left()))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        with raise_if_lost():
            yield from [future.result() for future in done]
