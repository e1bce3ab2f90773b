"""The suites: torch's own tests as they ship in its wheel, each with the number of ranks it runs on.

What torch's module reads from the environment as it is imported (the backend, the world size) holds for a whole
process, so a process runs one suite. Importing `torch.testing` changes the process, too: it gives hypothesis fewer
examples, and locks the flags of backends. So it is imported where a suite runs, and by no test of ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

DISTRIBUTED_TEST = "torch.testing._internal.distributed.distributed_test"
OPERATORS = "tests.conformance.operators"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of one module on so many ranks."""

    name: str
    world_size: int
    what: str
    """In words, for the page."""
    module: str = DISTRIBUTED_TEST
    is_ported: bool = False
    """Tests for GPUs run, too: their guards are lifted, and cuda means CPU."""
    beyond: str | None = None
    """A suite whose tests are left out, as more ranks show nothing more."""


SUITES = {
    suite.name: suite
    for suite in (
        Suite("cpu-3", 3, "distributed_test, as torch runs it without GPUs"),
        Suite("cpu-8", 8, "the same, where a test asks for more ranks", beyond="cpu-3"),
        Suite("gpu-4", 4, "the same, its tests for GPUs ported to CPU", is_ported=True),
        Suite("operators-4", 4, "DTensorOpTestBase: operators on sharded tensors", module=OPERATORS),
    )
}


def test_class(suite: Suite) -> type[Any]:
    """The suite's TestCase. It prepares this process for it, so a process asks for one suite only."""
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(suite.world_size),
        INIT_METHOD="file://",  # some tests want to hear so; the file is each test's own
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    if suite.module == OPERATORS:
        from tests.conformance.operators import OperatorsOnShards

        return OperatorsOnShards
    if suite.is_ported:
        from tests.conformance.cpu_port import lift_guards

        lift_guards()
    from torch.testing._internal.distributed import distributed_test

    bases = (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase)
    return type("TestDistributed", bases, {"__module__": __name__})


COMPILES = "test_ddp_compile_static_graph"

LEFT_OUT = {
    COMPILES: "compiles C++, for a minute; a test of its own runs it where there is a compiler",
    "test_ddp_uneven_inputs": "images of a million pixels in 256 channels: gigabytes on each rank, on a CPU",
}
"""Tests that do not run, and why."""


def tests_of(suite_class: type[Any]) -> list[str]:
    """The names of its tests, in the order in which unittest runs them."""
    return sorted({name for name in dir(suite_class) if name.startswith("test_")} - LEFT_OUT.keys())
