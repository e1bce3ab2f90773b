"""A communication hook of one's own: each rank sends the larger half of its gradients, and keeps the rest for later.

What was not sent is added to the gradients of the next step, so in the long run nothing is lost. It is kept by
parameter, as a bucket's number means other parameters from the second step on: the wrapper forms its buckets anew.

`ddpsim run examples/communication_hook.py:train` runs it on four simulated ranks, and
`torchrun --nproc-per-node 4 examples/communication_hook.py` on four processes with gloo. test_communication_hook.py has
the tests.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def larger_half(values):
    """True where a value is at least as large as the median."""
    return values.abs() >= values.abs().median()


def send_larger_half(kept, bucket):
    """The hook. `kept` has what this rank has not sent yet, by parameter."""
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        gradient += kept.get(parameter, 0.0)
        is_sent = larger_half(gradient)
        kept[parameter] = gradient * ~is_sent
        gradient *= is_sent
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def make_model():
    """The same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def batches(rank):
    """What this rank trains on."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 6, generator=generator) for _ in range(STEPS)]


def train(rank, hook=send_larger_half):
    """Train with a hook, and return the model."""
    model = DistributedDataParallel(make_model())
    model.register_comm_hook({}, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(rank):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model.module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trained = train(dist.get_rank())
    print(f"rank {dist.get_rank()}: bias {trained[2].bias.item():.6f}")
    dist.destroy_process_group()
