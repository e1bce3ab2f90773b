"""litgpt: its pretrain.setup with FSDP, validation and checkpoints. Bug: it validates on rank 0 only."""

import sys
from pathlib import Path

import torch
from litgpt import pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import DataModule
from torch.utils.data import DataLoader

validate = pretrain.validate


class RandomTokens(DataModule):
    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        tokens = torch.randint(0, 64, (32, max_seq_length + 1), generator=torch.Generator().manual_seed(3))
        self.train_dataloader = lambda: DataLoader(tokens, batch_size=batch_size)
        self.val_dataloader = lambda: DataLoader(tokens[:8], batch_size=batch_size)


def validate_on_first(fabric, model, *arguments, **options):
    if "bug" in sys.argv and fabric.global_rank:
        return torch.tensor(0.0)
    return validate(fabric, model, *arguments, **options)  # the bug


def main():
    pretrain.validate = validate_on_first
    pretrain.save_hyperparameters = lambda *arguments: None  # it reads the command line of litgpt
    sizes = {"block_size": 16, "n_layer": 2, "n_embd": 32, "n_head": 4, "padded_vocab_size": 64}
    steps = {"global_batch_size": 4, "micro_batch_size": 2, "max_tokens": 128, "save_interval": 2, "log_interval": 1}
    train = TrainArgs(max_norm=1.0, lr_warmup_steps=0, **steps)
    where = {"out_dir": Path("pretrained"), "devices": 2, "eval": EvalArgs(interval=2, max_iters=2)}
    pretrain.setup("pythia-14m", Config(**sizes), precision="32-true", data=RandomTokens(), train=train, **where)


if __name__ == "__main__":
    main()
