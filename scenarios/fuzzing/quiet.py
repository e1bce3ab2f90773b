"""Settings of every process in a campaign: one torch thread, and no warnings about drawn options."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def quiet() -> Iterator[None]:
    """Set one torch thread, so that sums are equal on all machines, and silence warnings about deprecated options."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torch.distributed.optim")  # takes seconds, in which a rank would look stuck
            yield
    finally:
        torch.set_num_threads(threads)
