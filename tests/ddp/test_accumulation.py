"""Gradients of several backwards that are reduced together, and forwards that do not take turns with backwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpsim.ddp import BypassedBackwardError, DistributedDataParallel, OpenBackwardError
from tests.kit import networks
from tests.kit.running import TINY, assert_equal, average, check, counts, gradients, run
from tests.kit.training import Training, equal_batches, mean_square

MODES = pytest.mark.parametrize("as_view", [None, False, True])
GRAPH = pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=["all used", "searched", "static"]
)


def batch(rank, number=0):
    return torch.linspace(-1 - number, 1 + rank, 8, dtype=torch.float64).view(2, 4)


def seeded():
    torch.manual_seed(0)
    return networks.multilayer()


def expected(*numbers, world_size=2):
    """The gradients of the average over ranks of the sum over the batches of these numbers."""
    with torch.random.fork_rng():
        each = [
            average(seeded, [lambda m, r=r, n=n: mean_square(m, batch(r, n)) for r in range(world_size)])
            for n in numbers
        ]
    return {name: sum(gradient[name] for gradient in each) for name in each[0]}


def check_program(program, wanted, world_size=2):
    """Run `program(model, rank)` under each rank's wrapper and compare the gradients it leaves."""

    def whole(rank, options):
        module = seeded()
        program(DistributedDataParallel(module, **options), rank)
        return gradients(module)

    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"bucket_cap_mb": TINY}):
        result = run(whole, world_size, options)
        for found in result.returns:
            torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)
        yield result


@MODES
@GRAPH
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("accumulate", [2, 3])
def test_training(accumulate, set_to_none, options, as_view):
    training = Training(
        networks.multilayer,
        equal_batches(2, count=6),
        mean_square,
        accumulate=accumulate,
        set_to_none=set_to_none,
        momentum=0.9,
    )
    result = check(training, options | {"gradient_as_bucket_view": as_view, "bucket_cap_mb": TINY})
    assert counts(result)["bucket"] == 6 * (6 // accumulate)


@MODES
@GRAPH
def test_gradients_that_nobody_clears(options, as_view):
    training = Training(networks.multilayer, equal_batches(2, count=5), mean_square, clear_gradients=False)
    check(training, options | {"gradient_as_bucket_view": as_view})


def test_the_window_is_decided_by_the_forward():
    def backward_after_the_window(model, rank):
        with model.no_sync():
            loss = mean_square(model, batch(rank))
        loss.backward()
        mean_square(model, batch(rank, 1)).backward()

    def backward_inside_the_window(model, rank):
        loss = mean_square(model, batch(rank))
        with model.no_sync():
            loss.backward()

    for result in check_program(backward_after_the_window, expected(0, 1)):
        assert counts(result)["bucket"] in (1, 6)
    for result in check_program(backward_inside_the_window, expected(0)):
        assert counts(result)["bucket"] in (1, 6)


def test_windows_inside_each_other_and_left_by_an_exception():
    def program(model, rank):
        with model.no_sync():
            with model.no_sync():
                mean_square(model, batch(rank)).backward()
            mean_square(model, batch(rank, 1)).backward()
        with pytest.raises(KeyError), model.no_sync():
            raise KeyError
        mean_square(model, batch(rank, 2)).backward()

    for result in check_program(program, expected(0, 1, 2)):
        assert counts(result)["bucket"] in (1, 6)


# Several forwards before a backward.


def test_two_forwards_and_one_backward():
    def program(model, rank):
        (mean_square(model, batch(rank)) + mean_square(model, batch(rank, 1))).backward()

    for result in check_program(program, expected(0, 1)):
        assert counts(result)["bucket"] in (1, 6)


def test_the_output_of_one_forward_into_another():
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4, dtype=torch.float64)

        def forward(self, value):
            return self.layer(value).tanh()

    def program(rank, options):
        module = Square()
        model = DistributedDataParallel(module, **options)
        for _ in range(2):
            module.zero_grad()
            model(model(model(batch(rank)))).sum().backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(Square, [lambda m, rank=rank: m(m(m(batch(rank)))).sum() for rank in range(2)])
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        for found in run(program, 2, options).returns:
            assert_equal(found, wanted)


def test_a_forward_in_a_window_and_one_outside_with_one_backward():
    def local_first(model, rank):
        with model.no_sync():
            first = mean_square(model, batch(rank))
        (first + mean_square(model, batch(rank, 1))).backward()

    def local_last(model, rank):
        first = mean_square(model, batch(rank))
        with model.no_sync():
            second = mean_square(model, batch(rank, 1))
        (first + second).backward()

    for program in (local_first, local_last):
        for result in check_program(program, expected(0, 1)):
            assert counts(result)["bucket"] in (1, 6)


def test_an_evaluation_between_forward_and_backward():
    def program(model, rank):
        for _ in range(2):
            model.zero_grad()
            loss = mean_square(model, batch(rank))
            with torch.no_grad():
                model(batch(rank, 5))
            loss.backward()

    for _ in check_program(program, expected(0)):
        pass


def test_forwards_without_a_backward():
    def program(model, rank):
        for number in range(3):
            model(batch(rank, number))
        mean_square(model, batch(rank, 3)).backward()

    for _ in check_program(program, expected(3)):
        pass


@GRAPH
def test_the_second_of_two_backwards_is_refused(options):
    # torch lets it pass, and leaves the second loss' gradients unreduced.
    def program(rank):
        model = DistributedDataParallel(seeded(), **options)
        losses = [mean_square(model, batch(rank, number)) for number in range(2)]
        losses[0].backward()
        with pytest.raises(BypassedBackwardError, match=r"^a gradient of 4.bias came, but no forward "):
            losses[1].backward()
        model.zero_grad()
        mean_square(model, batch(rank, 2)).backward()
        return gradients(model.module)

    for found in run(program, 2).returns:
        assert_equal(found, expected(2))


# One forward, its parameters in two backwards.


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 2, dtype=torch.float64)
        self.second = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, values):
        return self.first(values).pow(2).sum(), self.second(values).pow(2).sum()


@pytest.mark.parametrize("cap_mb", [25, TINY])
def test_two_backwards_that_make_up_one(cap_mb):
    def program(rank):
        module = TwoOutputs()
        model = DistributedDataParallel(module, bucket_cap_mb=cap_mb)
        for _ in range(2):
            module.zero_grad()
            for loss in model(batch(rank)):
                loss.backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(TwoOutputs, [lambda module, rank=rank: sum(module(batch(rank))) for rank in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


def test_two_backwards_where_the_first_may_be_the_only_one():
    # Under find_unused_parameters a loss may leave outputs out, so the first backward is taken for the whole.
    def program(rank):
        model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True)
        first, second = model(batch(rank))
        first.backward()
        with pytest.raises(BypassedBackwardError, match=r"^a gradient of second.bias came, "):
            second.backward()

    run(program, 2)


def test_one_of_two_backwards_left_out():
    def program(rank):
        model = DistributedDataParallel(TwoOutputs())
        model(batch(rank))[0].backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for second.weight, second.bias on ranks 0, 1"):
            model(batch(rank))

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
