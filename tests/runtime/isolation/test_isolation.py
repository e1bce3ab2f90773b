"""Each kind of state: ranks do not see each other's, the host sees nobody's, and afterwards all is as it was."""

import gc
import os
import random
import sys
import time
import warnings
import weakref
from contextlib import contextmanager

import numpy
import pytest
import torch
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ddpsim.simulator.runtime.isolation import Isolation
from ddpsim.simulator.runtime.isolation.environment import RankEnvironments
from ddpsim.simulator.runtime.isolation.modes import TorchModes
from ddpsim.simulator.runtime.isolation.native_memory import NativeState
from ddpsim.simulator.runtime.isolation.settings import ProcessSettings
from ddpsim.simulator.runtime.isolation.world import C10dWorlds


def numpy_state():
    state = numpy.random.get_state(legacy=False)
    return (state["bit_generator"], str(state["state"]), state["has_gauss"], state["gauss"])


def torch_state():
    return torch.get_rng_state().tolist()


def filters():
    return (list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl)


def streams():
    return (sys.stdin, sys.stdout, sys.stderr, list(sys.argv), sys.excepthook)


def modes():
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )


def world():
    c10d = distributed_c10d
    return (
        c10d._world,
        c10d._world.default_pg,
        dict(c10d._world.pg_map),
        c10d._world.group_count,
        c10d._default_pg_init_method,
        c10d._backend,
        DistributedDataParallel._active_ddp_module,
    )


def seeds_for_cuda():
    tracker = torch.cuda._lazy_seed_tracker
    return (tracker, tracker.manual_seed_all_cb)


TOUCHES = {
    "random": (random.getstate, random.random),
    "random-seed": (random.getstate, lambda: random.seed(99)),
    "random-gauss": (random.getstate, lambda: random.gauss(0, 1)),
    "random-state": (random.getstate, lambda: random.setstate(random.Random(5).getstate())),
    "numpy": (numpy_state, numpy.random.rand),
    "numpy-seed": (numpy_state, lambda: numpy.random.seed(99)),
    "numpy-normal": (numpy_state, numpy.random.standard_normal),
    "numpy-generator": (numpy_state, lambda: numpy.random.set_bit_generator(numpy.random.PCG64(3))),
    "torch": (torch_state, lambda: torch.rand(1)),
    "torch-seed": (torch_state, lambda: torch.manual_seed(99)),
    "torch-normal": (torch_state, lambda: torch.randn(1)),
    "cuda-seed": (seeds_for_cuda, lambda: torch.cuda.manual_seed_all(99)),
    "environ-set": (os.environ.copy, lambda: os.environ.update(DDPSIM_TEST="1")),
    "environ-delete": (os.environ.copy, lambda: os.environ.pop("PATH")),
    "warnings-filter": (filters, lambda: warnings.simplefilter("always")),
    "warnings-show": (filters, lambda: setattr(warnings, "showwarning", print)),
    "warnings-catch": (filters, lambda: warnings.catch_warnings(record=True).__enter__()),
    "stdout": (streams, lambda: setattr(sys, "stdout", sys.stderr)),
    "argv": (streams, lambda: sys.argv.append("--more")),
    "excepthook": (streams, lambda: setattr(sys, "excepthook", print)),
    "dtype": (modes, lambda: torch.set_default_dtype(torch.float64)),
    "deterministic": (modes, lambda: torch._C._set_deterministic_algorithms(True, warn_only=True)),
    "anomaly": (modes, lambda: torch.autograd.set_detect_anomaly(True, check_nan=False)),
    "world-group": (world, lambda: setattr(distributed_c10d._world, "default_pg", "a group")),
    "world-map": (world, lambda: distributed_c10d._world.pg_map.update({"a group": ("gloo", None)})),
    "world-count": (world, lambda: setattr(distributed_c10d._world, "group_count", 7)),
    "init-method": (world, lambda: setattr(distributed_c10d, "_default_pg_init_method", "env://")),
    "active-module": (world, lambda: setattr(DistributedDataParallel, "_active_ddp_module", "a module")),
}


@pytest.mark.parametrize("kind", TOUCHES)
def test_what_a_rank_touches(kind, isolation):
    read, touch = TOUCHES[kind]
    host = read()
    isolation.switch_rank(None, 0)
    isolation.switch_rank(0, 1)
    fresh = read()
    isolation.switch_rank(1, 0)

    touch()
    touched = read()
    isolation.switch_rank(0, 1)
    assert read() == fresh
    isolation.switch_rank(1, 0)
    assert read() == touched
    isolation.switch_rank(0, None)
    assert read() == host
    isolation.switch_rank(None, 0)
    assert read() == touched

    isolation.uninstall()
    assert read() == host


@pytest.mark.parametrize("kind", TOUCHES)
def test_without_a_switch_it_leaks(kind, isolation):
    # Keeps the test above honest: each touch is one that the next rank would see.
    read, touch = TOUCHES[kind]
    isolation.switch_rank(None, 0)
    before = read()
    touch()
    assert read() != before


