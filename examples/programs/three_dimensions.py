"""FSDP2, tensor and pipeline parallelism at once: a small transformer on 8 ranks, compared with the whole one."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORDS, WIDTH, HEAD, LENGTH, ROWS = 32, 16, 4, 6, 4
NAMES = ("pp", "dp", "tp")
PLAN = {
    "query": ColwiseParallel(),
    "key": ColwiseParallel(),
    "value": ColwiseParallel(),
    "output": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        seen = self.first_norm(x)
        heads = [each(seen).unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (self.query, self.key, self.value)]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))


class Transformer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(layers)})
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.head is not None else x


def stage_of(mesh, layers):
    """This rank's part of the layers, split by tp, sharded by dp."""
    stage, stages = mesh.get_local_rank("pp"), mesh["pp"].size()
    model = Transformer(layers)
    each = layers // stages
    for number in range(layers):
        if number // each != stage:
            del model.blocks[str(number)]
    if stage > 0:
        model.embedding = None
    if stage < stages - 1:
        model.head = None
    for block in model.blocks.values():
        parallelize_module(block, mesh["tp"], PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    group = mesh["pp"].get_group()
    return model, PipelineStage(model, stage, stages, torch.device("cpu"), group=group)


def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(step, parts):
    torch.manual_seed(100 + step)
    words = torch.randint(WORDS, (parts * ROWS, LENGTH + 1))
    return words[:, :-1], words[:, 1:]


def train_in_parts(mesh, layers, steps):
    model, stage = stage_of(mesh, layers)
    schedule = Schedule1F1B(stage, n_microbatches=ROWS, loss_fn=loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    share, parts = mesh.get_local_rank("dp"), mesh["dp"].size()
    for step in range(steps):
        x, y = (each.chunk(parts)[share] for each in batch(step, parts))
        optimizer.zero_grad()
        losses = []
        schedule.step(*((x,) if stage.is_first else ()), **({"target": y, "losses": losses} if stage.is_last else {}))
        optimizer.step()
        if losses and mesh.get_rank() == dist.get_world_size() - 1:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}")
    return model


def train_whole(layers, steps, parts):
    model = Transformer(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(step, parts)
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
    return model


def furthest_from_the_whole(mesh, layers, steps):
    model = train_in_parts(mesh, layers, steps)
    whole = dict(train_whole(layers, steps, mesh["dp"].size()).named_parameters())
    furthest = 0.0
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        furthest = max(furthest, (full - whole[name]).abs().max().item())
    return furthest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", type=int, nargs=3, default=(2, 2, 2), metavar=("PP", "DP", "TP"))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", tuple(options.mesh), mesh_dim_names=NAMES)
    furthest = furthest_from_the_whole(mesh, options.layers, options.steps)
    where = " ".join(f"{name} {index}" for name, index in zip(NAMES, mesh.get_coordinate(), strict=True))
    print(f"{where}: as the whole after {options.steps} steps: {furthest < 1e-5}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
