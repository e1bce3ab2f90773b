"""Worker processes on this machine, through joblib's loky, or the workers of a Dask or Ray cluster.

All three are used as executors: a task is a function with its arguments, and its result comes with a future. A cluster
runs the task of a worker that dies again elsewhere; on this machine the caller decides.
"""

import gc
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from typing import Any

from ddpsim.simulator.errors import UsageError

CONNECT_SECONDS = 10.0
"""How long a cluster may take to answer."""


class WorkerBackend(str, Enum):
    """Where the workers are."""

    LOKY = "loky"
    """Processes on this machine."""
    DASK = "dask"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers there are, and where. Raises UsageError for options that cannot be combined."""

    jobs: int | None = None
    """The number of workers. None means one worker on this machine, or all workers of a cluster."""
    backend: WorkerBackend = WorkerBackend.LOKY
    cluster: str = ""
    """The address of the cluster's scheduler."""
    within: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """The context in which executions are run, in whichever process; it takes and yields what runs one."""

    def __post_init__(self) -> None:
        if self.jobs is not None and (not isinstance(self.jobs, int) or self.jobs < 1):
            raise UsageError(f"jobs is {self.jobs!r}, expected 1 or more: say how many processes to use")
        if self.cluster and self.backend is WorkerBackend.LOKY:
            raise UsageError(
                f"cluster is {self.cluster!r}, but backend 'loky' runs on this machine: leave it out, or take "
                "--backend dask or ray"
            )
        if not self.cluster and self.backend is not WorkerBackend.LOKY:
            raise UsageError(
                f"backend is {self.backend.value!r} without a cluster, expected the address of one: give --cluster"
            )

    @property
    def is_this_process(self) -> bool:
        """Return whether this process itself does the work."""
        return self.backend is WorkerBackend.LOKY and self.jobs in (None, 1)


class WorkersLostError(Exception):
    """Worker processes died, or the cluster disappeared, so that results cannot arrive."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers, while they are connected."""

    width: int
    """How many tasks run at a time."""
    submit_task: Callable[..., "Future[Any]"]
    """A function that takes a function and its arguments, and has a worker call it."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Hand a task to a worker. Raises WorkersLostError if none is left."""
        with raise_if_lost():
            return self.submit_task(_call_in_worker, function, *arguments)


def _call_in_worker(function: Callable[..., Any], *arguments: Any) -> Any:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent process ends this one
    with _ONE_AT_A_TIME:
        return function(*arguments)


_ONE_AT_A_TIME = threading.Lock()
# A cluster worker may have several threads, but a process runs one simulation at a time.


def check_can_be_sent(work: object, what: str) -> None:
    """Raise UsageError if other processes cannot be given this function."""
    from joblib.externals.loky.backend.reduction import dumps

    try:
        dumps(work)
    except Exception as error:  # of the user's own __reduce__, too
        why = " ".join(str(error).split())
        raise UsageError(f"{what} cannot be sent to other processes ({why}): leave out jobs") from None


@contextmanager
def raise_if_lost() -> Iterator[None]:
    """Raise WorkersLostError in this block if workers died or the cluster disappeared."""
    from joblib.externals import loky

    lost: list[type[BaseException]] = [loky.process_executor.TerminatedWorkerError, loky.BrokenProcessPool]
    with suppress(ImportError):
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        lost += [CommClosedError, KilledWorker]
    try:
        yield
    except CancelledError as error:  # so ends what was under way on a cluster that is gone
        raise WorkersLostError("the cluster does not answer any more") from error
    except tuple(lost) as error:
        codes = re.search(r"exit codes of the workers are {(.*?)}", str(error))
        how = " ".join(f"{type(error).__name__}: {error}".split()) if codes is None else f"ended by {codes[1]}"
        raise WorkersLostError(how) from error


@contextmanager
def connect_workers(workers: Workers) -> Iterator[Pool]:
    """Yield the workers, and end or leave them afterwards. Raises UsageError if a cluster cannot be reached."""
    with _BACKENDS[workers.backend](workers) as pool, warnings.catch_warnings():
        # loky ends a worker that needs much more memory than before; torch's threads wait, and no fork needs them.
        warnings.filterwarnings("ignore", "A worker stopped|.*multi-threaded, use of fork")
        yield pool


@contextmanager
def _use_loky(workers: Workers) -> Iterator[Pool]:
    from joblib.externals import loky

    width = workers.jobs or 1
    # A fork has all modules; importing torch takes some seconds. A fork of several threads might wait for a lock.
    can_fork = threading.active_count() == 1 and "fork" in get_all_start_methods()
    # Nor may a worker end what this process has left: that may wait for threads, which the fork does not have.
    context = get_context("fork") if can_fork else None
    make_executor = partial(loky.ProcessPoolExecutor, width, context=context, initializer=gc.freeze)
    executors = [make_executor()]

    def submit(*task: Any) -> "Future[Any]":
        try:
            future: Future[Any] = executors[0].submit(*task)
        except loky.BrokenProcessPool:
            executors[0] = make_executor()
            future = executors[0].submit(*task)
        return future

    try:
        yield Pool(width, submit)
    finally:
        executors[0].shutdown(wait=True, kill_workers=True)


@contextmanager
def _use_dask(workers: Workers) -> Iterator[Pool]:
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
        yield Pool(workers.jobs or sum(client.ncores().values()), client.get_executor(pure=False).submit)


@contextmanager
def _use_ray(workers: Workers) -> Iterator[Pool]:
    try:
        import ray
    except ImportError:
        raise _backend_missing_error(WorkerBackend.RAY) from None
    try:
        ray.init(address=workers.cluster, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise _no_answer_error(workers, error) from None

    def submit(function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        future: Future[Any] = ray.remote(function).remote(*arguments).future()
        return future

    try:
        yield Pool(workers.jobs or int(ray.cluster_resources()["CPU"]), submit)
    finally:
        ray.shutdown()


_BACKENDS: dict[WorkerBackend, Callable[[Workers], AbstractContextManager[Pool]]] = {
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