def fingerprint(in_thread):
    """All that the tests here touch, and the identities of the objects that hold it."""
    name, group = "is it found in another thread?", torch.distributed.ProcessGroup(0, 1)
    c10d = torch._C._distributed_c10d
    c10d._register_process_group(name, group)
    try:
        is_shared = in_thread(lambda: resolves(name))
    finally:
        c10d._unregister_process_group(name)
    return (
        [read() for read, _ in TOUCHES.values()],
        [
            id(x)
            for x in (os.environ._data, os.environb._data, warnings.filters, sys.argv, device_mesh.DeviceMesh.__init__)
        ],
        [time.sleep, time.time, time.monotonic],
        [torch.get_num_threads(), in_thread(torch.get_num_threads), is_shared],
    )


def resolves(name):
    try:
        torch._C._distributed_c10d._resolve_process_group(name)
    except RuntimeError:
        return False
    return True


@contextmanager
def leaves_no_mark(in_thread):
    """Afterwards all is as it was before."""
    before = fingerprint(in_thread)
    yield
    assert fingerprint(in_thread) == before


def touched(*, kinds=slice(None)):
    """An isolation in the middle of a rank that has touched what there is."""
    isolation = Isolation(2)
    isolation.install()
    isolation.switch_rank(None, 0)
    for _, touch in [*TOUCHES.values()][kinds]:
        touch()
    return isolation


def test_a_thousand_rounds_leave_no_mark(in_thread):
    with leaves_no_mark(in_thread):
        for number in range(1000):
            isolation = touched(kinds=slice(number % 4, None, 4))
            isolation.switch_rank(0, 1)
            torch.rand(1)
            isolation.uninstall()


def test_installed_again_ranks_start_afresh(isolation):
    isolation.switch_rank(None, 0)
    fresh = [read() for read, _ in TOUCHES.values()]
    for _, touch in TOUCHES.values():
        touch()
    isolation.uninstall()
    isolation.install()
    isolation.switch_rank(None, 0)
    again = [read() for read, _ in TOUCHES.values()]
    for (read, _), first, second in zip(TOUCHES.values(), fresh, again, strict=True):
        assert read in (world, seeds_for_cuda) or first == second  # those two are new objects
    assert distributed_c10d._world.default_pg is None
    assert torch.cuda._lazy_seed_tracker.manual_seed_all_cb is None


def interrupt(*args):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("part", "step"),
    [
        pytest.param(RankEnvironments, "initial_variables", id="initial"),
        pytest.param(ProcessSettings, "read_settings", id="save"),
        pytest.param(ProcessSettings, "write_settings", id="load"),
        pytest.param(NativeState, "load_state", id="generator"),
    ],
)
def test_ctrl_c_in_the_middle_of_a_switch(part, step, monkeypatch, in_thread):
    with leaves_no_mark(in_thread):
        isolation = touched()
        with monkeypatch.context() as patch:
            patch.setattr(part, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                isolation.switch_rank(0, 1)
        isolation.uninstall()


def test_ctrl_c_while_the_host_s_state_is_put_back(monkeypatch, in_thread):
    with leaves_no_mark(in_thread):
        isolation, write, calls = touched(), ProcessSettings.write_settings, []

        def interrupted_once(*args):
            calls.append(args)
            if len(calls) == 1:
                raise KeyboardInterrupt
            write(*args)

        with monkeypatch.context() as patch:
            patch.setattr(ProcessSettings, "write_settings", interrupted_once)
            with pytest.raises(KeyboardInterrupt):
                isolation.uninstall()


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (RankEnvironments, "__init__"),
        (TorchModes, "__init__"),
        (TorchModes, "install"),
        (ProcessSettings, "read_settings"),
        (C10dWorlds, "install"),
    ],
)
def test_an_install_that_fails_half_way(kind, step, monkeypatch, in_thread):
    with leaves_no_mark(in_thread):
        isolation = Isolation(2)
        with monkeypatch.context() as patch:
            patch.setattr(kind, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                isolation.install()
        isolation.uninstall()


def test_one_part_that_fails_to_go_back_does_not_keep_the_others(monkeypatch):
    before = random.getstate()
    monkeypatch.setattr(TorchModes, "uninstall", interrupt)
    isolation = Isolation(1)
    isolation.install()
    in_place = isolation._modes
    isolation.switch_rank(None, 0)
    random.random()
    with pytest.raises(KeyboardInterrupt):
        isolation.uninstall()
    assert random.getstate() == before
    monkeypatch.undo()
    in_place.uninstall()


def test_who_does_not_hold_the_baton_cannot_give_it_away(isolation):
    isolation.switch_rank(None, 0)
    with pytest.raises(AssertionError, match="1 gives away what 0 has"):
        isolation.switch_rank(1, 2)


def test_a_straggler_that_switches_after_the_end_changes_nothing(isolation, in_thread):
    isolation.switch_rank(None, 0)
    isolation.uninstall()
    with leaves_no_mark(in_thread):
        isolation.switch_rank(0, 1)


def test_states_are_dropped():
    isolation = Isolation(2)
    isolation.install()
    isolation.switch_rank(None, 0)
    seen = weakref.ref(distributed_c10d._world)
    isolation.switch_rank(0, 1)
    isolation.uninstall()
    gc.collect()
    assert seen() is None
