"""Run batches in several processes, or on the workers of a cluster, through joblib's backends.

A worker gets a new batch when it has finished its batch, so a campaign that is asked to stop ends within one batch. A
batch depends on its number only. If a worker dies, the cluster runs the worker's batch again elsewhere. The receiver
counts each batch number once, so no batch is lost or counted twice.
"""

import itertools
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import joblib
from joblib.externals import loky

from ddpsim import UsageError
from ddpsim.scenarios.fuzzing.batch import run_batch
from ddpsim.scenarios.fuzzing.campaign_report import BatchReport
from ddpsim.scenarios.fuzzing.plan import CampaignPlan

CONNECT_SECONDS = 10.0
"""How long a cluster may take to answer."""

Reports = Callable[[CampaignPlan, Iterable[int], Callable[[], float]], Generator[BatchReport, None, None]]
"""A function that takes batch numbers and the seconds left, runs each batch, and yields reports in any order."""


class WorkerBackend(str, Enum):
    """Where the batches run."""

    LOKY = "loky"
    """Processes on this machine."""
    DASK = "dask"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers run batches, and where. Raises UsageError for options that cannot be combined."""

    jobs: int | None = None
    """The number of workers. None means one worker on this machine, or all workers of a cluster."""
    backend: WorkerBackend = WorkerBackend.LOKY
    cluster: str = ""
    """The address of the cluster's scheduler."""

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs is {self.jobs}, expected 1 or more: say how many processes to use")
        if self.cluster and self.backend is WorkerBackend.LOKY:
            raise UsageError(
                f"cluster is {self.cluster!r}, but backend 'loky' runs on this machine: leave it out, or take "
                "--backend dask or ray"
            )
        if not self.cluster and self.backend is not WorkerBackend.LOKY:
            raise UsageError(
                f"backend is {self.backend.value!r} without a cluster, expected the address of one: give --cluster"
            )


class WorkersLostError(Exception):
    """Worker processes died, or the cluster disappeared, so no more reports can arrive."""


@contextmanager
def connect_workers(workers: Workers) -> Iterator[Reports]:
    """Yield the function that runs batches on the workers. Raises UsageError if a cluster cannot be reached."""
    if workers.backend is WorkerBackend.LOKY and workers.jobs in (None, 1):
        yield lambda plan, numbers, left: (run_batch(plan, number, left()) for number in numbers)
        return
    with _BACKENDS[workers.backend](workers):
        yield _run_batches_one_by_one if workers.backend is not WorkerBackend.RAY else _run_batches_in_waves


def _run_batches_one_by_one(
    plan: CampaignPlan, numbers: Iterable[int], left: Callable[[], float]
) -> Generator[BatchReport, None, None]:
    parallel = joblib.Parallel(return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1)
    try:
        with warnings.catch_warnings():  # joblib warns about results that Ctrl-C drops
            warnings.filterwarnings("ignore", ".*(not used|cancelled)", UserWarning)
            yield from parallel(joblib.delayed(_run_in_worker)(plan, number, left()) for number in numbers)
    except _worker_lost_errors() as error:
        raise WorkersLostError(" ".join(f"{type(error).__name__}: {error}".split())) from error


def _run_batches_in_waves(
    plan: CampaignPlan, numbers: Iterable[int], left: Callable[[], float]
) -> Generator[BatchReport, None, None]:
    """Run batches in groups of as many as there are workers. Wait for a whole group, because Ray's joblib backend
    cannot yield single results."""
    coming = iter(numbers)
    with joblib.Parallel(batch_size=1) as parallel:
        width = parallel._effective_n_jobs()
        while wave := list(itertools.islice(coming, width)):
            yield from parallel(joblib.delayed(_run_in_worker)(plan, number, left()) for number in wave)


def _run_in_worker(plan: CampaignPlan, number: int, seconds: float) -> BatchReport:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent process ends this one
    return run_batch(plan, number, seconds)


def _worker_lost_errors() -> tuple[type[BaseException], ...]:
    lost: list[type[BaseException]] = [loky.process_executor.TerminatedWorkerError, loky.BrokenProcessPool]
    try:
        from distributed import KilledWorker
        from distributed.comm import CommClosedError
    except ImportError:
        return tuple(lost)
    return (*lost, CommClosedError, KilledWorker)


@contextmanager
def _use_loky(workers: Workers) -> Iterator[None]:
    try:
        with joblib.parallel_config(backend="loky", n_jobs=workers.jobs):
            yield
    finally:
        loky.get_reusable_executor().shutdown(wait=True, kill_workers=True)


@contextmanager
def _use_dask(workers: Workers) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError:
        raise _backend_missing_error(WorkerBackend.DASK) from None
    try:
        client: Any = Client(workers.cluster, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise _no_answer_error(workers, error) from None
    with client:
        if not client.ncores():
            raise UsageError(f"cluster {workers.cluster!r} has no workers, expected one or more: start them")
        with joblib.parallel_config(backend="dask", client=client, n_jobs=workers.jobs or -1):
            yield


@contextmanager
def _use_ray(workers: Workers) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise _backend_missing_error(WorkerBackend.RAY) from None
    try:
        ray.init(address=workers.cluster, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise _no_answer_error(workers, error) from None
    try:
        register_ray()
        with joblib.parallel_config(backend="ray", n_jobs=workers.jobs or -1):
            yield
    finally:
        ray.shutdown()


_BACKENDS: dict[WorkerBackend, Callable[[Workers], AbstractContextManager[None]]] = {
    WorkerBackend.LOKY: _use_loky,
    WorkerBackend.DASK: _use_dask,
    WorkerBackend.RAY: _use_ray,
}


def _backend_missing_error(backend: WorkerBackend) -> UsageError:
    name = backend.value
    return UsageError(f"backend is {name!r}, but {name} is not installed: pip install 'ddpsim[{name}]'")


def _no_answer_error(workers: Workers, error: Exception) -> UsageError:
    why = " ".join(str(error).split()) or type(error).__name__
    return UsageError(
        f"cluster {workers.cluster!r} does not answer ({why}), expected the address of a running "
        f"{workers.backend.value} scheduler: start it, or correct the address"
    )
