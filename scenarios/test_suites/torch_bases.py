"""Simulates the ranks of tests that derive from torch's own base classes (`torch.testing._internal`).

What is relied on (torch 2.6 to 2.15): a test's class is made anew in each rank, by its `_run`; `setUp` starts the
ranks, and the test's method, replaced by a wrapper, waits for them in the main process. A skip is an exit code of
`TEST_SKIPS`. DTensorTestBase, FSDPTest and DistributedTestBase derive from MultiProcessTestCase.
"""

import os
import traceback
import unittest
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest, fresh_file
from ddpsim.simulator.runtime.late_modules import ImportWatch, call_with_module
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

MODULE = "torch.testing._internal.common_distributed"


def adapt_when_imported(ranks: RanksOfTest, replaced: ReplacedAttributes) -> ImportWatch:
    """Adapt `MODULE` when the suite imports it. To import it changes settings of torch
    (`torch.backends.disable_global_flags`), which other suites would notice."""
    return call_with_module(MODULE, partial(adapt, ranks, replaced))


def adapt(ranks: RanksOfTest, replaced: ReplacedAttributes, module: Any) -> None:
    """Replace, in the imported module `MODULE`, what starts ranks and waits for them."""
    skips = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
    generic = int(module.TEST_SKIPS["generic"].exit_code)

    def join_processes(test: Any, function: Any) -> None:
        __tracebackhide__ = True
        name, kind = test._current_test_name(), type(test)

        def run_rank(rank: int) -> None:
            kind._run(rank, name, file_name, None, fake_pg=getattr(test, "fake_pg", False))

        file_name = test.file_name
        run_rank_or_skip = partial(_exit_code, run_rank, generic)
        codes = ranks.run(run_rank_or_skip, int(test.world_size), function=function, raised=_raised_in_process)
        if function not in test.skip_return_code_checks:
            _raise_skip(codes[0], skips)
            expected = test.special_return_code_checks.get(function, 0)
            if codes[0] != expected:
                raise AssertionError(f"Expected exit code {expected} but got {codes[0]} for rank 0")

    def run_test(test: Any, name: str, pipe: Any) -> None:
        __tracebackhide__ = True
        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
        module.common_utils.set_rng_seed()
        getattr(test, name)()
        if test.destroy_pg_upon_exit and dist.is_initialized():
            dist.destroy_process_group()

    of_processes = module.MultiProcessTestCase
    replaced.set_attribute(of_processes, "_start_processes", _start_nothing)
    replaced.set_attribute(of_processes, "_join_processes", join_processes)
    replaced.set_attribute(of_processes, "run_test", run_test)

    def join_threads(kind: Any, test: Any, function: Any) -> None:
        __tracebackhide__ = True

        def run_rank(rank: int) -> None:
            kind._run(test._current_test_name, rank, world_size)

        world_size = int(test.world_size)
        run_rank_or_skip = partial(_exit_code, run_rank, generic)
        of_threads: Any = {"on": "thread", "has_group": True, "raised": _raised_in_thread}
        _judge_codes(ranks.run(run_rank_or_skip, world_size, function=function, **of_threads), skips)

    def run_with_threaded_group(test: Any, name: str, rank: int, world_size: int) -> None:
        __tracebackhide__ = True
        torch.manual_seed(torch.initial_seed() + rank)  # ranks differ: torch's threads draw from one generator in turns
        test.perThreadSetUp()
        try:
            getattr(test, name)()
        finally:
            test.perThreadTearDown()

    of_threads = module.MultiThreadedTestCase
    replaced.set_attribute(of_threads, "_spawn_threads", lambda test: setattr(test, "threads", test))
    replaced.set_attribute(of_threads, "_join_threads", classmethod(join_threads))
    replaced.set_attribute(of_threads, "run_test_with_threaded_pg", run_with_threaded_group)
    if hasattr(module, "spawn_threads_and_init_comms"):
        replaced.set_attribute(module, "spawn_threads_and_init_comms", partial(_on_threads, ranks, skips, generic))
    if hasattr(module, "MultiProcContinuousTest"):
        _adapt_continuous(module, ranks, replaced, skips)


