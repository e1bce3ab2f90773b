"""A module of the C++ frontend, compiled here and wrapped for Python, trains under the engine.

torch::python::bind_module makes a torch.nn.cpp.ModuleWrapper of it: a torch.nn.Module that hands out its parameters
anew on each request.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.cpp import ModuleWrapper
from torch.utils import cpp_extension

from ddpsim.ddp import DistributedDataParallel, ParameterChangedError
from ddpsim.simulator.calls import Phase
from tests.kit import oracle
from tests.kit.running import assert_equal, calls, run
from tests.kit.training import TINY, Training, ramp, seeded, steps, trained

pytestmark = pytest.mark.tier("nightly")

SOURCE = """
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/python.h>

struct Count : torch::nn::Module {
  Count() : rows(register_buffer("rows", torch::zeros({}))) {}
  torch::Tensor rows;
};

struct Net : torch::nn::Module {
  Net() : layer(register_module("layer", torch::nn::Linear(4, 3))),
          count(register_module("count", std::make_shared<Count>())),
          scale(register_parameter("scale", torch::ones({3}))) {}

  torch::Tensor forward(const torch::Tensor& batch) {
    count->rows.add_(batch.sum());
    return torch::tanh(layer->forward(batch)) * scale;
  }

  torch::nn::Linear layer;
  std::shared_ptr<Count> count;
  torch::Tensor scale;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  torch::python::bind_module<Net>(module, "Net")
      .def(pybind11::init<>())
      .def("forward", &Net::forward);
}
"""


def missing():
    """What it takes to compile an extension, and is not there."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"a C++ compiler ({compiler})"
    if not cpp_extension.is_ninja_available():
        return "ninja"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h"
    return None


def compiled(folder):
    """The extension. Only the headers it needs, and no optimization: compiling takes most of this test's time."""
    return cpp_extension.load_inline(
        "ddp_test_cpp_module",
        SOURCE,
        extra_cflags=["-O0", "-g0", "-w", "-fvisibility=hidden"],
        build_directory=str(folder),
        no_implicit_headers=True,
    )


class Twin(nn.Module):
    """The same in Python."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.layer = nn.Linear(4, 3)

    def forward(self, batch):
        return torch.tanh(self.layer(batch)) * self.scale


BATCHES = tuple(tuple(ramp(rank, number).float() for number in range(3)) for rank in range(2))
TRAINING = Training(Twin, BATCHES, lambda model, batch: model(batch).pow(2).sum())


def trained_in_cpp(rank, frontend, options):
    module = frontend.Net()
    if rank == 0:
        twin = dict(seeded(Twin).named_parameters())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(twin[name])
    model = DistributedDataParallel(module, **options)
    # Not of the wrapper's: those of a module with a C++ module inside are out of reach, for torch's engine, too.
    steps(model, TRAINING.optimizer(module), TRAINING, BATCHES[rank])
    return trained(module)


def unfreezing(rank, frontend):
    """A change is noticed, although the module hands out its parameters anew on each request."""
    module = frontend.Net()
    model = DistributedDataParallel(module)
    model(BATCHES[rank][0]).sum().backward()
    dict(module.named_parameters())["layer.bias"].requires_grad_(False)
    with pytest.raises(ParameterChangedError, match=r"layer\.bias was frozen"):
        model(BATCHES[rank][0])


OPTIONS = (
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"bucket_cap_mb": TINY},
    {"gradient_as_bucket_view": True},
)


def test_it_trains_like_its_twin_in_python(tmp_path, monkeypatch):
    # ninja comes with the `dev` extra; it stands beside the interpreter, which need not be on the path.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if missing() is not None:
        pytest.skip(f"needs {missing()} to compile a C++ module")
    # One test, so that it is compiled once, also where tests are shared out to several processes.
    frontend = compiled(tmp_path)
    assert isinstance(frontend.Net(), ModuleWrapper)
    expected = oracle.expected(TRAINING)
    for options in OPTIONS:
        result = run(trained_in_cpp, 2, frontend, options)
        for rank, found in enumerate(result.returns):
            assert_equal(found.parameters, expected[rank].parameters)
            assert_equal(found.gradients, expected[rank].gradients)
            # Before each forward the buffer becomes rank 0's.
            seen = [*BATCHES[0][:-1], BATCHES[rank][-1]]
            assert found.buffers["count.rows"].item() == pytest.approx(sum(batch.sum().item() for batch in seen))
        sent = {name for call in calls(result, Phase.BUCKET) for name in call.origin.parameters}
        assert sent == found.parameters.keys()
    run(unfreezing, 2, frontend)
