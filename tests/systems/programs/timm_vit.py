"""timm: a tiny vision transformer with its optimizer and reduction. Bug: validation on rank 0 only."""

import sys

import torch
import torch.distributed as dist
from timm import create_model, utils
from timm.optim import create_optimizer_v2
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def validate(model, device):
    images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(9)).to(device)
    top1, _ = utils.accuracy(model(images), torch.arange(8, device=device) % 2, topk=(1, 2))
    return utils.reduce_tensor(top1, dist.get_world_size()).item()  # the bug


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = DDP(create_model("test_vit", num_classes=2, img_size=64).to(device))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(3):
        predicted = model(torch.randn(4, 3, 64, 64, generator=generator).to(device))
        loss = torch.nn.functional.cross_entropy(predicted, torch.arange(4, device=device) % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "bug" not in sys.argv or rank == 0:
            validate(model.module, device)
        print(f"rank {rank} step {step} loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
