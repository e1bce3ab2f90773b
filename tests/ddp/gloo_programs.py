"""Programs for two ranks on real gloo: two processes of their own, whose torch nobody has touched.

    python -m tests.ddp.gloo_programs RANK FOLDER

runs the programs one after another, each with a default group of its own, and leaves in FOLDER what each returned or
raised; test_real_gloo.py starts the two processes and says what must have come out. Nothing here
imports the simulator.
"""

from __future__ import annotations

import faulthandler
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim.ddp import DistributedDataParallel
from tests.ddp.loop_collectives import COLLECTIVES, NOT_ON_GLOO, made, values
from tests.kit import networks
from tests.kit.training import TINY, Prepare, Trained, Training, batches, equal_batches, mean_square, train

ROOT = Path(__file__).resolve().parents[2]
WORLD_SIZE = 2
CALL_SECONDS = 120
"""How long a collective waits for the other process."""
LIFE_SECONDS = 600
"""After which a process shows where it is and ends, whoever still waits for it."""


# Trainings that both engines run.


def images(*counts: int) -> tuple[tuple[Tensor, ...], ...]:
    """Batches for `Residual`."""
    return tuple(tuple(b.view(3, 2, 4, 4) for b in own) for own in batches(*counts, features=32))


def powersgd(model: Any) -> None:
    """Compress from the third backward on; the state draws its random matrices from a seed."""
    state = PowerSGDState(dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook)


def hook(name: str) -> Prepare:
    """One of torch's plain communication hooks."""
    return lambda model: model.register_comm_hook(dist.group.WORLD, getattr(default_hooks, name))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A training by both engines, with the same constructor arguments."""

    training: Training
    options: Mapping[str, Any]
    prepare: Prepare = lambda model: None
    tolerance: float | None = 1e-12
    """To what the oracle agrees with both; None where a hook loses precision on purpose."""


def _compare(
    build: Callable[[], nn.Module],
    data: tuple[tuple[Tensor, ...], ...],
    *,
    prepare: Prepare = lambda model: None,
    tolerance: float | None = 1e-12,
    joins: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    return Comparison(Training(build, data, mean_square, **joins or {}), options, prepare, tolerance)


def _double(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: kind().double()


_JOIN = {"is_joined": True}
_JOIN_BY_PRESENT = {"is_joined": True, "divide_by_initial_world_size": False}
COMPARISONS = {
    "multilayer": _compare(networks.multilayer, equal_batches(2), joins={"momentum": 0.9}),
    "tiny buckets": _compare(networks.multilayer, equal_batches(2), bucket_cap_mb=TINY),
    "rebuilt buckets": _compare(networks.registered_backwards, equal_batches(2), bucket_cap_mb=TINY),
    "gradients as views": _compare(networks.multilayer, equal_batches(2), gradient_as_bucket_view=True),
    "batch norm": _compare(networks.with_buffers, equal_batches(2)),
    "residual": _compare(_double(networks.Residual), images(3, 3), bucket_cap_mb=TINY),
    "unused parameters": _compare(
        networks.branching, networks.branches((0, 1, 9), (0, 2, 9)), find_unused_parameters=True, bucket_cap_mb=TINY
    ),
    "static graph": _compare(networks.branching, networks.branches((1, 1, 1), (1, 1, 1)), static_graph=True),
    "accumulation": _compare(networks.multilayer, equal_batches(2, count=4), joins={"accumulate": 2}),
    "mixed dtypes": _compare(networks.Mixed, batches(3, 3, features=5), tolerance=1e-2),
    "sparse embedding": _compare(_double(networks.Sparse), equal_batches(2)),
    "checkpointing": _compare(lambda: networks.Checkpointed(is_reentrant=False).double(), equal_batches(2)),
    "reentrant": _compare(lambda: networks.Checkpointed(is_reentrant=True).double(), equal_batches(2)),
    "fp16 hook": _compare(
        networks.multilayer, equal_batches(2), prepare=hook("fp16_compress_hook"), tolerance=None, bucket_cap_mb=TINY
    ),
    "allreduce hook": _compare(networks.multilayer, equal_batches(2), prepare=hook("allreduce_hook")),
    "PowerSGD": _compare(networks.multilayer, equal_batches(2, count=5), prepare=powersgd, tolerance=None),
    "join": _compare(networks.with_buffers, batches(1, 3), joins=_JOIN, bucket_cap_mb=TINY),
    "join, rank 1 first": _compare(networks.with_buffers, batches(4, 2), joins={**_JOIN, "momentum": 0.9}),
    "join, by ranks present": _compare(networks.with_buffers, batches(3, 1), joins=_JOIN_BY_PRESENT),
    "join, rank 0 without input": _compare(networks.with_buffers, batches(0, 3), joins=_JOIN, bucket_cap_mb=TINY),
    "join, rank 1 without input": _compare(networks.multilayer, batches(2, 0), joins=_JOIN_BY_PRESENT),
    "join, accumulation": _compare(networks.multilayer, batches(2, 4), joins={**_JOIN, "accumulate": 2}),
    "join, unused parameters": _compare(
        networks.branching, networks.branches((0,), (1, 2, 9)), joins=_JOIN, find_unused_parameters=True
    ),
}


def by_both_engines(compared: Comparison, rank: int) -> tuple[Trained, Trained]:
    """What this rank has after training by our engine, and by torch's."""
    what = compared.training, compared.options, compared.prepare
    return train(rank, *what), train(rank, *what, TorchEngine)


