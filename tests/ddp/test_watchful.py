"""What goes wrong in training is noticed, named, and does not spoil the next proper step."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpsim import simulate
from ddpsim.ddp import BypassedBackwardError, DistributedDataParallel, OpenBackwardError, ParameterChangedError
from ddpsim.ddp.backward_errors import describe_missing_gradients
from tests.kit import networks
from tests.kit.rows import rows
from tests.kit.running import assert_equal, counts, each_equals, expected, gradients, loss, run, wrapped
from tests.kit.training import TINY, ramp, seeded

GRAPH = pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=["all used", "searched", "static"]
)
CAPS = pytest.mark.parametrize("cap_mb", [25, TINY])


def proper_step(model, rank):
    """Train one step as one should; the gradients after it."""
    model.zero_grad()
    loss(model, rank).backward()
    return gradients(model.module)


def after_a_proper_step():
    return expected(networks.multilayer, loss)


# Parameters that change. How is in test_parameter_watch.py.


@pytest.mark.parametrize("trains_before", [True, False])
def test_a_parameter_that_changed_after_construction(trains_before):
    def program(rank):
        model = wrapped()
        if trains_before:
            proper_step(model, rank)
        model.module[2].bias.requires_grad_(False)
        with pytest.raises(ParameterChangedError, match=r"^parameters changed after construction: 2.bias was frozen"):
            model(ramp(rank))
        model.module[2].bias.requires_grad_(True)  # the change is taken back
        return proper_step(model, rank)

    each_equals(run(program, 2), after_a_proper_step())


# Backwards past the wrapper.


@GRAPH
@pytest.mark.parametrize("trains_before", [True, False])
def test_a_backward_past_the_wrapper(options, trains_before):
    def program(rank):
        model = wrapped(**options)
        if trains_before:
            proper_step(model, rank)
        with pytest.raises(
            BypassedBackwardError, match=r"^a gradient of 4.bias came, but no forward through the Distrib"
        ):
            loss(model.module, rank).backward()
        return proper_step(model, rank)

    each_equals(run(program, 2), after_a_proper_step())


def twice(model, rank):
    own = loss(model, rank)
    own.backward(retain_graph=True)
    own.backward()


@GRAPH
@pytest.mark.parametrize(
    ("trains", "times"),
    [(lambda model, rank: loss(model.module, rank).backward(), 1), (twice, 2)],
    ids=["past the wrapper", "twice through one graph"],
)
def test_without_synchronization_any_backward_may_come(trains, times, options):
    def program(rank):
        model = wrapped(**options)
        with model.no_sync():
            trains(model, rank)
        own = {name: gradient / times for name, gradient in gradients(model.module).items()}
        return own, proper_step(model, rank)

    for rank, (own, found) in enumerate(run(program, 2).returns):
        assert_equal(own, expected(networks.multilayer, loss, [rank]))
        assert_equal(found, after_a_proper_step())


@GRAPH
def test_a_gradient_without_accumulation_is_nobodys_business(options):
    # torch.autograd.grad gives gradients out without touching those of the parameters; of some, it stops half way.
    def program(rank):
        model = wrapped(**options)
        for _ in range(2):
            model.zero_grad()
            torch.autograd.grad(loss(model.module, rank), list(model.module.parameters()))
            own = loss(model, rank)
            torch.autograd.grad(own, list(model.module.parameters()), retain_graph=True)
            (alone,) = torch.autograd.grad(own, [model.module[2].weight], retain_graph=True)
            own.backward()
        return gradients(model.module), alone

    for found, alone in run(program, 2).returns:
        assert_equal(found, after_a_proper_step())
        assert not torch.equal(alone, found["2.weight"])


@GRAPH
@CAPS
def test_a_second_backward_through_one_graph(options, cap_mb):
    def program(rank):
        model = wrapped(bucket_cap_mb=cap_mb, **options)
        told = "call the wrapped model once for each backward, not its inner module, and add several losses to call "
        with pytest.raises(BypassedBackwardError, match=told):
            twice(model, rank)
        return proper_step(model, rank)

    each_equals(run(program, 2), after_a_proper_step())


@GRAPH
def test_a_parameter_of_two_models(options):
    def program(rank, engine, options):
        torch.manual_seed(0)
        common = nn.Linear(4, 4).double()
        models = [engine(nn.Sequential(common, nn.Linear(4, 1).double()), **options) for _ in range(2)]
        for number in range(3):
            for model in models:
                model(ramp(rank, number)).pow(2).sum().backward()
        with models[0].no_sync():
            models[0](ramp(rank)).sum().backward()
        for model in models:
            model(ramp(rank)).sum().backward()
        return [gradients(model.module) for model in models]

    # Without options: under static_graph, torch's gradients of what is shared differ between the ranks.
    wanted = run(program, 2, nn.parallel.DistributedDataParallel, {})
    found = run(program, 2, DistributedDataParallel, options)
    torch.testing.assert_close(found.returns, wanted.returns, rtol=0, atol=0)


def test_a_parameter_of_two_models_past_both():
    def program(rank):
        module = networks.multilayer()
        models = [DistributedDataParallel(module) for _ in range(2)]
        for model in models:
            loss(model, rank).backward()
        with pytest.raises(BypassedBackwardError, match=r"^a gradient of 4.bias came, but no forward"):
            loss(module, rank).backward()

    run(program, 2)


# Backwards that leave buckets open.


class Heads(nn.Module):
    """Three layers on one input, of which a forward uses those it is told to."""

    def __init__(self):
        super().__init__()
        for name in ("a", "b", "c"):
            self.add_module(name, nn.Linear(4, 1, dtype=torch.float64))

    def forward(self, rank, names="abc"):
        return sum(getattr(self, name)(ramp(rank)).pow(2).sum() for name in names)


def of_rank(model, rank):
    return model(rank)


@rows("trains_before", [True, False])
@rows(
    ("uses", "text"),
    [
        (("ab", "ab"), "c.weight, c.bias on ranks 0, 1. If"),
        (("ab", "b"), "c.weight, c.bias on rank 0; a.weight, a.bias, c.weight, c.bias on rank 1. If"),
        (("b", "ac", "b", "b"), "a.weight, a.bias, c.weight, c.bias on ranks 0, 2, 3; b.weight, b.bias on rank 1. If"),
    ],
)
@pytest.mark.usefixtures("rank_order")
def test_who_misses_what_is_said_on_every_rank(uses, text, trains_before):
    def program(rank):
        model = DistributedDataParallel(seeded(Heads))
        if trains_before:
            model(rank).backward()
        texts, found = [], []
        for _ in range(2):  # again, after it was told
            model(rank, uses[rank]).backward()
            with pytest.raises(OpenBackwardError) as raised:
                model(rank)
            texts.append(str(raised.value))
            model.zero_grad()
            model(rank).backward()
            found.append(gradients(model.module))
            model.zero_grad()
        return texts, found

    wanted = expected(Heads, of_rank, range(len(uses)))
    for (first, second), found in run(program, len(uses)).returns:
        assert first == second
        assert first.startswith(f"the last backward left buckets open: no gradient came for {text}")
        assert "find_unused_parameters=True" in first
        for own in found:
            assert_equal(own, wanted)


def test_a_rank_that_waits_for_a_bucket_gives_no_answer():
    # Rank 1 has all its gradients and waits in its backward for the bucket that rank 0 never starts.
    def program(rank):
        model = DistributedDataParallel(Heads())
        model(rank, "abc" if rank else "ab").backward()
        model(rank)

    result = simulate(program, 2)
    error = result.errors[0]
    assert isinstance(error, OpenBackwardError)
    assert str(error).startswith(
        "the last backward left buckets open: no gradient came for c.weight, c.bias on rank 0 (rank 1 gave no answer: "
        "they may wait for these buckets, or have ended). "
    )
    assert [finding.code.value for finding in result.findings] == ["rank_error", "deadlock.dead_rank"]


def test_an_evaluation_reports_it_too():
    def program(rank):
        model = DistributedDataParallel(Heads())
        model(rank, "ab").backward()
        with torch.no_grad(), pytest.raises(OpenBackwardError, match=r"c.weight, c.bias on ranks 0, 1\. "):
            model(rank)

    run(program, 2)


def test_another_open_backward_is_told_from_the_first():
    def program(rank):
        model = DistributedDataParallel(Heads())
        found = []
        for names in (("ab", "bc"), ("bc", "ab")):
            model(rank)
            dist.barrier()
            if rank == 1 and found:
                time.sleep(0.5)  # rank 0 asks before there is an answer
            model.module(rank, names[rank]).backward()
            with pytest.raises(OpenBackwardError) as raised:
                model(rank)
            found.append(str(raised.value))
        return found

    for first, second in run(program, 2).returns:
        assert "no gradient came for c.weight, c.bias on rank 0; a.weight, a.bias on rank 1. If" in first
        assert "no gradient came for a.weight, a.bias on rank 0; c.weight, c.bias on rank 1. If" in second


def test_all_silent_ranks_are_waited_for_together():
    def program(rank):
        model = DistributedDataParallel(Heads())
        model(rank, "ab" if rank == 0 else "abc")
        if rank > 0:
            time.sleep(1000)
            return None
        model.module(rank, "ab").backward()
        before = time.monotonic()
        with pytest.raises(OpenBackwardError, match=r"c.bias on rank 0 \(ranks 1, 2, 3 gave no answer"):
            model(rank)
        return time.monotonic() - before

    assert run(program, 4).returns[0] <= 1.5


def test_an_interrupted_reduction_is_told_from_missing_gradients():
    def fails(state, bucket):
        raise KeyError("in the hook")

    def program(rank):
        model = DistributedDataParallel(Heads())
        model.register_comm_hook(None, fails)
        with pytest.raises(KeyError, match="in the hook"):
            model(rank).backward()
        with pytest.raises(
            OpenBackwardError, match=r"though every gradient came: .* an exception interrupted"
        ) as raised:
            model(rank)
        assert "find_unused_parameters" not in str(raised.value)

    run(program, 2)


def test_who_misses_nothing_is_told():
    text = describe_missing_gradients({0: ["a"], 1: []}, [0, 1])
    assert "no gradient came for a on rank 0; none is missing on rank 1. If" in text
    assert "exception" in text


def test_two_models_are_told_apart():
    def program(rank):
        whole, part = (wrapped(Heads) for _ in range(2))
        whole(rank).backward()
        part(rank, "ab").backward()
        whole.zero_grad()
        whole(rank).backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for c.weight, c.bias on ranks 0, 1\. "):
            part(rank)
        part.zero_grad()
        part(rank).backward()
        return gradients(whole.module), gradients(part.module)

    each_equals(run(program, 2), expected(Heads, of_rank))


# Exceptions.


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("in backward")


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3, dtype=torch.float64)
        self.last = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, rank, fails=""):
        hidden = self.first(ramp(rank)).tanh()
        output = self.last(Fails.apply(hidden) if fails == "half way" else hidden).pow(2).sum()
        return Fails.apply(output) if fails == "at once" else output


@GRAPH
@CAPS
@pytest.mark.parametrize("trains_before", [True, False])
def test_an_exception_in_the_backward(options, cap_mb, trains_before):
    # At the same place on all ranks, so that what was started has met; the next forward tells, and training goes on.
    def program(rank):
        model = wrapped(Failing, bucket_cap_mb=cap_mb, **options)
        if trains_before:
            model(rank).backward()
        with pytest.raises(KeyError, match="in backward"):
            model(rank, "half way").backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for first.weight, first.bias on ranks 0, 1\. "):
            model(rank)
        found = []
        for _ in range(3):
            model.zero_grad()
            model(rank).backward()
            found.append(gradients(model.module))
        return found

    each_equals(run(program, 2), expected(Failing, of_rank))


def test_an_exception_before_the_first_gradient():
    def program(rank):
        model = wrapped(Failing)
        with pytest.raises(KeyError, match="in backward"):
            model(rank, "at once").backward()
        model(rank).backward()
        return gradients(model.module)

    each_equals(run(program, 2), expected(Failing, of_rank))


@GRAPH
def test_an_exception_in_the_forward(options):
    def program(rank):
        model = wrapped(**options)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                model(torch.ones(2, 3, dtype=torch.float64))
            found = proper_step(model, rank)
        return found

    result = run(program, 2)
    each_equals(result, after_a_proper_step())
    assert counts(result)["rebuild"] == 1
