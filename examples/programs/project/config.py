import os
from dataclasses import dataclass

RANK = int(os.environ.get("RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))
IS_MAIN = RANK == 0


@dataclass
class Config:
    epochs: int = 2
    hidden: int = 16
    lr: float = 0.05
    seed: int = 7
