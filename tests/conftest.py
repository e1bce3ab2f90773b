"""What all tests share: one thread for torch's operators, and a reason where a test needs a GPU that is not there."""

import pytest
import torch


def pytest_configure(config):
    # Worker processes share the cores already; the simulator itself runs one rank at a time.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch finds none"))
