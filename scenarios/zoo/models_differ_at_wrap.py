"""Models that differ between the ranks when they are wrapped."""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#68803"],
    tags=["wrapping", "ddp"],
)
def ignored_names_differ_at_wrap(rank: int) -> None:
    """One rank makes the wrapper ignore a buffer that the others synchronise.

    The names to ignore are not compared, so the broadcasts of rank 0's state have another content on that rank.
    Real gloo: tensors of different sizes meet, and one process aborts. Our engine compares the names first, and
    every rank raises.
    """
    # Keep the running statistics local on rank 1, and synchronise them elsewhere.
    module = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4))
    names = ["1.running_mean", "1.running_var"] if rank == 1 else []
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    model = DistributedDataParallel(module)  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(ignored_names_differ_at_wrap)
def ignored_names_differ_at_wrap_repaired(rank: int) -> None:
    """Every rank ignores the same names."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4))
    names = ["1.running_mean", "1.running_var"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    model = DistributedDataParallel(module)
    model(torch.randn(8, 10)).square().mean().backward()


class Stack(torch.nn.Sequential):
    """A number of layers, and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__(*[torch.nn.Linear(10, 10) for _ in range(layers)], torch.nn.Linear(10, 1))


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    reports=[
        "pytorch/pytorch#73547",
        "pytorch/pytorch#74113",
        "yifan123/flow_grpo#245",
        "huggingface/transformers#30702",
        "Kent0n-Li/ChatDoctor#49",
    ],
    tags=["wrapping", "ddp"],
)
def parameter_set_differs_at_wrap(rank: int) -> None:
    """One rank wraps a model with a layer more than the others' model.

    The wrapper compares how many parameters there are before it sends rank 0's state. Real gloo: every rank raises,
    with the counts and nothing else; our engine says which names rank 1 has alone.
    """
    model = DistributedDataParallel(Stack(layers=2 if rank == 1 else 1))  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(parameter_set_differs_at_wrap)
def parameter_set_differs_at_wrap_repaired(rank: int) -> None:
    """Every rank builds the model from the same settings."""
    model = DistributedDataParallel(Stack(layers=2))
    model(torch.randn(8, 10)).square().mean().backward()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    under_ddp=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#73547", "pytorch/pytorch#74113"],
    tags=["wrapping", "ddp"],
)
def parameter_shape_differs_at_wrap(rank: int) -> None:
    """One rank wraps a model of the same layers, one of which has another shape there.

    Each rank but the first compares its shapes with rank 0's and raises alone; rank 0 learns nothing. Real gloo:
    rank 1 names the parameter's index, rank 0 sees a closed connection. Under our engine every rank raises, with
    the name.
    """
    # Each rank sizes its last layer by the labels of its own shard, and rank 1 has seen one class more.
    labels_here = [0, 1, 2, 3] if rank == 1 else [0, 1, 2]
    model = DistributedDataParallel(torch.nn.Linear(10, len(labels_here)))  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(parameter_shape_differs_at_wrap)
def parameter_shape_differs_at_wrap_repaired(rank: int) -> None:
    """The ranks agree on the number of classes first."""
    labels_here = [0, 1, 2, 3] if rank == 1 else [0, 1, 2]
    classes = torch.tensor(len(labels_here))
    torch.distributed.all_reduce(classes, op=torch.distributed.ReduceOp.MAX)
    model = DistributedDataParallel(torch.nn.Linear(10, int(classes)))
    model(torch.randn(8, 10)).square().mean().backward()


class Autoencoder(torch.nn.ModuleDict):
    """Two layers of the same shape, registered in the order of their names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__({name: torch.nn.Linear(10, 10) for name in names})

    def forward(self, batch: Tensor) -> Tensor:
        """The batch, encoded and decoded."""
        answer: Tensor = self["decoder"](torch.relu(self["encoder"](batch)))
        return answer


def train(rank: int, names: list[str]) -> None:
    """Two steps with the layers in the order of `names`."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Autoencoder(names))  # found here by ddp
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here by torch


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    tags=["wrapping", "ddp"],
)
def parameters_in_other_order_at_wrap(rank: int) -> None:
    """One rank registers two layers of the same shape in another order, and their values are swapped there.

    Parameters are compared and sent by position, not by name. Real gloo: no error on any rank; rank 1 trains the
    encoder with the decoder's weights and gradients. Our engine compares the names, and every rank raises.
    """
    # Take the layers in an order of the rank's own, as iterating over a set of names may give.
    train(rank, ["decoder", "encoder"] if rank == 1 else ["encoder", "decoder"])


@repairs(parameters_in_other_order_at_wrap)
def parameters_in_other_order_at_wrap_repaired(rank: int) -> None:
    """Every rank registers the layers in one order."""
    train(rank, sorted(["decoder", "encoder"]))


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=odd_one_out(1)), reports=["pytorch/pytorch#73547"], tags=["wrapping", "ddp"]
)
def trainable_set_differs_at_wrap(rank: int) -> None:
    """One rank freezes a layer before it wraps the model, and the others do not.

    A frozen parameter is in no bucket, so the wrapper counts fewer parameters there. Real gloo: every rank raises,
    with the counts and nothing else; our engine names the parameters that rank 1 has frozen.
    """
    # Freeze the body on rank 1, as its copy of a checkpoint says.
    module = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1))
    module[0].requires_grad_(rank != 1)
    model = DistributedDataParallel(module)  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(trainable_set_differs_at_wrap)
def trainable_set_differs_at_wrap_repaired(rank: int) -> None:
    """Every rank freezes the body."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1))
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module)
    model(torch.randn(8, 10)).square().mean().backward()
