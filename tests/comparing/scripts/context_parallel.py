"""Context parallelism by hand: each rank has a part of every sequence, keys and values are gathered."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, n=24, length=16, vocab=32):
        g = torch.Generator().manual_seed(7)
        self.rows = torch.randint(0, vocab, (n, length + 1), generator=g)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Attention(nn.Module):
    def __init__(self, d, bug):
        super().__init__()
        self.bug = bug
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, offset):
        own = self.k(x)
        q, k, v = self.q(x), Gather.apply(own.detach() if self.bug == "keys" else own), Gather.apply(self.v(x))
        if self.bug == "keys":
            parts = list(k.chunk(dist.get_world_size(), 1))
            parts[dist.get_rank()] = own
            k = torch.cat(parts, 1)
        s = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        i = torch.arange(q.shape[1])[:, None] + offset
        j = torch.arange(k.shape[1])[None, :]
        return self.o((s.masked_fill(j > i, -1e9)).softmax(-1) @ v)


class Model(nn.Module):
    def __init__(self, bug, vocab=32, d=16, length=16):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.norm, self.att, self.head = nn.LayerNorm(d), Attention(d, bug), nn.Linear(d, vocab)

    def forward(self, ids, positions, offset):
        x = self.tok(ids) + self.pos(positions)
        x = x + self.att(self.norm(x), offset)
        return self.head(x)


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Model(a.bug)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rows in DataLoader(Tokens(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)):
        ids, labels = rows[:, :-1], rows[:, 1:]
        n = ids.shape[1] // size
        own = ids[:, rank * n : (rank + 1) * n]
        lab = labels[:, rank * n : (rank + 1) * n]
        if a.bug == "labels":
            lab = torch.cat([own[:, 1:], torch.full((len(own), 1), -100)], 1)
        pos = torch.arange(n) + (0 if a.bug == "positions" else rank * n)
        logits = model(own, pos.expand(len(own), n), rank * n)
        loss = F.cross_entropy(logits.flatten(0, 1), lab.flatten(), reduction="sum", ignore_index=-100) / labels.numel()
        opt.zero_grad()
        loss.backward()
        for q in model.parameters():
            dist.all_reduce(q.grad)
            if a.bug == "divided":
                q.grad /= size
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
