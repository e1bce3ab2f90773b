"""One rank makes the wrapper ignore a buffer that the others synchronise.

The names to ignore are not compared, so the broadcasts of rank 0's state have another content on that rank. Real gloo:
tensors of different sizes meet, and one process aborts. Our engine compares the names first, and every rank raises.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=finds(Code.RANK_ERROR, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#68803"],
    tags=["wrapping", "ddp"],
)
def ignored_names_differ_at_wrap(rank: int) -> None:
    """Keep the running statistics local on rank 1, and synchronise them elsewhere."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4))
    names = ["1.running_mean", "1.running_var"] if rank == 1 else []
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    model = DistributedDataParallel(module)  # found here
    model(torch.randn(8, 10)).square().mean().backward()


@repairs(ignored_names_differ_at_wrap)
def repaired(rank: int) -> None:
    """Every rank ignores the same names."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.BatchNorm1d(4))
    names = ["1.running_mean", "1.running_var"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    model = DistributedDataParallel(module)
    model(torch.randn(8, 10)).square().mean().backward()
