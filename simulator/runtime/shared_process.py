"""Detects changes that ranks as threads make to the process that they share. Real ranks have a process each.

During a run, these are replaced by functions that also record their use in ranks: `os.chdir`, `signal.signal`, the
start of multiprocessing processes (except DataLoader workers), and reads of RANK, LOCAL_RANK and WORLD_SIZE from
`os.environ` during the import of the program's own modules: a module is imported once, for all ranks. Libraries that
keep a rank's state in their modules are known by name; functions beside the program that cache the rank, by their code.

The caller's thread pool executors are replaced inside ranks by copies, one for each rank, as forked processes would
have them. If ranks shared one, the first rank to end would shut it down for all, and its workers, which are not
simulated, would run the ranks' work at any time.

`os.getpid` returns another number in each rank, as in processes: the id of a thread, to which signals can be sent and
for which /proc has a folder, as for a process.
"""

import copy
import dis
import inspect
import multiprocessing.process
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from ddpsim.simulator.calls import NOWHERE, Site
from ddpsim.simulator.diagnosis.hazards import SharedState, shared_process_finding
from ddpsim.simulator.runtime.call_sites import current_user_site, user_site_of
from ddpsim.simulator.runtime.replaced import ReplacedAttributes, on_ranks
from ddpsim.simulator.runtime.threads.waiting import is_importing_project_module
from ddpsim.simulator.verdict import Finding

_OF_A_RANK = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
_LIBRARIES = frozenset({"accelerate", "ignite", "lightning", "pytorch_lightning", "transformers"})
_KNOW_ONE_PROCESS = sys.stdlib_module_names | {"torch", "ddpsim"}
"""The packages that compare process ids, some of which they read before the run."""
_LOOKS_UP: CodeType = type(os.environ).__getitem__.__code__
_PROCESS: Any = multiprocessing.process.BaseProcess
_PLAIN_QUEUE = queue.SimpleQueue
"""The type of an executor's work queue if it was made outside of ranks. A rank's executor has a simulated queue."""


