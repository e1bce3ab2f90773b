"""What goes wrong in training is noticed, named, and does not spoil the next proper step."""

from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpsim import simulate
from ddpsim.ddp import BypassedBackwardError, DistributedDataParallel, OpenBackwardError, ParameterChangedError
from ddpsim.ddp.open_backward import report
from tests.kit import networks
from tests.kit.running import TINY, assert_equal, average, counts, gradients, run
from tests.kit.training import mean_square

GRAPH = pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=["all used", "searched", "static"]
)
CAPS = pytest.mark.parametrize("cap_mb", [25, TINY])


def batch(rank, number=0):
    return torch.linspace(-1 - number, 1 + rank, 8, dtype=torch.float64).view(2, 4)


def seeded():
    torch.manual_seed(0)
    return networks.multilayer()


def expected(number=0, world_size=2):
    with torch.random.fork_rng():
        return average(seeded, [lambda m, r=r: mean_square(m, batch(r, number)) for r in range(world_size)])


def proper_step(model, rank, number=0):
    """Train one step as one should; the gradients after it."""
    model.zero_grad()
    mean_square(model, batch(rank, number)).backward()
    return gradients(model.module)


# Parameters that change.


CHANGES = {
    "frozen": (lambda module: module[2].bias.requires_grad_(False), "2.bias was frozen"),
    "unfrozen": (lambda module: module[4].weight.requires_grad_(True), "4.weight was unfrozen"),
    "replaced": (
        lambda module: setattr(module[0], "weight", nn.Parameter(torch.ones(5, 4, dtype=torch.float64))),
        "0.weight was replaced by another parameter",
    ),
    "added": (
        lambda module: module.register_parameter("extra", nn.Parameter(torch.ones(3, dtype=torch.float64))),
        "extra was added",
    ),
    "removed": (lambda module: delattr(module[0], "bias"), "0.bias was removed"),
    "converted": (lambda module: module.float(), "0.weight was converted from float64 on cpu to float32 on cpu"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("trains_before", [True, False])
def test_a_parameter_that_changed_after_construction(change, trains_before):
    apply, text = CHANGES[change]

    def program(rank):
        module = seeded()
        module[4].weight.requires_grad_(False)
        model = DistributedDataParallel(module)
        if trains_before:
            proper_step(model, rank)
        apply(module)
        with pytest.raises(ParameterChangedError, match=rf"^parameters changed after construction: {re.escape(text)}"):
            model(batch(rank))

    run(program, 2)


def test_a_change_that_is_taken_back():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        module[2].bias.requires_grad_(False)
        with pytest.raises(ParameterChangedError):
            model(batch(rank))
        module[2].bias.requires_grad_(True)
        return proper_step(model, rank)

    for found in run(program, 2).returns:
        assert_equal(found, expected())


# Backwards past the wrapper.


@GRAPH
@pytest.mark.parametrize("trains_before", [True, False])
def test_a_backward_past_the_wrapper(options, trains_before):
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, **options)
        if trains_before:
            proper_step(model, rank)
        with pytest.raises(
            BypassedBackwardError, match=r"^a gradient of 4.bias came, but no forward through the Distrib"
        ):
            mean_square(module, batch(rank)).backward()
        return proper_step(model, rank)

    for found in run(program, 2).returns:
        assert_equal(found, expected())


@GRAPH
def test_a_backward_past_the_wrapper_without_synchronization(options):
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, **options)
        with model.no_sync():
            mean_square(module, batch(rank, 1)).backward()
        own = gradients(module)
        return own, proper_step(model, rank)

    for rank, (own, found) in enumerate(run(program, 2).returns):
        with torch.random.fork_rng():
            assert_equal(own, average(seeded, [lambda m, rank=rank: mean_square(m, batch(rank, 1))]))
        assert_equal(found, expected())


