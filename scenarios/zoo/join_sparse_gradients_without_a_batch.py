"""A rank without a batch joins a model with sparse gradients, and fails on a bucket that it has never seen.

torch's join lets the joined rank reduce the bucket's own tensor; a sparse one has none before its first gradient. The
others wait for a rank that raised. Our engine makes the reduction that the others announce, without any element.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, repairs, scenario


def train(batches: int, *, sparse: bool) -> None:
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
    """Train on 2 batches, and on none on rank 1."""
    train(0 if rank == 1 else 2, sparse=True)


@repairs(join_sparse_gradients_without_a_batch)
def repaired(rank: int) -> None:
    """Dense gradients."""
    train(0 if rank == 1 else 2, sparse=False)
