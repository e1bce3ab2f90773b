"""States that are restored on one rank only, or from another place on each rank."""

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import agree
from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def train(model: DistributedDataParallel, average: torch.nn.Module) -> None:
    """Three steps, each followed by the average."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # found here
        for mean, newest in zip(average.state_dict().values(), model.module.state_dict().values(), strict=True):
            mean.lerp_(newest, 0.5)


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(0)),
    reports=["lucidrains/ema-pytorch#9"],
    tags=["ddp", "wrapping"],
)
def average_copied_back_on_one_rank(rank: int) -> None:
    """A moving average of the model is loaded back into it on rank 0 only, as the rank that writes the checkpoint.

    Training continues from the average on rank 0 and from the newest parameters elsewhere. Real gloo shows no
    error.
    """
    # Train, load the average in order to save it, and train on.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    average = copy.deepcopy(model.module)
    train(model, average)
    if rank == 0:
        model.module.load_state_dict(average.state_dict())
    train(model, average)


@repairs(average_copied_back_on_one_rank)
def average_copied_back_on_one_rank_repaired(rank: int) -> None:
    """Every rank loads the average: it is the same on all."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    average = copy.deepcopy(model.module)
    train(model, average)
    model.module.load_state_dict(average.state_dict())
    train(model, average)


def load_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Put in what an earlier run has saved."""
    state = optimizer.state_dict()
    places = state["param_groups"][0]["params"]
    state["state"] = {place: {"momentum_buffer": torch.ones(1, 10)} for place in places}
    optimizer.load_state_dict(state)


def train_with_momentum(rank: int, *, loads: bool) -> None:
    """Two steps after the momentum was loaded, or was not."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if loads:
        load_momentum(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(0)),
    reports=["vllm-project/speculators#926"],
    tags=["wrapping", "optimizer", "ddp"],
)
def momentum_loaded_on_rank0(rank: int) -> None:
    """The optimizer's momentum is restored on rank 0 only, and equal gradients make unequal steps.

    No wrapper synchronises an optimizer's state. Real gloo: no error; the replicas differ from the first step on,
    though parameters were equal when training went on.
    """
    train_with_momentum(rank, loads=rank == 0)


@repairs(momentum_loaded_on_rank0)
def momentum_loaded_on_rank0_repaired(rank: int) -> None:
    """Every rank loads the optimizer."""
    train_with_momentum(rank, loads=True)


def checkpoint() -> dict[str, torch.Tensor]:
    """What an earlier run has saved."""
    return {"weight": torch.full((1, 10), 0.5), "bias": torch.zeros(1)}


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=odd_one_out(0)),
    reports=["vllm-project/speculators#926"],
    tags=["wrapping", "ddp"],
)
def state_loaded_on_rank0_after_wrap(rank: int) -> None:
    """Weights are restored on rank 0 after the model was wrapped, and the other ranks keep theirs.

    The wrapper sends rank 0's state once, at its construction; later it averages gradients only. Real gloo: no
    error; the replicas differ from then on, by the same difference in each step.
    """
    # Rank 0, which has the file, loads the checkpoint into its wrapped model.
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    if rank == 0:
        model.module.load_state_dict(checkpoint())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()  # found here


@repairs(state_loaded_on_rank0_after_wrap)
def state_loaded_on_rank0_after_wrap_repaired(rank: int) -> None:
    """Rank 0 loads the checkpoint before the model is wrapped, so that wrapping sends it to the others."""
    torch.manual_seed(rank)
    module = torch.nn.Linear(10, 1)
    if rank == 0:
        module.load_state_dict(checkpoint())
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()


@scenario(
    expected=finds(Code.MISMATCH_VALUE, ranks=(0, 1)),
    reports=["hiyouga/LlamaFactory#655"],
    tags=["raw", "checkpoint"],
    world_size=2,
    max_world_size=2,
)
def resumed_from_own_checkpoint(rank: int) -> float:
    """Each node resumes from the newest checkpoint that it finds itself, and one of them finds an older one.

    Its disk was full, or the file is still being copied. Nothing that communicates depends on the step: schedules
    of learning rate and data continue from different steps, and no backend notices. `agree` finds it at once.
    """
    step = agree("resumed step", _newest_found(rank))  # found here
    return _trained_once(step)


@repairs(resumed_from_own_checkpoint)
def resumed_from_own_checkpoint_repaired(rank: int) -> float:
    """All ranks take the newest step that every one of them has."""
    common = torch.tensor([_newest_found(rank)])
    dist.all_reduce(common, op=dist.ReduceOp.MIN)
    step = agree("resumed step", int(common.item()))
    return _trained_once(step)


def _newest_found(rank: int) -> int:
    return 600 if rank == 1 else 800


def _trained_once(step: int) -> float:
    gradient = torch.ones(1)
    dist.all_reduce(gradient)
    return float(gradient) / step


def agree_on_id(rank: int, prefix: str) -> bytes:
    """The id that rank 0 has drawn."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(f"{prefix}/id", "run 7")
    found: bytes = store.get(f"{prefix}/id")  # found here
    return found


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1),
    reports=["pytorch/pytorch#135712", "pytorch/pytorch#108158"],
    tags=["store", "elastic"],
)
def restart_count_as_store_prefix(rank: int) -> bytes:
    """Ranks prefix the keys of a store with how often they were restarted, and one was restarted once more than the others.

    The count is a rank's own. So rank 1 waits under a prefix under which no rank writes. Real gloo: it waits for
    the store's time-out, 30 minutes by default.
    """
    # Read the id of the run; rank 1 has died once.
    restarts = 1 if rank == 1 else 0
    return agree_on_id(rank, f"attempt {restarts}")


@repairs(restart_count_as_store_prefix)
def restart_count_as_store_prefix_repaired(rank: int) -> bytes:
    """The prefix is the number of the round that all ranks entered together, which the launcher gives them."""
    return agree_on_id(rank, "round 1")