def _adapt_continuous(module: Any, ranks: RanksOfTest, replaced: ReplacedAttributes, skips: dict[int, str]) -> None:
    """Adapt the base class whose ranks live as long as the class: here each test has ranks of its own."""

    def spawn_nothing(kind: Any, world_size: int) -> None:
        kind.processes, kind.task_queues, kind.completion_queues = [], [], []
        kind.rdvz_file = fresh_file()

    def run_and_wait(test: Any, function: Any) -> Callable[[], None]:
        @wraps(function)
        def wrapper() -> None:
            __tracebackhide__ = True
            if test.rank != test.MAIN_PROCESS_RANK:
                function()
                return
            kind, file_name = type(test), fresh_file()
            test.addCleanup(Path(file_name).unlink, missing_ok=True)
            run_rank = partial(_run_continuous, kind, test.id(), file_name)
            run_rank_or_skip = partial(_exit_code, run_rank, generic)
            codes = ranks.run(run_rank_or_skip, int(kind.world_size), function=function, raised=_raised_in_process)
            _judge_codes(codes, skips)

        return wrapper

    generic = int(module.TEST_SKIPS["generic"].exit_code)
    of_class = module.MultiProcContinuousTest
    replaced.set_attribute(of_class, "_spawn_processes", classmethod(spawn_nothing))
    replaced.set_attribute(of_class, "_worker_run_main_wait", run_and_wait)


def _run_continuous(kind: Any, name: str, file_name: str, rank: int) -> None:
    own: Any = type(kind.__name__, (kind,), {"__module__": kind.__module__, "rank": rank})  # the rank's own attributes
    own._init_pg(rank, own.world_size, file_name)
    own._run_test_given_id(name)
    if dist.is_initialized():
        dist.destroy_process_group()


def _exit_code(run_rank: Callable[[int], Any], generic: int, rank: int) -> int:
    """Run a rank, and return the exit code that its process would have; `generic` is that of a skip."""
    __tracebackhide__ = True
    try:
        run_rank(rank)
    except unittest.SkipTest:
        return generic
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    return 0


def _raised_in_process(error: BaseException) -> str:
    return f"A process exited with error code 10 and exception:\n{''.join(traceback.format_exception(error))}"


def _raised_in_thread(error: BaseException) -> str:
    return f"A thread exited with exception:\n{''.join(traceback.format_exception(error))}"


def _start_nothing(test: Any, process: Any) -> None:
    test.processes = []


def _on_threads(
    ranks: RanksOfTest,
    skips: dict[int, str],
    generic: int,
    function: Any = None,
    timeout: Any = None,
    world_size: int = 4,
) -> Any:
    """The decorator `spawn_threads_and_init_comms`."""
    if function is None:
        return partial(_on_threads, ranks, skips, generic, timeout=timeout, world_size=world_size)

    @wraps(function)
    def on_ranks(test: Any, *arguments: Any, **named: Any) -> None:
        __tracebackhide__ = True

        def run_rank(rank: int) -> None:
            function(test, *arguments, **named)

        of_threads: Any = {"on": "thread", "has_group": True, "raised": _raised_in_thread}
        run_rank_or_skip = partial(_exit_code, run_rank, generic)
        _judge_codes(ranks.run(run_rank_or_skip, world_size, function=function, **of_threads), skips)

    return on_ranks


def _raise_skip(code: Any, skips: dict[int, str]) -> None:
    if code in skips:
        raise unittest.SkipTest(skips[code])


def _judge_codes(codes: Any, skips: dict[int, str]) -> None:
    """Raise for the exit codes of all ranks: an error for one that is neither 0 nor a skip, else a skip."""
    for rank, code in enumerate(codes):
        if code and code not in skips:
            raise RuntimeError(f"Exception in worker process: rank {rank} left with exit code {code}")
    _raise_skip(max(codes), skips)
