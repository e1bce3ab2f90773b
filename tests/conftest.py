"""What all tests share: torch's threads, how hypothesis draws, options, and a reason where a GPU is not there."""

import argparse
import gc
import os
import signal
from contextlib import suppress
from math import isfinite
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from ddpsim.simulator.transport import memory
from ddpsim.simulator.virtual_gpus.building import NoVirtualGpusError, build_device
from tests.kit.replacements import refuse_what_has_no_row

pytest_plugins = ["pytester", "tests.tiers"]


def pytest_addoption(parser):
    parser.addoption(
        "--fuzz-seconds",
        type=seconds,
        metavar="S",
        help="how long tests/fuzzing/test_engines.py fuzzes both engines (if not given, 12 runs; by night 60)",
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
    refuse_what_has_no_row()
    if config.option.fuzz_seconds is None and config.option.tier == "nightly":
        config.option.fuzz_seconds = 60.0
    if not hasattr(config, "workerinput") and not torch.cuda.is_available():
        with suppress(NoVirtualGpusError):
            # Once, so that no test sees a rank build them: pytester gives its tests another home.
            os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
            build_device(lambda: print("building the virtual GPUs"))
    # What is drawn is the same each time, and no machine is too slow for it.
    settings.register_profile(
        "suite",
        settings.get_profile("default"),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("suite")
    # Worker processes share the cores already; the simulator itself runs one rank at a time.
    torch.set_num_threads(1)
    # A job in a shell's background ignores Ctrl-C, and so would what the tests start and then interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def virtual_gpus():
    """For a test that needs virtual GPUs: it is skipped where these cannot be built."""
    try:
        build_device(lambda: None)
    except NoVirtualGpusError as error:
        pytest.skip(str(error))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Neighbours run on one worker, which makes once what they share; a worker that has none left takes from others."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    # The simulator and pytest look through everything for garbage, some hundred times: torch and all tests are none.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch finds none"))


@pytest.fixture
def rank_order(monkeypatch):
    """Sums are in the order of ranks, wherever a tensor lies in its bucket, as engines with other buckets need."""
    monkeypatch.setattr(memory, "_ON_GLOO", {})
