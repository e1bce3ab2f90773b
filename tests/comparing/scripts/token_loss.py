"""DDP, accumulation, token-weighted loss, autocast, clipping and a schedule."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Text(Dataset):
    def __init__(self, n=64, vocab=40, length=10):
        g = torch.Generator().manual_seed(11)
        self.ids = torch.randint(1, vocab, (n, length), generator=g)
        lengths = torch.randint(3, length + 1, (n,), generator=g)
        self.labels = self.ids.roll(-1, 1).clone()
        for i, length in enumerate(lengths):
            self.labels[i, length:] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"ids": self.ids[i], "labels": self.labels[i]}


class LM(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.l = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.head(self.l(self.emb(ids))[0])


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--clip", type=float, default=0.5)
    p.add_argument("--amp", action="store_true")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    torch.manual_seed(4)
    model = DDP(LM())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 3))
    data = Text()
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = []
        for batch in loader:
            batches.append(batch)
            if len(batches) < a.accum:
                continue
            tokens = torch.stack([(b["labels"] != -100).sum() for b in batches]).sum().float()
            if a.bug not in ("own",):
                dist.all_reduce(tokens)
            scale = 1 if a.bug == "worldless" else size
            if a.bug == "own":
                scale = 1
            for k, b in enumerate(batches):
                with model.no_sync() if k < a.accum - 1 else nullcontext():
                    with torch.autocast("cpu", torch.bfloat16, enabled=a.amp):
                        out = model(b["ids"])
                    if a.bug == "micro":
                        loss = (
                            F.cross_entropy(out.float().flatten(0, 1), b["labels"].flatten(), ignore_index=-100)
                            / a.accum
                        )
                    else:
                        loss = (
                            F.cross_entropy(
                                out.float().flatten(0, 1), b["labels"].flatten(), ignore_index=-100, reduction="sum"
                            )
                            * scale
                            / tokens
                        )
                    loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
            opt.step()
            opt.zero_grad(set_to_none=True)
            sched.step()
            batches = []
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
