"""What every process of a campaign has alike: one thread for torch's operators, and no warnings of what is drawn."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def quiet() -> Iterator[None]:
    """Sums come out the same whatever the machine, and nobody is told that an option that was drawn is deprecated."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torch.distributed.optim")  # takes seconds, in which a rank would seem to be stuck
            yield
    finally:
        torch.set_num_threads(threads)
