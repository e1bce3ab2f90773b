"""A Joinable of one's own: the mean and the largest loss of all ranks, kept up with while some have run out of input.

`LossMeter.update` makes two collectives. A rank that has joined has to make both as well, with values that change
nothing, for as long as others go on: that is its shadow, the main hook. It records what comes of them, too, so at the
end every rank has the losses of all steps.

`ddpsim run examples/joinable.py:train` runs it on four simulated ranks, and
`torchrun --nproc-per-node 4 examples/joinable.py` on four processes with gloo. test_joinable.py has the tests.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel


class LossMeter(Joinable):
    """For each step, the mean and the largest loss of the ranks that made it."""

    def __init__(self):
        super().__init__()
        self.means = []
        self.largest = []

    def update(self, loss):
        """Record a step; every rank that has input calls it."""
        Join.notify_join_context(self)
        self.record(torch.tensor([loss, 1.0]), torch.tensor(loss))

    def record(self, total, largest):
        """Add up sums and numbers of losses, and find the largest one."""
        dist.all_reduce(total)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        self.means.append((total[0] / total[1]).item())
        self.largest.append(largest.item())

    def join_hook(self, **kwargs):
        """What a rank does once it has joined."""
        return Shadow(self)

    @property
    def join_device(self):
        """Where the tensors are."""
        return torch.device("cpu")

    @property
    def join_process_group(self):
        """Who takes part."""
        return dist.group.WORLD


class Shadow(JoinHook):
    """The part of a rank that has no losses any more."""

    def __init__(self, meter):
        self.meter = meter

    def main_hook(self):
        """One step of the others: no loss, and none that could be the largest."""
        self.meter.record(torch.zeros(2), torch.tensor(-torch.inf))


def batches(rank):
    """Rank 3 has four batches, rank 0 has one."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(8, 10, generator=generator) for _ in range(rank + 1)]


def train(rank, meter_type=LossMeter):
    """Train with a model and a meter in one join, and return the meter."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    meter = meter_type()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model, meter]):
        for batch in batches(rank):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            meter.update(loss.item())
    return meter


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trained = train(dist.get_rank())
    print(f"rank {dist.get_rank()}: means {[round(mean, 3) for mean in trained.means]}")
    dist.destroy_process_group()
