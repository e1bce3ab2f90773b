"""Inside the join the output of one wrapped model is the input of another, so their calls are nested.

Torch's join makes up for one model after the other, each with its forward and backward, but here the second one's come
between: on real gloo a process aborts. The same holds for models of engine "ddp" under torch's Join; its
own, `ddp.Join`, follows the others in any order.
"""

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#54318"],
    tags=["ddp", "join"],
)
def join_with_chained_models(rank: int) -> None:
    """Train an encoder and a head, each in its own wrapper, on 4 batches, and on 2 on rank 1."""
    torch.manual_seed(rank)
    encoder = DistributedDataParallel(torch.nn.Linear(4, 3))
    head = DistributedDataParallel(torch.nn.Linear(3, 1))
    with Join([encoder, head]):  # found here
        for _ in range(2 if rank == 1 else 4):
            head(encoder(torch.randn(8, 4))).square().mean().backward()  # found here


@repairs(join_with_chained_models)
def repaired(rank: int) -> None:
    """One wrapper holds both."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)))
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()
