"""One of torch's tests on one rank: what its own harness does in each process that it spawns.

A rank has a TestCase of its own, makes the default group as the test does, and meets the others before the test and
after it, as torch's harness has them do. Whoever runs the ranks, gloo's processes or the simulator, calls `run_test`.
"""

from __future__ import annotations

import os
import sys
import time
import unittest
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

from tests.conformance.cpu_port import CudaIsCpu, put_gpus_on_cpu
from tests.conformance.outcome import Outcome, Status, first_line
from tests.conformance.suites import DISTRIBUTED_TEST, Suite

TIMEOUT_SECONDS = 60.0
"""Of a group, unless torch's module has another for the test."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a test runs."""

    suite: Suite
    suite_class: type[Any]
    test: str
    folder: Path
    """Of its own; empty."""
    shares_process: bool = False
    """Its ranks are threads, with one process id among them."""


def prepare(setting: Setting) -> None:
    """What a test finds in its folder, and what torch's module knows of it."""
    for name in ("barrier", "test_dir", "init_dir"):
        (setting.folder / name).mkdir()
    os.environ["TEMP_DIR"] = str(setting.folder)
    if setting.suite.module == DISTRIBUTED_TEST:
        module = sys.modules[DISTRIBUTED_TEST]
        module.INIT_METHOD = f"file://{setting.folder / 'init_dir' / 'shared_init_file'}"
        module.Barrier.barrier_id = 0
        if setting.shares_process:
            _do_not_profile(module)


def _do_not_profile(module: ModuleType) -> None:
    """Most tests of collectives do it besides; a process has one profiler, and a simulation refuses a second rank."""
    module.PROFILING_SUPPORTED_BACKENDS = module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []
    module._create_autograd_profiler = module._create_torch_profiler = nullcontext
    torch.autograd.profiler.profile = lambda *_, **__: nullcontext()  # type: ignore[assignment, misc]


def run_test(rank: int, setting: Setting) -> Outcome:
    """Run the test on this rank; a failure that no assertion of the test catches is raised."""
    test = _test_case(rank, setting)
    dist.init_process_group(
        init_method=f"file://{setting.folder / 'file'}",
        backend="gloo",
        world_size=setting.suite.world_size,
        rank=rank,
        timeout=timedelta(seconds=_timeout_seconds(setting)),
    )
    meet = getattr(test, "_barrier", dist.barrier)
    meet()
    common_utils.set_rng_seed()
    try:
        with ExitStack() as stack:
            if setting.suite.is_ported:
                put_gpus_on_cpu(sys.modules[setting.suite.module], setting.suite.world_size)
                stack.enter_context(CudaIsCpu())
            getattr(test, setting.test)()
    except unittest.SkipTest as skip:
        return Outcome(Status.SKIPPED, first_line(str(skip)))
    except SystemExit as end:
        return Outcome(Status.SKIPPED, _reason(end))
    meet()
    with suppress(AssertionError, ValueError):  # some tests have done it
        dist.destroy_process_group()
    return Outcome(Status.PASSED)


def _test_case(rank: int, setting: Setting) -> Any:
    test = setting.suite_class(setting.test)
    test.rank = rank
    test.file_name = str(setting.folder / "file")
    if setting.shares_process and hasattr(test, "_barrier"):
        test._barrier = BarrierOfThreads(rank, setting.suite.world_size, setting.folder / "barrier")
    return test


def _timeout_seconds(setting: Setting) -> float:
    own = getattr(sys.modules[setting.suite_class.__bases__[0].__module__], "CUSTOM_PG_TIMEOUT", {})
    return float(own.get(setting.test, TIMEOUT_SECONDS))


def _reason(end: SystemExit) -> str:
    """What torch's guards mean by an exit status. Any other is a failure."""
    for skip in common_distributed.TEST_SKIPS.values():
        if end.code == skip.exit_code:
            return skip.message
    raise AssertionError(f"the test ended its process with {end.code!r}") from end


class BarrierOfThreads:
    """Meet through files, without torch.distributed, as torch's own barrier does; that one counts process ids."""

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self._rank = rank
        self._world_size = world_size
        self._folder = folder
        self._count = 0

    def __call__(self, wait_for: int | None = None, timeout: float = 10.0) -> None:
        """Return when so many ranks have come as often as this one. Raises RuntimeError after so many seconds."""
        self._count += 1
        (self._folder / f"{self._rank}-{self._count}").touch()
        end = time.time() + timeout
        while len(list(self._folder.glob(f"*-{self._count}"))) < (wait_for or self._world_size):
            if time.time() > end:
                raise RuntimeError("barrier timeout")
            time.sleep(0.1)