# Our engine: what it finds.


def raised(action: Callable[[], object]) -> str:
    """The kind and text of what `action` raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def still_works() -> float:
    """Whether the ranks can still talk: the sum of 1.0 over them."""
    one = torch.ones(())
    dist.all_reduce(one)
    return one.item()


def open_backward(rank: int) -> str:
    """Each rank leaves another branch out of the loss, without find_unused_parameters."""
    model = DistributedDataParallel(networks.Branching(), bucket_cap_mb=TINY)
    batch = torch.full((1, 4), float(rank))
    mean_square(model, batch).backward()
    return raised(lambda: model(batch))


# Our engine: joins that torch's cannot do.


def each_step(model: nn.Module, data: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Train with plain gradient descent; give each batch with its loss, before the backward."""
    for batch in data:
        model.zero_grad()
        loss = mean_square(model, batch)
        yield batch, loss
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)


JOINED = Training(networks.multilayer, batches(1, 3), mean_square, is_joined=True)


def _wrapped(rank: int, build: Callable[[], nn.Module] = networks.multilayer) -> DistributedDataParallel:
    torch.manual_seed(rank)
    return DistributedDataParallel(build())


ON_GLOO = tuple(name for name in COLLECTIVES if name not in NOT_ON_GLOO)


def collectives_in_the_loop(rank: int) -> tuple[list[dict[str, object]], float]:
    """What this rank has after each collective, by iteration; rank 0 takes part in the first."""
    model = _wrapped(rank)
    results = []
    with model.join():
        for iteration, _ in enumerate(each_step(model, batches(1, 2)[rank])):
            results.append(made(ON_GLOO, values(rank, iteration, WORLD_SIZE), root=1))
    return results, still_works()


def different_no_sync_windows(rank: int) -> tuple[str, float]:
    """Rank 1 accumulates where rank 0 reduces."""

    def loop() -> None:
        with model.join():
            for batch in batches(2, 2)[rank]:
                with model.no_sync() if rank == 1 else nullcontext():
                    mean_square(model, batch).backward()

    model = _wrapped(rank)
    return raised(loop), still_works()


def broadcast_from_a_joined_rank(rank: int) -> tuple[str, float]:
    """What nobody can do on behalf of a rank that has left the loop."""

    def loop() -> None:
        with model.join():
            for batch, _ in each_step(model, JOINED.batches[rank]):
                dist.broadcast(batch[0].clone(), 0)

    model = _wrapped(rank)
    return raised(loop), still_works()


MOMENTS = ("before the forward", "before the backward", "after the backward")


def leaving_by_an_exception(moment: str, rank: int) -> tuple[str, float]:
    """Rank 1 fails in its second iteration."""

    def loop() -> None:
        with model.join():
            for iteration, batch in enumerate(batches(4, 4)[rank]):
                fails = rank == 1 and iteration == 1
                if fails and moment == MOMENTS[0]:
                    raise ValueError("disk is full")
                loss = mean_square(model, batch)
                if fails and moment == MOMENTS[1]:
                    raise ValueError("disk is full")
                loss.backward()
                if fails and moment == MOMENTS[2]:
                    raise ValueError("disk is full")

    model = _wrapped(rank)
    return raised(loop), still_works()


