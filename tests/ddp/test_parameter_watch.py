"""A model whose parameters are no longer those the engine was built for: noticed before a forward, and named."""

from __future__ import annotations

import copy
from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn.cpp import ModuleWrapper
from torch.nn.utils import parametrizations, parametrize

from ddpsim.ddp.errors import ParameterChangedError
from ddpsim.ddp.parameter_watch import KnownTrainability, ParameterWatch
from tests.kit.rows import rows

WAY_OUT = "; construct the DistributedDataParallel anew after changing the model"


class Net(nn.Module):
    """Trainable, frozen and shared parameters, a bias left out, and one submodule more."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.decoder.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def watched(module, ignored=()):
    managed = {name: p for name, p in module.named_parameters() if p.requires_grad and name not in ignored}
    return ParameterWatch(module, managed, ignored=ignored)


def new():
    return nn.Parameter(torch.ones(4, 4))


CHANGES = {
    "frozen": (lambda net: net.encoder.bias.requires_grad_(False), "encoder.bias was frozen"),
    "unfrozen": (lambda net: net.frozen.bias.requires_grad_(True), "frozen.bias was unfrozen"),
    "replaced": (
        lambda net: setattr(net.encoder, "weight", new()),
        "encoder.weight was replaced by another parameter",
    ),
    "frozen one replaced": (
        lambda net: setattr(net.frozen, "weight", new()),
        "frozen.weight was replaced by another parameter",
    ),
    "untied": (lambda net: setattr(net.tied, "weight", new()), "tied.weight was replaced by another parameter"),
    "added": (lambda net: net.register_parameter("scale", new()), "scale was added"),
    "added where None was": (lambda net: setattr(net.decoder, "bias", new()), "decoder.bias was added"),
    "added in a new submodule": (
        lambda net: net.block.append(nn.Linear(4, 4)),
        "block.2.weight was added, block.2.bias was added",
    ),
    "added below a leaf": (
        lambda net: net.encoder.add_module("adapter", nn.Linear(4, 4, bias=False)),
        "encoder.adapter.weight was added",
    ),
    "removed": (lambda net: delattr(net.encoder, "bias"), "encoder.bias was removed"),
    "set to None": (lambda net: setattr(net.encoder, "bias", None), "encoder.bias was removed"),
    "submodule removed": (lambda net: delattr(net, "frozen"), "frozen.weight was removed, frozen.bias was removed"),
    "submodule replaced": (
        lambda net: setattr(net, "encoder", nn.Linear(4, 4, bias=False)),
        "encoder.weight was replaced by another parameter, encoder.bias was removed",
    ),
    "parametrized": (
        lambda net: parametrizations.weight_norm(net.encoder),
        "encoder.weight was removed, encoder.parametrizations.weight.original0 was added, "
        "encoder.parametrizations.weight.original1 was added",
    ),
    "converted": (
        lambda net: net.encoder.to(torch.float64),
        "encoder.weight was converted from float32 on cpu to float64 on cpu, "
        "encoder.bias was converted from float32 on cpu to float64 on cpu",
    ),
    "one left trainable": (
        lambda net: (net.requires_grad_(False), net.encoder.bias.requires_grad_(True)),
        "encoder.weight was frozen, decoder.weight was frozen, tied.bias was frozen, block.0.weight was frozen, "
        "block.0.bias was frozen",
    ),
    "all frozen, and one added": (
        lambda net: (net.requires_grad_(False), net.register_parameter("scale", new())),
        "scale was added",
    ),
    "all frozen but one that was so": (
        lambda net: (net.requires_grad_(False), net.frozen.requires_grad_(True)),
        "frozen.weight was unfrozen, frozen.bias was unfrozen",
    ),
}


@rows("change", CHANGES)
def test_change_is_noticed_and_named(change):
    apply, expected = CHANGES[change]
    net = Net()
    watch = watched(net)
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    apply(net)
    for _ in range(2):
        with pytest.raises(ParameterChangedError) as error:
            watch.check_parameters()
        assert str(error.value) == f"parameters changed after construction: {expected}{WAY_OUT}"


@pytest.mark.gpu
def test_moved_to_another_device():
    net = nn.Linear(4, 4, bias=False)
    watch = watched(net)
    net.to("cuda")
    with pytest.raises(ParameterChangedError, match="weight was converted from float32 on cpu to float32 on cuda:0; "):
        watch.check_parameters()


def test_many_changes_are_abbreviated():
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10)))
    watch = watched(net)
    net[1:].requires_grad_(False)
    with pytest.raises(ParameterChangedError, match=r"3\.weight was frozen, 13 more such changes; construct"):
        watch.check_parameters()


def step(net):
    net.encoder(torch.ones(4)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(step, id="a step"),
        pytest.param(lambda net: net.load_state_dict(copy.deepcopy(net.state_dict())), id="state loaded"),
        pytest.param(lambda net: net.eval(), id="evaluation"),
        pytest.param(lambda net: net.to(torch.float32), id="converted to what it is"),
        pytest.param(lambda net: net.to(torch.float64).to(torch.float32), id="converted and back"),
        pytest.param(lambda net: setattr(net.block, "1", nn.Tanh()), id="another activation"),
        pytest.param(lambda net: net.block.append(nn.Tanh()), id="one activation more"),
        pytest.param(lambda net: setattr(net.encoder.weight, "data", torch.zeros(4, 4)), id="other data"),
        pytest.param(lambda net: net.register_buffer("count", torch.ones(1)), id="a buffer"),
        pytest.param(lambda net: setattr(net.encoder, "weight", net.encoder.weight), id="assigned again"),
    ],
)
def test_what_does_not_matter_passes(change):
    net = Net()
    watch = watched(net)
    change(net)
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    net.encoder.bias = new()
    with pytest.raises(ParameterChangedError, match=r"encoder\.bias was replaced"):
        watch.check_parameters()


def test_what_a_new_submodule_gets_later_is_noticed():
    net = Net()
    watch = watched(net)
    net.block.append(nn.Sequential())
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    net.block[2].append(nn.Linear(4, 4, bias=False))
    with pytest.raises(ParameterChangedError, match=r"block\.2\.0\.weight was added"):
        watch.check_parameters()


def test_all_frozen_at_once_is_legal():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    watch = watched(net)
    for _ in range(2):
        net.requires_grad_(False)
        assert watch.check_parameters() is KnownTrainability.ALL_FROZEN
        net.requires_grad_(True)
        assert watch.check_parameters() is KnownTrainability.TRAINABLE


def test_all_frozen_and_a_change_that_does_not_matter():
    net = Net()
    watch = watched(net)
    net.requires_grad_(False)
    net.block.append(nn.ReLU())
    assert watch.check_parameters() is KnownTrainability.ALL_FROZEN
    assert watch.check_parameters() is KnownTrainability.ALL_FROZEN


@rows(
    "change",
    [
        lambda net: net.encoder.requires_grad_(False),
        lambda net: setattr(net.encoder, "weight", new()),
        lambda net: setattr(net, "encoder", nn.Linear(4, 4)),
        lambda net: net.encoder.double(),
        lambda net: delattr(net.encoder, "bias"),
    ],
)
def test_ignored_parameters_may_change(change):
    net = Net()
    watch = watched(net, ignored=("encoder.weight", "encoder.bias"))
    change(net)
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    net.block[0].bias.requires_grad_(False)
    with pytest.raises(ParameterChangedError, match=r"construction: block\.0\.bias was frozen; "):
        watch.check_parameters()


def test_a_parametrization_from_the_start_is_nothing_special():
    net = Net()
    parametrizations.weight_norm(net.encoder)
    watch = watched(net)
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    parametrize.remove_parametrizations(net.encoder, "weight")
    with pytest.raises(ParameterChangedError, match=r"encoder\.parametrizations\.weight\.original0 was removed"):
        watch.check_parameters()


class CppDict(UserDict):
    """As torch's C++ frontend gives its dictionaries to Python: not a dict, and a copy of what is there at the time."""


