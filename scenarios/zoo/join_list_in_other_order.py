"""A join is given two wrapped models in another order than the loop trains them in.

Torch's join makes up for the calls of its models one after the other, in the order of the list, so those of one model
meet those of the other: on real gloo all wait until a time-out. The same holds for models of engine "ddp" under
torch's Join; its own, `ddp.Join`, follows the others in any order.
"""

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


def models(rank: int) -> tuple[DistributedDataParallel, DistributedDataParallel]:
    """Two, of different sizes."""
    torch.manual_seed(rank)
    return DistributedDataParallel(torch.nn.Linear(4, 1)), DistributedDataParallel(torch.nn.Linear(4, 2))


@scenario(
    expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    under_ddp=finds(Code.MISMATCH_DTYPE, ranks=odd_one_out(1)),
    tags=["ddp", "join"],
)
def join_list_in_other_order(rank: int) -> None:
    """Train the first and then the second, on 4 batches, and on 2 on rank 1."""
    first, second = models(rank)
    with Join([second, first]):  # found here
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()  # found here
            second(batch).square().mean().backward()


@repairs(join_list_in_other_order)
def repaired(rank: int) -> None:
    """The list has the order of the loop."""
    first, second = models(rank)
    with Join([first, second]):
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            first(batch).square().mean().backward()
            second(batch).square().mean().backward()
