"""Tells of processes that a test starts in a way that is not known, and that make a process group of real ranks."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from torch.distributed import distributed_c10d

from ddpsim.scenarios.pytest_plugin.failure import RanksFailed
from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.rank_processes.external_processes import ExternalProcesses, detect_groups_in_new_pythons
from ddpsim.simulator.rank_processes.in_children import sitecustomize as in_children
from ddpsim.simulator.runtime.replaced import ReplacedAttributes


class OutsideProcesses:
    """The processes that tests have started and that are no ranks."""

    def __init__(self, ranks: RanksOfTest, replaced: ReplacedAttributes) -> None:
        self._ranks = ranks
        self._reports = ExternalProcesses()
        self._before = {name: os.environ.get(name) for name in (in_children.NAME, "PYTHONPATH")}
        detect_groups_in_new_pythons(self._reports.address, "a test")
        only_in_ranks = partial(self._only_in_ranks, os.getpid())
        replaced.replace_attribute(distributed_c10d, "_new_process_group_helper", only_in_ranks)
        replaced.replace_attribute(sys.modules["torch.distributed.rendezvous"], "_create_c10d_store", only_in_ranks)

    def _only_in_ranks(self, own: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_group_or_reject(*arguments: Any, **options: Any) -> Any:
            if os.getpid() != own and not self._ranks.is_rank:
                in_children.reject_process_group()
            return original(*arguments, **options)

        return create_group_or_reject

    def starter(self, how: str, file: str) -> str:
        """Return the value of the variable by which a process tells who has started it: now, a line of the file."""
        frames = traceback.walk_stack(sys._getframe(1))
        at = next((f", line {line}" for frame, line in frames if frame.f_code.co_filename == file), "")
        return f"{self._reports.address} a test (by {how}, {os.path.basename(file)}{at})"

    def fail_if_reported(self) -> None:
        """Fail the test if a process has reported that it makes a process group."""
        __tracebackhide__ = True
        line = ""
        while True:
            try:
                self._reports.raise_if_reported()
            except UsageError as error:  # each rank may report the same
                line = line or str(error)
            else:
                break
        if line:
            raise RanksFailed(line) from None

    def close(self) -> None:
        """End the detection, and restore the environment."""
        with closing(self._reports):
            for name, value in self._before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})