class CppModule:
    """Looks like a bound C++ module. Its parameters are plain tensors, not Parameters."""

    _buffers = property(lambda self: CppDict())
    _modules = property(lambda self: CppDict())
    _parameters = property(lambda self: CppDict(self.members))

    def __init__(self):
        self.members = {"weight": torch.ones(2, requires_grad=True), "bias": torch.ones(2, requires_grad=True)}
        self.training = True

    def train(self, mode):
        self.training = mode


@rows(
    ("change", "expected"),
    [
        (lambda cpp: cpp.members["bias"].requires_grad_(False), "0.bias was frozen"),
        (lambda cpp: cpp.members.update(bias=torch.ones(2)), "0.bias was replaced by another parameter"),
        (lambda cpp: cpp.members.update(scale=torch.ones(2)), "0.scale was added"),
        (lambda cpp: cpp.members.pop("bias"), "0.bias was removed"),
    ],
    ids=["frozen", "replaced", "added", "removed"],
)
def test_modules_of_the_cpp_frontend(change, expected):
    cpp = CppModule()
    net = nn.Sequential(ModuleWrapper(cpp), nn.Linear(2, 2))
    watch = watched(net)
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
    change(cpp)
    with pytest.raises(ParameterChangedError, match=f"construction: {expected}; "):
        watch.check_parameters()


def test_while_nothing_changed_a_check_looks_at_no_names(monkeypatch):
    watch = watched(Net())
    monkeypatch.setattr(ParameterWatch, "_check_by_name", lambda self: pytest.fail("it is slow"))
    assert watch.check_parameters() is KnownTrainability.TRAINABLE
