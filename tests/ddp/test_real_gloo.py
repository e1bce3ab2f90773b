"""The engine on real gloo: two processes, started once, run gloo_programs.py; here is what must come out.

What is expected is worked out in this process, by plain training without any process group.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpsim import ddp
from tests.ddp import gloo_programs
from tests.ddp.gloo_programs import COMPARISONS, PROGRAMS, WORLD_SIZE, Outcome
from tests.ddp.loop_collectives import Inputs, assert_made, values
from tests.kit import networks, oracle
from tests.kit.results import returned
from tests.kit.training import assert_same, seeded

pytestmark = pytest.mark.tier("ci")

RANKS = range(WORLD_SIZE)


class Ran:
    """What the two processes left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> list[Any]:
        """By rank, what a program returned; fails if it raised, or never ran to its end."""
        assert name in PROGRAMS
        outcomes = [self._outcome(name, rank) for rank in RANKS]
        errors = [f"{name} on rank {rank}:\n{o.error}" for rank, o in enumerate(outcomes) if o.error is not None]
        assert not errors, "\n".join(errors)
        return [outcome.value for outcome in outcomes]

    def output(self, rank: int) -> str:
        """What the process printed: warnings, and its stack if it ran out of time."""
        return (self._folder / f"process {rank}.txt").read_text(encoding="utf-8", errors="replace")

    def _outcome(self, name: str, rank: int) -> Outcome:
        path = gloo_programs.outcome_path(self._folder, name, rank)
        if path.exists():
            outcome: Outcome = torch.load(path, weights_only=False)
            return outcome
        said = self.output(rank).partition(f"-- {name}\n")[2].partition("\n-- ")[0]
        return Outcome(error=f"the process ended before it had run this; it said:\n{said[-4000:]}")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The outcomes of all programs; of several pytest processes (xdist), one starts the ranks and the others wait."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "real_gloo"
    with (shared / "real_gloo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            run_programs(folder)
    return Ran(folder)


def run_programs(folder: Path) -> None:
    """Start the ranks and see them end, after LIFE_SECONDS by themselves; where one fails, the other is ended."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TORCH_DISTRIBUTED", "PYTEST"))
    } | {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    with ExitStack() as started:
        processes = []
        for rank in RANKS:
            command = [sys.executable, "-m", "tests.ddp.gloo_programs", str(rank), str(folder)]
            output = started.enter_context((folder / f"process {rank}.txt").open("w", encoding="utf-8"))
            process = subprocess.Popen(
                command, cwd=gloo_programs.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            started.callback(process.wait)
            started.callback(process.kill)
            processes.append(process)
        while None in (statuses := [process.poll() for process in processes]) and set(statuses) <= {None, 0}:
            time.sleep(0.05)


@pytest.mark.parametrize("name", COMPARISONS)
def test_same_as_torchs_engine(ran, name):
    compared = COMPARISONS[name]
    expected = oracle.expected(compared.training)
    counts = [len(own) for own in compared.training.batches]
    for rank, (ours, torchs) in enumerate(ran[name]):
        # What a rank without input has as gradients nobody uses.
        has_gradients = counts[rank] == max(counts)
        assert_same(ours, torchs, tolerance=0, gradients=has_gradients and name != "join, unused parameters")
        if compared.tolerance is not None:
            assert_same(ours, expected[rank], tolerance=compared.tolerance, gradients=has_gradients)


def test_unused_parameters_in_a_join_keep_their_gradients(ran):
    # Which is none here. Once a rank has joined, torch's engine makes it zeros, which a decay of weights would tell.
    ours, torchs = ran["join, unused parameters"][1]
    assert ours.gradients["branches.0.weight"] is None
    assert not torchs.gradients["branches.0.weight"].any()


def test_hooks_that_lose_precision_did_so(ran):
    for name in ("fp16 hook", "PowerSGD"):
        assert COMPARISONS[name].tolerance is None
        ours = ran[name][0][0]
        with pytest.raises(AssertionError):
            assert_same(ours, oracle.expected(COMPARISONS[name].training)[0], tolerance=1e-9)


def test_a_backward_that_left_buckets_open(ran):
    for text in ran["open_backward"]:
        assert text.startswith("OpenBackwardError: the last backward left buckets open: no gradient came for ")
        assert re.search(r"branches\.1\.weight, branches\.1\.bias, [^;]* on rank 0; ", text)
        assert re.search(r"; branches\.0\.weight, branches\.0\.bias, [^;]* on rank 1\. ", text)


def test_collectives_in_the_loop(ran):
    for rank, (results, together) in enumerate(ran["collectives_in_the_loop"]):
        assert (len(results), together) == (1 + rank, 2.0)
        for iteration, found in enumerate(results):
            own = [values(r, iteration, WORLD_SIZE) if iteration <= r else None for r in RANKS]
            assert_made(found, Inputs(own, rank, root=1))


def test_different_no_sync_windows(ran):
    wanted = (
        "JoinError: the ranks inside the join do different things: rank 0: a forward that synchronizes gradients; "
        "rank 1: a forward inside no_sync"
    )
    assert ran["different_no_sync_windows"] == [(wanted, 2.0)] * WORLD_SIZE


def test_a_broadcast_from_a_joined_rank(ran):
    for text, together in ran["broadcast_from_a_joined_rank"]:
        assert text.startswith("JoinError: broadcast float64[4] root 0 needs what only its root has, rank 0, which ran")
        assert together == 2.0


@pytest.mark.parametrize("moment", gloo_programs.MOMENTS)
def test_a_rank_that_leaves_by_an_exception(ran, moment):
    assert ran[f"leaving {moment}"] == [
        ("JoinError: the join is over: rank 1 left it by ValueError: disk is full", 2.0),
        ("ValueError: disk is full", 2.0),
    ]


def test_a_layer_with_collectives_of_its_own(ran):
    module = seeded(lambda: networks.Normalizing(total=lambda sums: sums))
    expected = oracle.train_on_all_rows(gloo_programs.NORMALIZED, module)
    for after in ran["synchronized_batch_norm"]:
        torch.testing.assert_close(after.parameters, expected.parameters, rtol=1e-9, atol=1e-9)


def test_a_join_leaves_torch_as_it_was(ran):
    assert ran["nothing_left_behind"] == [(True, True)] * WORLD_SIZE


def test_a_callback_that_outlives_its_group_does_not_end_the_process(ran):
    assert ran["callback_that_outlives_its_group"] == [2.0, 2.0]
    first, *_, last = PROGRAMS
    assert first == "callback_that_outlives_its_group"
    assert ran[last]


def test_the_example_of_counts_in_buffers(ran):
    assert ran["weighted_loss"] == list(returned(gloo_programs.weighted_loss, WORLD_SIZE))


def test_the_engine_brings_up_no_warning(ran):
    folder = str(Path(ddp.__file__).parent)
    assert [line for rank in RANKS for line in ran.output(rank).splitlines() if folder in line] == []
