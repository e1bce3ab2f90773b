"""What other versions and builds of torch have otherwise, stood in for on the one that is here."""

import pytest
import torch
from torch.fx import _symbolic_trace

from ddpsim import Verdict, simulate
from ddpsim.simulator.runtime.isolation.isolation import keep_device_guard


def test_tracing_that_each_thread_has_of_its_own(monkeypatch):
    monkeypatch.delattr(_symbolic_trace, "_is_fx_tracing_flag", raising=False)  # as in torch 2.15
    assert simulate(lambda rank: None, 2).verdict is Verdict.PASS
    assert not hasattr(_symbolic_trace, "_is_fx_tracing_flag")


BACKWARD_FIRST = ["backward", "guard"]
"""Else it starts threads for the guard's device, and no rank that is forked afterwards can go backward."""


@pytest.mark.parametrize(("cuda", "devices", "done"), [("13.0", 0, BACKWARD_FIRST), ("13.0", 1, []), (None, 0, [])])
def test_the_guard_of_a_machine_without_devices_is_the_simulating_threads(monkeypatch, cuda, devices, done):
    order = []
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: order.append("guard"))
    monkeypatch.setattr(torch.Tensor, "backward", lambda tensor: order.append("backward"))
    with torch.inference_mode(), torch.device("meta"):
        keep_device_guard()
    assert order == done
