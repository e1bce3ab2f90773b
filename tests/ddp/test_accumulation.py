"""Gradients of several backwards that are reduced together, and forwards that do not take turns with backwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpsim.ddp import BypassedBackwardError, DistributedDataParallel, OpenBackwardError
from tests.kit import networks
from tests.kit.networks import TwoOutputs
from tests.kit.running import check_backwards, counts, each_equals, expected, gradients, loss, run, wrapped
from tests.kit.training import TINY, ramp

GRAPHS = {
    "all used": {},
    "searched": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "tiny buckets": {"bucket_cap_mb": TINY},
}
GRAPH = pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)


# Each trains a wrapper on some of its batches, and must leave the gradients of these.


def backwards_after_their_window(model, rank):
    with model.no_sync():
        losses = [loss(model, rank, number) for number in range(2)]
    for own in losses:
        own.backward()
    loss(model, rank, 2).backward()


def a_backward_inside_a_later_window(model, rank):
    first = loss(model, rank)
    with model.no_sync():
        first.backward()


def windows_inside_each_other_and_left_by_an_exception(model, rank):
    with model.no_sync():
        with model.no_sync():
            loss(model, rank).backward()
        loss(model, rank, 1).backward()
    with pytest.raises(KeyError), model.no_sync():
        raise KeyError
    loss(model, rank, 2).backward()


def two_forwards_and_one_backward(model, rank):
    (loss(model, rank) + loss(model, rank, 1)).backward()


def a_forward_in_a_window_and_one_outside_with_one_backward(model, rank):
    with model.no_sync():
        first = loss(model, rank)
    (first + loss(model, rank, 1)).backward()


def a_forward_outside_a_window_and_one_inside_with_one_backward(model, rank):
    first = loss(model, rank)
    with model.no_sync():
        second = loss(model, rank, 1)
    (first + second).backward()


def an_evaluation_between_forward_and_backward(model, rank):
    first = loss(model, rank)
    with torch.no_grad():
        model(ramp(rank, 5))
    first.backward()


def forwards_without_a_backward(model, rank):
    for number in range(3):
        model(ramp(rank, number))
    loss(model, rank, 3).backward()


@GRAPH
@pytest.mark.parametrize(
    ("program", "numbers"),
    [
        (backwards_after_their_window, [0, 1, 2]),
        (a_backward_inside_a_later_window, [0]),
        (windows_inside_each_other_and_left_by_an_exception, [0, 1, 2]),
        (two_forwards_and_one_backward, [0, 1]),
        (a_forward_in_a_window_and_one_outside_with_one_backward, [0, 1]),
        (a_forward_outside_a_window_and_one_inside_with_one_backward, [0, 1]),
        (an_evaluation_between_forward_and_backward, [0]),
        (forwards_without_a_backward, [3]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_reduced_together(program, numbers, options):
    def twice(rank):
        model = wrapped(**options)
        for _ in range(2):
            model.zero_grad()
            program(model, rank)
        return gradients(model.module)

    result = run(twice, 2)
    wanted = expected(networks.multilayer, lambda module, rank: sum(loss(module, rank, n) for n in numbers))
    for found in result.returns:
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)
    assert counts(result)["bucket"] == 2 * (6 if "bucket_cap_mb" in options else 1)


@GRAPH
def test_the_output_of_one_forward_into_another(options):
    def chained(model, rank):
        return model(model(model(ramp(rank)))).sum()

    check_backwards(lambda: nn.Sequential(nn.Linear(4, 4).double(), nn.Tanh()), chained, options=options)


@GRAPH
def test_the_second_of_two_backwards_is_refused(options):
    # torch lets it pass, and leaves the second loss' gradients unreduced.
    def program(rank):
        model = wrapped(**options)
        losses = [loss(model, rank, number) for number in range(2)]
        losses[0].backward()
        with pytest.raises(BypassedBackwardError, match=r"^a gradient of 4.bias came, but no forward "):
            losses[1].backward()
        model.zero_grad()
        loss(model, rank, 2).backward()
        return gradients(model.module)

    each_equals(run(program, 2), expected(networks.multilayer, lambda module, rank: loss(module, rank, 2)))


# One forward, its parameters in two backwards.


@pytest.mark.parametrize("cap_mb", [25, TINY])
def test_two_backwards_that_make_up_one(cap_mb):
    def program(rank):
        model = wrapped(TwoOutputs, bucket_cap_mb=cap_mb)
        for _ in range(2):
            model.zero_grad()
            for own in TwoOutputs.losses(model(ramp(rank))):
                own.backward()
        return gradients(model.module)

    each_equals(run(program, 2), expected(TwoOutputs, lambda m, rank: sum(TwoOutputs.losses(m(ramp(rank))))))


def test_one_of_two_backwards_left_out():
    def program(rank):
        model = wrapped(TwoOutputs)
        TwoOutputs.losses(model(ramp(rank)))[0].backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for second.weight, second.bias on ranks 0, 1"):
            model(ramp(rank))

    run(program, 2)


class Counting(nn.Module):
    """Counts its rows in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, batch):
        self.rows.fill_(float(len(batch)))
        return self.layer(batch)


def test_after_a_forward_buffers_are_synchronised_if_that_forward_synchronises():
    def program(rank):
        model = DistributedDataParallel(Counting())
        model.register_buffer_comm_hook("rows", "sum", when="after")
        batch, seen = torch.ones(rank + 1, 2), []
        for _ in range(2):
            with model.no_sync():
                model(batch).sum().backward()
                seen.append(model.module.rows.item())
            model(batch).sum().backward()
            seen.append(model.module.rows.item())
        with torch.no_grad():
            model(batch)
            seen.append(model.module.rows.item())
        model(batch).sum().backward()
        return [*seen, model.module.rows.item()]

    assert list(run(program, 2).returns) == [[own, 3, own, 3, own, 3] for own in (1, 2)]