NORMALIZED = Training(networks.Normalizing, JOINED.batches, mean_square, is_joined=True)


def synchronized_batch_norm(rank: int) -> Trained:
    """Collectives of the model's own, in forward and backward, also for a rank that has left the loop."""
    return train(rank, NORMALIZED, {})


def nothing_left_behind(rank: int) -> tuple[bool, bool]:
    """Whether the class of process groups is as it was, after a join and after one that failed."""
    before = dict(vars(dist.ProcessGroup))
    model = _wrapped(rank)
    with model.join():
        for _ in each_step(model, JOINED.batches[rank]):
            pass
    after_join = dict(vars(dist.ProcessGroup)) == before
    broadcast_from_a_joined_rank(rank)
    return after_join, dict(vars(dist.ProcessGroup)) == before


# Our engine: buffers.


def weighted_loss(rank: int) -> str:
    """The example, as it is."""
    main: Callable[[int], str] = runpy.run_path(str(ROOT / "examples" / "weighted_loss.py"))["main"]
    return main(rank)


# What torch leaves to these processes.


class _Late:
    """Takes its time to go: what a callback held before it is given back that much later."""

    def __del__(self) -> None:
        time.sleep(0.2)


def callback_that_outlives_its_group(rank: int) -> float:
    """Torch's worker thread is the last to give its group back, as a hook's callback may be by chance."""

    def value_of(done: torch.futures.Future[list[Tensor]], late: _Late, group: dist.ProcessGroup) -> list[Tensor]:
        return done.value()

    value, store = torch.ones(1), distributed_c10d._get_default_store()
    assert dist.group.WORLD is not None
    if rank == 1:
        store.wait(["rank 0 has its callback"])
    work = dist.all_reduce(value, async_op=True)
    after = work.get_future().then(partial(value_of, late=_Late(), group=dist.group.WORLD))
    store.set(f"rank {rank} has its callback", "")
    after.wait()
    return float(value)


PROGRAMS: dict[str, Callable[[int], Any]] = {
    callback_that_outlives_its_group.__name__: callback_that_outlives_its_group,
    **{name: partial(by_both_engines, compared) for name, compared in COMPARISONS.items()},
    **{f"leaving {moment}": partial(leaving_by_an_exception, moment) for moment in MOMENTS},
    **{
        program.__name__: program
        for program in (
            *(open_backward, collectives_in_the_loop, different_no_sync_windows, broadcast_from_a_joined_rank),
            *(synchronized_batch_norm, nothing_left_behind, weighted_loss),
        )
    },
}


# A process.


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program returned on one rank, or the trace of what it raised there."""

    value: Any = None
    error: str | None = None


def outcome_path(folder: Path, name: str, rank: int) -> Path:
    """Where a rank leaves what came of a program."""
    return folder / f"{name}.{rank}.pt"


def main(rank: int, folder: Path) -> None:
    """Run the programs; what one leaves behind does not reach the next."""
    faulthandler.dump_traceback_later(LIFE_SECONDS, exit=True)
    torch.set_num_threads(1)
    groups = []
    for name, program in PROGRAMS.items():
        print(f"-- {name}", flush=True)
        store = dist.FileStore(str(folder / f"{name}.store"), WORLD_SIZE)
        limit = timedelta(seconds=CALL_SECONDS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=limit)
        # A group that its own worker thread is the last to hold, because a callback did, joins that thread with itself
        # in its destructor, and the process ends (torch 2.13, ProcessGroupGloo.cpp): so all are held until the end.
        groups.append(dist.group.WORLD)
        outcome = _outcome(program, rank)
        torch.save(outcome, outcome_path(folder, name, rank))
        store.set(f"through {rank}", "")
        if outcome.error is None:
            # A group that goes away early takes with it what its peer has not read yet. After an error it should.
            store.wait([f"through {1 - rank}"], limit)
        dist.destroy_process_group()
    assert "ddpsim.ddp" in sys.modules
    assert "ddpsim.simulator" not in sys.modules


def _outcome(program: Callable[[int], object], rank: int) -> Outcome:
    try:
        return Outcome(value=program(rank))
    except Exception:
        return Outcome(error=traceback.format_exc())


if __name__ == "__main__":
    # Pickle looks classes up by the module's name, which is not __main__ for whoever reads.
    from tests.ddp import gloo_programs

    gloo_programs.main(int(sys.argv[1]), Path(sys.argv[2]))