def test_a_gradient_without_accumulation_is_nobodys_business():
    # torch.autograd.grad gives gradients out without touching those of the parameters.
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        torch.autograd.grad(mean_square(module, batch(rank)), list(module.parameters()))
        loss = mean_square(model, batch(rank))
        torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        loss.backward()
        return gradients(module)

    for found in run(program, 2).returns:
        assert_equal(found, expected())


@GRAPH
def test_a_gradient_of_some_parameters_alone_before_the_backward(options):
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, **options)
        for _ in range(2):
            module.zero_grad()
            loss = mean_square(model, batch(rank))
            (own,) = torch.autograd.grad(loss, [module[2].weight], retain_graph=True)
            loss.backward()
        return gradients(module), own

    for found, own in run(program, 2).returns:
        assert_equal(found, expected())
        assert not torch.equal(own, found["2.weight"])


@GRAPH
@CAPS
def test_a_second_backward_through_one_graph(options, cap_mb):
    def program(rank):
        model = DistributedDataParallel(seeded(), bucket_cap_mb=cap_mb, **options)
        loss = mean_square(model, batch(rank))
        loss.backward(retain_graph=True)
        with pytest.raises(BypassedBackwardError, match="or backward ran a second time through one graph"):
            loss.backward()
        return proper_step(model, rank)

    for found in run(program, 2).returns:
        assert_equal(found, expected())


def test_a_second_backward_through_one_graph_without_synchronization():
    def program(rank):
        model = DistributedDataParallel(seeded())
        with model.no_sync():
            loss = mean_square(model, batch(rank))
            loss.backward(retain_graph=True)
            loss.backward()
        own = {name: gradient / 2 for name, gradient in gradients(model.module).items()}
        return own, proper_step(model, rank)

    for rank, (own, found) in enumerate(run(program, 2).returns):
        with torch.random.fork_rng():
            assert_equal(own, average(seeded, [lambda m, rank=rank: mean_square(m, batch(rank))]))
        assert_equal(found, expected())


@GRAPH
def test_a_parameter_of_two_models(options):
    def program(rank, engine, options):
        torch.manual_seed(0)
        common = nn.Linear(4, 4).double()
        models = [engine(nn.Sequential(common, nn.Linear(4, 1).double()), **options) for _ in range(2)]
        for number in range(3):
            for model in models:
                model(batch(rank, number)).pow(2).sum().backward()
        with models[0].no_sync():
            models[0](batch(rank)).sum().backward()
        for model in models:
            model(batch(rank)).sum().backward()
        return [gradients(model.module) for model in models]

    # Without options: under static_graph, torch's gradients of what is shared differ between the ranks.
    wanted = simulate(program, 2, args=(nn.parallel.DistributedDataParallel, {}))
    wanted.raise_for_verdict()
    for actual, found in zip(run(program, 2, DistributedDataParallel, options).returns, wanted.returns, strict=True):
        for ours, torchs in zip(actual, found, strict=True):
            assert_equal(ours, torchs)


def test_a_parameter_of_two_models_past_both():
    def program(rank):
        module = seeded()
        models = [DistributedDataParallel(module) for _ in range(2)]
        for model in models:
            mean_square(model, batch(rank)).backward()
        with pytest.raises(BypassedBackwardError, match=r"^a gradient of 4.bias came, but no forward"):
            mean_square(module, batch(rank)).backward()

    run(program, 2)


# Backwards that leave buckets open.


