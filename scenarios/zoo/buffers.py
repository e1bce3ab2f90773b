"""Buffers that differ between the ranks: statistics, averages, random features."""

import copy
import warnings

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, repairs, scenario


class Counting(torch.nn.Module):
    """A layer that counts what it sees, by kind."""

    def __init__(self, kinds: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(2))
        for kind in kinds:
            self.register_buffer(kind, torch.zeros(7))

    def forward(self, batch: Tensor, kind: str) -> Tensor:
        """Count, with room made where there is none."""
        if not hasattr(self, kind):
            self.register_buffer(kind, torch.zeros(7))
        out: Tensor = self.layer(batch)
        return out


def train_on_kinds(rank: int, model: torch.nn.Module) -> None:
    """Two steps; rank 1 sees another kind."""
    wrapped = DistributedDataParallel(model)
    for _ in range(2):
        wrapped(torch.ones(2, 4), "rare" if rank == 1 else "seen").sum().backward()  # found here by torch


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=1),
    under_ddp=CLEAN,
    reports=["NVIDIA/Model-Optimizer#2342", "Tencent/YOLO-Master#154"],
    tags=["ddp", "buffers"],
    min_world_size=3,
)
def buffer_made_on_first_use(rank: int) -> None:
    """A module makes a buffer when a branch is first taken, which one rank takes alone: its broadcast of buffers is longer.

    All buffers of a size go as one tensor. Real gloo: a process aborts, as it gets more bytes than it expects.
    """
    train_on_kinds(rank, Counting())


@repairs(buffer_made_on_first_use)
def buffer_made_on_first_use_repaired(rank: int) -> None:
    """Make all buffers at the start."""
    train_on_kinds(rank, Counting(("rare",)))


class RandomFeatures(torch.nn.Module):
    """A trained layer on a fixed random projection."""

    directions: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(4, 6))
        self.head = torch.nn.Linear(6, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        return self.head(torch.cos(batch @ self.directions))  # type: ignore[no-any-return]


def train(model: torch.nn.Module) -> None:
    """Two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()  # found here
        optimizer.step()


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=["pytorch/pytorch#111138", "pytorch/pytorch#178054", "pytorch/pytorch#63916"],
    tags=["ddp", "buffers"],
)
def buffers_not_synchronised_at_wrap(rank: int) -> None:
    """A buffer drawn at random differs between the ranks, since wrapping with broadcast_buffers=False leaves it alone.

    The option is taken for "not before every forward", but it also switches off the broadcast at construction. Real
    gloo shows no error: each rank trains the shared weights on features of its own.
    """
    torch.manual_seed(rank)
    warnings.simplefilter("ignore", FutureWarning)  # newer releases of torch deprecate the option for this very reason
    train(DistributedDataParallel(RandomFeatures(), broadcast_buffers=False))


@repairs(buffers_not_synchronised_at_wrap)
def buffers_not_synchronised_at_wrap_repaired(rank: int) -> None:
    """Rank 0's buffers are broadcast by hand; in newer releases forward_sync_buffers=False does it when wrapping."""
    torch.manual_seed(rank)
    warnings.simplefilter("ignore", FutureWarning)
    module = RandomFeatures()
    dist.broadcast(module.directions, src=0)
    train(DistributedDataParallel(module, broadcast_buffers=False))


def trained_with_average(rank: int) -> tuple[DistributedDataParallel, torch.nn.Module]:
    """A model with batch norm after three steps, and its moving average."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    )
    average = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4) + rank).square().mean().backward()
        optimizer.step()
        for mean, newest in zip(average.state_dict().values(), model.module.state_dict().values(), strict=True):
            mean.copy_(0.5 * mean + 0.5 * newest)
    return model, average


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=[
        "NCAR/miles-credit#394",
        "Megvii-BaseDetection/YOLOX#1176",
        "facebookresearch/detectron2#5398",
        "lucidrains/ema-pytorch#9",
    ],
    tags=["ddp", "buffers"],
)
def locally_derived_statistics(rank: int) -> None:
    """Every rank averages the model over time, buffers included, and so evaluates with statistics of its own.

    Parameters are equal on all ranks, so an average of them is, too; running statistics are not, between a forward
    and the next, and neither is what is derived from them. Real gloo shows no error.
    """
    model, average = trained_with_average(rank)
    model.module.load_state_dict(average.state_dict())
    model.module.eval()(torch.ones(2, 4))  # found here


@repairs(locally_derived_statistics)
def locally_derived_statistics_repaired(rank: int) -> None:
    """Rank 0's average of the buffers is broadcast before it is used."""
    model, average = trained_with_average(rank)
    for buffer in average.buffers():
        dist.broadcast(buffer, src=0)
    model.module.load_state_dict(average.state_dict())
    model.module.eval()(torch.ones(2, 4))


def trained(rank: int) -> DistributedDataParallel:
    """A model with batch norm after three steps on the rank's own kind of data."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4) + rank).square().mean().backward()
        optimizer.step()
    return model


@scenario(
    expected=finds(Code.DIVERGENCE_BUFFERS, ranks=every_rank),
    reports=[
        "pytorch/pytorch#13711",
        "huggingface/pytorch-image-models#110",
        "open-mmlab/mmdetection#4582",
        "open-mmlab/mmpose#998",
        "pytorch/pytorch#30718",
    ],
    tags=["ddp", "buffers"],
)
def running_statistics_drift(rank: int) -> torch.Tensor:
    """Every rank evaluates the inner module, with the running statistics of its own last batches.

    Rank 0's buffers are taken over before each forward and updated locally in it, so after the last step they
    differ. Real gloo shows no error; in a measurement two ranks' predictions were 4 % apart.
    """
    model = trained(rank).eval()
    with torch.no_grad():
        prediction: torch.Tensor = model.module(torch.ones(2, 4))  # found here
    return prediction


@repairs(running_statistics_drift)
def running_statistics_drift_repaired(rank: int) -> torch.Tensor:
    """Evaluate through the wrapper, on all ranks: that broadcasts the buffers once more."""
    model = trained(rank).eval()
    with torch.no_grad():
        prediction: torch.Tensor = model(torch.ones(2, 4))
    return prediction
