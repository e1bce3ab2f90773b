"""A save that ends in a barrier is called by rank 0 only: its barrier pairs with the next one, and the last is alone.

Each later barrier of rank 0 meets the one after it of the others, so they do not wait for what they should. On gloo
the others are done, and rank 0 sees its connection close.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def save(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy the model's state on rank 0; when it returns, all ranks may rely on the copy."""
    copy = {name: tensor.clone() for name, tensor in model.state_dict().items()} if dist.get_rank() == 0 else {}
    dist.barrier()  # found here
    return copy


@scenario(
    expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=odd_one_out(0)),
    reports=["alan-turing-institute/autocast#386"],
    tags=["control-flow", "raw"],
)
def collective_save_inside_rank0_branch(rank: int) -> None:
    """Save on rank 0 and end together."""
    model = torch.nn.Linear(10, 1)
    if rank == 0:
        save(model)
    dist.barrier()


@repairs(collective_save_inside_rank0_branch)
def repaired(rank: int) -> None:
    """Every rank calls the helper, which decides itself which rank writes."""
    model = torch.nn.Linear(10, 1)
    save(model)
    dist.barrier()
