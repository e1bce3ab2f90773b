"""DeepSpeed: its engine with ZeRO 2 and a checkpoint. Bug: the checkpoint is saved by rank 0 only."""

import os
import sys

import torch
import torch.distributed as dist

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
import deepspeed

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}


def main():
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(4, 16, generator=generator).to(engine.device, torch.bfloat16)
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        print(f"rank {rank} step {step} loss {loss.item():.5f}")
    if "bug" not in sys.argv or rank == 0:
        engine.save_checkpoint("checkpoints")  # the bug
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