class SharedProcessWatch:
    """Records what the ranks of one run do to their common process."""

    def __init__(self, running_rank: Callable[[], int | None], program: Any) -> None:
        """`running_rank` returns the rank of the calling thread; None outside ranks."""
        self._running_rank = running_rank
        self._loaded_before = sys.modules.keys() & _LIBRARIES
        self._program = inspect.unwrap(program)
        self._used = _libraries_used_by(self._program)
        self._noted: dict[tuple[SharedState, Site, str], set[int]] = {}
        self._replaced = ReplacedAttributes()
        self._process_ids: dict[int, int] = {}
        """By rank, except rank 0: the number that the rank's program takes for the id of its process."""
        self._executors: dict[tuple[int, int], tuple[ThreadPoolExecutor, ThreadPoolExecutor]] = {}
        """The copies of thread pool executors: (rank, id of the original) -> (the original, kept alive; the copy)."""

    def install(self) -> None:
        """Replace the functions whose use is recorded; the module's docstring lists them."""
        for owner, name, replacement in (
            (os, "getpid", self._getpid),
            (os, "chdir", partial(self._record_and_call, SharedState.FOLDER)),
            (signal, "signal", partial(self._record_and_call, SharedState.SIGNALS)),
            (_PROCESS, "start", self._start_process),
            (os.environ, "encodekey", self._encode_key),
            (ThreadPoolExecutor, "submit", self._call_on_own_executor),
            (ThreadPoolExecutor, "shutdown", self._call_on_own_executor),
        ):
            self._replaced.replace_attribute(owner, name, on_ranks(self, replacement))

    def uninstall(self) -> None:
        """Restore the original functions. May be called twice."""
        self._replaced.restore_attributes()
        self._executors.clear()

    def findings(self) -> list[Finding]:
        """Return the findings. The same action at the same line is one finding for all ranks."""
        noted = [
            shared_process_finding(what, tuple(sorted(ranks)), site, of)
            for (what, site, of), ranks in self._noted.items()
        ]
        libraries = [(SharedState.LIBRARY, name) for name in sorted(self._used_libraries())]
        caches = [(SharedState.CACHE, name) for name in _caches_of_ranks(self._program)]
        return noted + [shared_process_finding(what, (), NOWHERE, name) for what, name in libraries + caches]

    def _used_libraries(self) -> Set[str]:
        """Return the libraries of `_LIBRARIES` (they keep a rank's state in modules) that the program uses."""
        loaded = sys.modules.keys() & _LIBRARIES
        # Most programs load none; their code need not be searched then.
        named = loaded and loaded.intersection(_libraries_imported_by(self._program))
        return self._used | named | loaded - self._loaded_before

    def _record_use(self, what: SharedState, site: Site, of: str = "") -> None:
        rank = self._running_rank()
        if rank is not None:
            self._noted.setdefault((what, site, of), set()).add(rank)

    def is_rank_thread(self) -> bool:
        """True on the running thread of a rank."""
        return self._running_rank() is not None

    def _call_on_own_executor(
        self, original: Callable[..., Any], executor: ThreadPoolExecutor, /, *arguments: Any, **options: Any
    ) -> Any:
        rank = self._running_rank()
        own = executor if rank is None else self._executor_of(rank, executor)
        return original(own, *arguments, **options)

    def _executor_of(self, rank: int, executor: ThreadPoolExecutor) -> ThreadPoolExecutor:
        """Return a rank's own copy of the caller's thread pool executor."""
        if not isinstance(vars(executor)["_work_queue"], _PLAIN_QUEUE):
            return executor
        if (rank, id(executor)) not in self._executors:
            self._executors[rank, id(executor)] = executor, _copy_without_work(executor)
        return self._executors[rank, id(executor)][1]

    def _getpid(self, original: Callable[[], int]) -> int:
        rank = self._running_rank()
        caller = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]
        if not rank or caller in _KNOW_ONE_PROCESS:
            return original()
        return self._process_ids.setdefault(rank, threading.get_native_id())

    def _record_and_call(self, what: SharedState, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._record_use(what, current_user_site())
        return original(*arguments, **options)

    def _start_process(self, original: Callable[[Any], None], process: Any) -> None:
        if not str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.utils.data"):
            self._record_use(SharedState.PROCESSES, current_user_site())
        original(process)

    def _encode_key(self, original: Callable[[str], Any], key: str) -> Any:
        """Replace `os.environ.encodekey`, which each look-up calls first, on the instance.

        Python 3.13 stops tracking changes of a class after a thousand versions, so a later replacement on the class
        would not be called.
        """
        frame = sys._getframe(2)
        if key in _OF_A_RANK and frame.f_code is _LOOKS_UP and is_importing_project_module(frame):
            self._record_use(SharedState.ENVIRONMENT, user_site_of(frame.f_back), key)
        return original(key)


def _copy_without_work(executor: ThreadPoolExecutor) -> ThreadPoolExecutor:
    """Return a copy of an executor, without its workers and work items; it is shut down if the executor was."""
    own = copy.copy(executor)
    vars(own).update(
        _threads=set(),
        _work_queue=queue.SimpleQueue(),
        _idle_semaphore=threading.Semaphore(0),
        _shutdown_lock=threading.Lock(),
    )
    return own


def _caches_of_ranks(program: Any) -> Iterator[str]:
    """Yield the functions beside a program that have returned a cached value (lru_cache) and ask for the rank."""
    for name, each in list(program.__globals__.items()) if isinstance(program, FunctionType) else ():
        cached = getattr(each, "__wrapped__", None)
        if isinstance(cached, FunctionType) and hasattr(each, "cache_info") and each.cache_info().hits:
            code = cached.__code__
            if "get_rank" in code.co_names or not _OF_A_RANK.isdisjoint(code.co_consts):
                yield f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _libraries_used_by(program: Any) -> frozenset[str]:
    """Return the libraries in `_LIBRARIES` from which a function's module has imported names."""
    beside = vars(sys.modules[program.__module__]) if getattr(program, "__module__", None) in sys.modules else {}
    names = [getattr(each, "__module__", None) or getattr(each, "__name__", None) for each in list(beside.values())]
    return _LIBRARIES.intersection([name.partition(".")[0] for name in names if isinstance(name, str)])


def _libraries_imported_by(program: Any) -> Iterator[str]:
    """Yield the libraries in `_LIBRARIES` that a function imports in its body, or functions of its file do."""
    if not isinstance(program, FunctionType):
        return
    beside, seen, codes = program.__globals__, set[CodeType](), [program.__code__]
    while codes:
        code = codes.pop()
        if code in seen:
            continue
        seen.add(code)
        named = [beside.get(name) for name in code.co_names]
        codes += [each.__code__ for each in named if isinstance(each, FunctionType) and each.__globals__ is beside]
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        if any(name.partition(".")[0] in _LIBRARIES for name in code.co_names):
            imports = [each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]
            yield from (name.partition(".")[0] for name in imports)
