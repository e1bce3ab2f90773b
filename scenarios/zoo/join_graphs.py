"""Joins of models with static graphs, unused parameters or sparse gradients."""

import warnings

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot, snapshot


def train_embedding(batches: int, *, sparse: bool) -> None:
    """Train an embedding under join."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=sparse))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():  # found here by torch
        for _ in range(batches):
            optimizer.zero_grad()
            model(torch.tensor([1, 2, 3])).square().mean().backward()
            optimizer.step()


@scenario(expected=finds(Code.RANK_ERROR, ranks=1), under_ddp=CLEAN, tags=["ddp", "join"])
def join_sparse_gradients_without_a_batch(rank: int) -> None:
    """A rank without a batch joins a model with sparse gradients, and fails on a bucket that it has never seen.

    torch's join lets the joined rank reduce the bucket's own tensor; a sparse one has none before its first
    gradient. The others wait for a rank that raised. Our engine makes the reduction that the others announce,
    without any element.
    """
    train_embedding(0 if rank == 1 else 2, sparse=True)


@repairs(join_sparse_gradients_without_a_batch)
def join_sparse_gradients_without_a_batch_repaired(rank: int) -> None:
    """Dense gradients."""
    train_embedding(0 if rank == 1 else 2, sparse=False)


@scenario(expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join", "reducer"])
def join_static_graph_and_no_batches(rank: int) -> None:
    """A rank has no batch at all, so it never saw the first iteration, in which a static graph is recorded.

    The others reduce a map of the parameters they used once, at the end of that iteration; torch's join does not
    make up for it, and on real gloo a process aborts. Engine "ddp" lets a rank have no batch here, too.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), static_graph=True)
    with model.join():  # found here
        for _ in range(0 if rank == 1 else 3):
            model(torch.randn(8, 4)).square().mean().backward()  # found here


@repairs(join_static_graph_and_no_batches)
def join_static_graph_and_no_batches_repaired(rank: int) -> None:
    """Rank 1 has one batch."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), static_graph=True)
    with model.join():
        for _ in range(1 if rank == 1 else 3):
            model(torch.randn(8, 4)).square().mean().backward()


class PartlyUsed(torch.nn.Module):
    """Two layers, one of which nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(4, 1)
        self.unused = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        return self.used(batch)  # type: ignore[no-any-return]


@scenario(expected=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join", "reducer"])
def join_static_graph_and_unused_parameters(rank: int) -> None:
    """Under static_graph with find_unused_parameters, a rank that has joined reduces a map that the others do not.

    A static graph reduces the map of used parameters in its first iteration only; torch's join makes up for one
    whenever find_unused_parameters is set: on real gloo a process aborts. Engine "ddp" follows what the others do.
    """
    torch.manual_seed(rank)
    warnings.simplefilter("ignore", UserWarning)  # torch says that one option would do, and not that both do harm
    model = DistributedDataParallel(PartlyUsed(), static_graph=True, find_unused_parameters=True)
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()  # found here


@repairs(join_static_graph_and_unused_parameters)
def join_static_graph_and_unused_parameters_repaired(rank: int) -> None:
    """static_graph alone: it finds out for itself what is unused."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(PartlyUsed(), static_graph=True)
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()


class Tasks(torch.nn.ModuleList):
    """A layer for each of two tasks."""

    def forward(self, task: int) -> torch.Tensor:
        """The loss of the task."""
        return self[task](torch.tensor([-1.0])).square().sum()  # type: ignore[no-any-return]


def train_tasks(model: torch.nn.Module, weights: list[float]) -> None:
    """One step of task 0, and two of task 1, or as many as there are weights for the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for task, weight in zip([0, 1, 1], weights, strict=False):
        optimizer.zero_grad()
        (weight * model(task)).backward()
        optimizer.step()


def alone(world_size: int) -> Snapshot:
    """As all ranks have the same losses, they weigh less once rank 1 has no more."""
    model = Tasks([torch.nn.PReLU(), torch.nn.PReLU()])
    less = (world_size - 1) / world_size
    train_tasks(model, [1, less, less])
    return snapshot(model)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    under_ddp=CLEAN,
    tags=["ddp", "join", "reducer", "oracle"],
    reference=alone,
)
def join_with_unused_parameters(rank: int) -> Snapshot:
    """A rank that has joined says that it still uses the parameters it used last, so one that no rank uses keeps moving.

    Torch's join sends the joined rank's map of used parameters of the step before, or memory that was never set. So
    the parameter gets a gradient of zeros in place of none, and momentum moves it. Real gloo shows no error. Under
    engine "ddp" a joined rank uses nothing.
    """
    model = DistributedDataParallel(Tasks([torch.nn.PReLU(), torch.nn.PReLU()]), find_unused_parameters=True)
    with model.join():  # found here
        train_tasks(model, [1] if rank == 1 else [1, 1, 1])
    return snapshot(model.module)


@repairs(join_with_unused_parameters)
def join_with_unused_parameters_repaired(rank: int) -> Snapshot:
    """No join: rank 1 makes every step, with a loss of zero where it has no input."""
    model = DistributedDataParallel(Tasks([torch.nn.PReLU(), torch.nn.PReLU()]), find_unused_parameters=True)
    train_tasks(model, [1, 0, 0] if rank == 1 else [1, 1, 1])
    return snapshot(model.module)
