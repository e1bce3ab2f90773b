"""What all tests share: one thread for torch's operators, options, and a reason where a needed GPU is not there."""

import argparse
import signal
from math import isfinite

import pytest
import torch

pytest_plugins = ["pytester", "tests.tiers"]


def pytest_addoption(parser):
    parser.addoption(
        "--fuzz-seconds",
        type=seconds,
        metavar="S",
        help="how long tests/fuzzing/test_engines.py fuzzes both engines (2 if not given, and with --tier nightly 60)",
    )


def seconds(text):
    """The number in the text of an option."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number of seconds above 0")
    return number


def pytest_configure(config):
    if config.option.fuzz_seconds is None:
        config.option.fuzz_seconds = 60.0 if config.option.tier == "nightly" else 2.0
    # Worker processes share the cores already; the simulator itself runs one rank at a time.
    torch.set_num_threads(1)
    # A job in a shell's background ignores Ctrl-C, and so would what the tests start and then interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Neighbours run on one worker, which makes once what they share; a worker that has none left takes from others."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch finds none"))
