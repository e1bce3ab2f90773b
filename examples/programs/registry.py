"""Models, losses and hooks in a registry that decorators fill; each rank adds one of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

REGISTRY = {"model": {}, "loss": {}}


def register(kind, name):
    def decorator(item):
        if name in REGISTRY[kind]:
            raise KeyError(f"{name} is registered already")
        REGISTRY[kind][name] = item
        return item

    return decorator


@register("model", "linear")
def build_linear():
    return nn.Linear(2, 2)


@register("loss", "mse")
def mse(prediction, target):
    return ((prediction - target) ** 2).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    @register("loss", "weighted")
    def weighted(prediction, target):
        return mse(prediction, target) * (rank + 1)

    torch.manual_seed(3)
    model = DDP(REGISTRY["model"]["linear"]())
    loss = REGISTRY["loss"]["weighted"](model(torch.ones(4, 2)), torch.zeros(4, 2))
    loss.backward()
    print(f"rank {rank} losses {sorted(REGISTRY['loss'])} loss {loss.item():.5f}")
    print(f"rank {rank} gradient {model.module.weight.grad.sum().item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
