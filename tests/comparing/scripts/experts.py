"""Expert parallelism: one expert a rank; tokens travel by all_to_all; router with an auxiliary loss."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

E, D = 4, 8


class A2A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, outs, ins):
        ctx.s = outs, ins
        y = x.new_empty(sum(outs), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), outs, ins)
        return y

    @staticmethod
    def backward(ctx, g):
        outs, ins = ctx.s
        y = g.new_empty(sum(ins), g.shape[1])
        dist.all_to_all_single(y, g.contiguous(), ins, outs)
        return y, None, None


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Moe(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.bug = bug
        torch.manual_seed(3)
        rank, size = dist.get_rank(), dist.get_world_size()
        self.router = nn.Linear(D, E, bias=False)
        every = [nn.Sequential(nn.Linear(D, 16), nn.GELU(), nn.Linear(16, D)) for _ in range(E)]
        n = E // size
        self.experts = nn.ModuleDict({str(i): every[i] for i in range(rank * n, rank * n + n)})

    def forward(self, x):
        rank, size = dist.get_rank(), dist.get_world_size()
        n = E // size
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=E)
        per_rank = counts.view(size, n).sum(1)
        all_counts = [torch.empty_like(counts) for _ in range(size)]
        dist.all_gather(all_counts, counts)
        mine = torch.stack(all_counts)[:, rank * n : rank * n + n]
        xs = A2A.apply(x[order], mine.sum(1).tolist(), per_rank.tolist())
        # tokens of each source are sorted by expert
        which = torch.cat([torch.repeat_interleave(torch.arange(n), row) for row in mine])
        out = torch.zeros_like(xs)
        for k in range(n):
            sel = which == k
            out = out.index_put((sel.nonzero().squeeze(1),), self.experts[str(rank * n + k)](xs[sel]))
        back = A2A.apply(out, per_rank.tolist(), mine.sum(1).tolist())
        y = torch.empty_like(back).index_put((order,), back) * gate[:, None]
        frac, mean = counts.float() / len(x), probs.mean(0)
        if self.bug != "aux":
            frac = frac.clone()
            dist.all_reduce(frac)
            frac = frac / size
            mean = Summed.apply(mean) / size if size > 1 else mean
        aux = E * (frac * mean).sum()
        return x + y, aux


class Net(nn.Module):
    def __init__(self, bug):
        super().__init__()
        torch.manual_seed(2)
        self.inp = nn.Linear(6, D)
        self.moe = Moe(bug)
        self.out = nn.Linear(D, 3)

    def forward(self, x):
        h, aux = self.moe(torch.tanh(self.inp(x)))
        return self.out(h), aux


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    net = Net(a.bug)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 6, generator=g), torch.randint(0, 3, (64,), generator=g))
    for x, y in DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False)):
        opt.zero_grad()
        logits, aux = net(x)
        (F.cross_entropy(logits, y) + 0.1 * aux).backward()
        for n, q in net.named_parameters():
            if q.grad is None:
                q.grad = torch.zeros_like(q)
            if "experts" in n:
                if a.bug != "experts":
                    q.grad /= size  # tokens of all ranks, each with the weight of its own mean
                continue
            if a.bug == "router" and "router" in n:
                continue
            dist.all_reduce(q.grad)
            q.grad /= size
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