class Heads(nn.Module):
    """Three layers on one input, of which a forward uses those it is told to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for name in ("a", "b", "c"):
            self.add_module(name, nn.Linear(4, 1, dtype=torch.float64))

    def forward(self, rank, names="abc"):
        return sum(getattr(self, name)(batch(rank)).pow(2).sum() for name in names)


def heads_expected(world_size):
    with torch.random.fork_rng():
        return average(Heads, [lambda module, rank=rank: module(rank) for rank in range(world_size)])


@pytest.mark.parametrize("trains_before", [True, False])
@pytest.mark.parametrize(
    ("uses", "text"),
    [
        (("ab", "ab"), "c.weight, c.bias on ranks 0, 1. If"),
        (("ab", "b"), "c.weight, c.bias on rank 0; a.weight, a.bias, c.weight, c.bias on rank 1. If"),
        (("b", "ac", "b", "b"), "a.weight, a.bias, c.weight, c.bias on ranks 0, 2, 3; b.weight, b.bias on rank 1. If"),
    ],
)
def test_who_misses_what_is_said_on_every_rank(uses, text, trains_before):
    world_size = len(uses)

    def program(rank):
        module = Heads()
        model = DistributedDataParallel(module)
        if trains_before:
            model(rank).backward()
        found = []
        for _ in range(2):  # again, after it was told
            model(rank, uses[rank]).backward()
            with pytest.raises(OpenBackwardError) as raised:
                model(rank)
            found.append(str(raised.value))
            module.zero_grad()
            model(rank).backward()
            found.append(gradients(module))
            module.zero_grad()
        return found

    for first, gradients_after, second, gradients_at_last in run(program, world_size).returns:
        assert first == second
        assert first.startswith(f"the last backward left buckets open: no gradient came for {text}")
        assert "find_unused_parameters=True" in first
        assert_equal(gradients_after, heads_expected(world_size))
        assert_equal(gradients_at_last, heads_expected(world_size))


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
    text = report({0: ["a"], 1: []}, [0, 1])
    assert "no gradient came for a on rank 0; none is missing on rank 1. If" in text
    assert "exception" in text


def test_two_models_are_told_apart():
    def program(rank):
        whole, part = (DistributedDataParallel(Heads()) for _ in range(2))
        whole(rank).backward()
        part(rank, "ab").backward()
        whole.zero_grad()
        whole(rank).backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for c.weight, c.bias on ranks 0, 1\. "):
            part(rank)
        part.zero_grad()
        part(rank).backward()
        return gradients(whole.module), gradients(part.module)

    for found in run(program, 2).returns:
        for each in found:
            assert_equal(each, heads_expected(2))


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
        torch.manual_seed(0)
        self.first = nn.Linear(4, 3, dtype=torch.float64)
        self.last = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, rank, fails=False):
        hidden = self.first(batch(rank)).tanh()
        return self.last(Fails.apply(hidden) if fails else hidden).pow(2).sum()


@GRAPH
@CAPS
@pytest.mark.parametrize("trains_before", [True, False])
def test_an_exception_in_the_backward(options, cap_mb, trains_before):
    # At the same place on all ranks, so that what was started has met; the next forward tells, and training goes on.
    def program(rank):
        module = Failing()
        model = DistributedDataParallel(module, bucket_cap_mb=cap_mb, **options)
        if trains_before:
            model(rank).backward()
        with pytest.raises(KeyError, match="in backward"):
            model(rank, fails=True).backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for first.weight, first.bias on ranks 0, 1\. "):
            model(rank)
        found = []
        for _ in range(3):
            module.zero_grad()
            model(rank).backward()
            found.append(gradients(module))
        return found

    with torch.random.fork_rng():
        wanted = average(Failing, [lambda module, rank=rank: module(rank) for rank in range(2)])
    for found in run(program, 2).returns:
        for each in found:
            assert_equal(each, wanted)


@GRAPH
def test_an_exception_in_the_forward(options):
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, **options)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                model(torch.ones(2, 3, dtype=torch.float64))
            found = proper_step(model, rank)
        return found

    result = run(program, 2)
    for found in result.returns:
        assert_equal(found, expected())
    assert counts(result)["rebuild"] == 1


def test_an_exception_before_the_first_gradient():
    class FailsFirst(Failing):
        def forward(self, rank, fails=False):
            output = super().forward(rank)
            return Fails.apply(output) if fails else output

    def program(rank):
        module = FailsFirst()
        model = DistributedDataParallel(module)
        with pytest.raises(KeyError, match="in backward"):
            model(rank, fails=True).backward()
        model(rank).backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(FailsFirst, [lambda module, rank=rank: module(rank) for rank in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)
