"""Composer: its Trainer with evaluation and checkpoints. Bug: a callback gathers losses on rank 0 only."""

import sys

import torch
from composer import Callback, Trainer
from composer.models import ComposerClassifier
from composer.utils import dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOSSES = []


class Losses(Callback):
    def batch_end(self, state, logger):
        LOSSES.append(round(float(state.loss), 4))

    def epoch_end(self, state, logger):
        if "bug" not in sys.argv or dist.get_global_rank() == 0:
            dist.all_gather_object(LOSSES)  # the bug


def main():
    device = "gpu" if torch.cuda.is_available() else "cpu"
    dist.initialize_dist(device)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 8, generator=generator), torch.arange(24) % 3)
    loaders = [DataLoader(data, batch_size=4, sampler=dist.get_sampler(data, shuffle=each)) for each in (True, False)]
    torch.manual_seed(1)
    model = ComposerClassifier(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), num_classes=3)
    quiet = {"progress_bar": False, "loggers": [], "save_folder": "checkpoints", "precision": "fp32"}
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    steps = {"max_duration": "2ep", "device": device, "seed": 3, "optimizers": optimizer, "callbacks": [Losses()]}
    Trainer(model=model, train_dataloader=loaders[0], eval_dataloader=loaders[1], **steps, **quiet).fit()
    print(f"rank {dist.get_global_rank()} losses {LOSSES}")


if __name__ == "__main__":
    main()
