"""A recurrent network that keeps its state from step to step, in two micro-batches; each rank has some of the rows."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(15, 6), nn.GRUCell(6, 8), nn.Linear(8, 15)

    def forward(self, tokens, state):
        hidden = []
        for each in self.table(tokens).unbind(1):
            state = self.cell(each, state)
            hidden.append(state)
        return self.out(torch.stack(hidden, 1)), state


def main(argv=None):
    p = argparse.ArgumentParser()
    p.add_argument("--bug", default="")
    a = p.parse_args(argv)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    text = torch.randint(0, 15, (8, 25)).chunk(size)[rank]
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    states = [torch.zeros(len(part), 8) for part in text.chunk(2)]
    for start in range(0, 24, 6):
        opt.zero_grad()
        for number, part in enumerate(text.chunk(2)):
            logits, state = model(part[:, start : start + 6], states[number])
            (F.cross_entropy(logits.flatten(0, 1), part[:, start + 1 : start + 7].flatten()) / 2).backward()
            states[number] = state.detach()
            if a.bug == "reset" and rank:
                states[number] = torch.zeros_like(state)
            if a.bug == "state of rank 0":
                dist.broadcast(states[number], 0)
        for name, each in model.named_parameters():
            dist.all_reduce(each.grad)
            each.grad /= size
            if a.bug == "zeroed" and rank and name == "out.bias":
                each.grad.zero_()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
