"""Unused parameters are named, though torch's error has indices only."""

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Budget, simulate
from tests.kit.rows import rows
from tests.kit.small_training import inputs


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.ignored, self.used, self.unused = (torch.nn.Linear(4, 1) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, batch):
        return self.used(batch)


def cause(program):
    return str(simulate(program, 2).findings[0]).splitlines()[-3]


def unused(rank, *, wrappers=1, freezes=""):
    model = Branches()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["ignored.weight", "ignored.bias"])
    wrapped, *_ = [DistributedDataParallel(model) for _ in range(wrappers)]
    for step in range(2):
        wrapped(inputs(rank)).sum().backward()
        if freezes and step == 0:
            getattr(model, freezes).requires_grad_(False)


@rows(
    ("options", "told"),
    [
        ({}, "in the step before, unused.weight, unused.bias got no gradient"),
        ({"freezes": "used"}, "unused.weight, unused.bias got no gradient"),
        ({"wrappers": 2}, "in the step before, parameter 2, parameter 3 got"),
    ],
    ids=["by their place among those that are reduced", "frozen since", "by index, as several wrappers could be meant"],
)
def test_how_parameters_are_named(options, told):
    assert told in cause(lambda rank: unused(rank, **options))


def replaces(rank, *, then=""):
    model = Branches()
    del model.unused, model.ignored
    if then == "wraps":
        model.used.weight = torch.nn.Parameter(torch.zeros(1, 4))
    wrapped = DistributedDataParallel(model)
    if then == "goes on":
        model.used.weight = torch.nn.Parameter(torch.zeros(1, 4))
    for _ in range(2):
        wrapped(inputs(rank)).sum().backward()


def test_a_parameter_that_was_replaced_after_wrapping_is_named_and_is_the_cause():
    told = "used.weight (replaced since) changed after the model was wrapped: frozen, unfrozen, replaced or added"
    assert cause(lambda rank: replaces(rank, then="goes on")).endswith(told)
    assert not simulate(lambda rank: replaces(rank, then="wraps"), 2).findings


def test_what_does_not_end_says_what_to_try_last():
    def program(rank):
        while True:
            torch.distributed.barrier()

    (finding,) = simulate(program, 2, budget=Budget(steps=50)).findings
    assert (
        finding.body.splitlines()[-1]
        == "  try     increase the limit, Budget(steps=...) or --steps, or give the ranks less to do"
    )
