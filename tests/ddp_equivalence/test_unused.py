"""Parameters that some ranks, or all, do not use in a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from ddpsim import simulate
from tests.ddp_equivalence.engine import DistributedDataParallel, check, expectation, simulated
from tests.ddp_equivalence.test_plain import TINY
from tests.kit import networks
from tests.kit.results import returned
from tests.kit.training import Training, assert_each, batches, mean_square, seeded
from tests.tiers import sweep

UNUSED = pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"find_unused_parameters": True, "bucket_cap_mb": TINY},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    ],
    ids=["defaults", "tiny-buckets", "gradient-views"],
)


BRANCHES = {
    "same-on-all": ((0, 0), (0, 0)),
    "differs-by-rank": ((0, 1), (1, 0)),
    "differs-by-rank-and-step": ((0, 1, 2), (0, 2, 1), (1, 2, 2)),
    "none-on-some": ((0, 9), (9, 9), (9, 1)),
    "none-anywhere": ((9, 9), (9, 9)),
}


@UNUSED
@pytest.mark.parametrize(
    ("name", "set_to_none"),
    sweep(product(BRANCHES, (True, False)), lambda case: case[1] or case[0] == "differs-by-rank-and-step"),
)
def test_branches(name, set_to_none, options):
    given = networks.branches(*BRANCHES[name])
    check(Training(networks.branching, given, mean_square, set_to_none=set_to_none), options)


@UNUSED
def test_a_parameter_unused_everywhere_keeps_its_gradient(options):
    training = Training(networks.branching, networks.branches((0, 1), (0, 1)), mean_square, clear_gradients=False)
    result = check(training, options)
    once = expectation(replace(training, batches=tuple(own[:1] for own in training.batches)))
    for rank in range(2):
        kept = result.returns[rank].gradients["branches.0.weight"]
        torch.testing.assert_close(kept, once[rank].gradients["branches.0.weight"], rtol=1e-12, atol=1e-12)
        assert result.returns[rank].gradients["branches.2.weight"] is None


@UNUSED
@pytest.mark.parametrize("is_static", [True, False], ids=["by-initial-world-size", "by-ranks-present"])
@pytest.mark.parametrize("branches", [((0,), (1, 2, 0)), ((), (0, 9), (1, 2)), ((2, 0, 1), (1,), (0, 0))])
def test_join(branches, is_static, options):
    training = Training(
        networks.branching,
        networks.branches(*branches),
        mean_square,
        is_joined=True,
        divide_by_initial_world_size=is_static,
    )
    assert_each(simulated(training, options).returns, expectation(training), gradients=False)


@UNUSED
def test_join_with_a_stale_used_map(options, engine_name):
    # Torch's own flaw, the same on real gloo: a joined rank shadows the used map with that of the step before. What was
    # once used counts as used for good, and gets a gradient of zeros where nobody used it: momentum goes on moving it.
    def program(rank):
        module = seeded(networks.branching, rank)
        model = DistributedDataParallel(module, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        moved = []
        with model.join():
            for batch in networks.branches((0,), (0, 1, 1))[rank]:
                optimizer.zero_grad()
                mean_square(model, batch).backward()
                gradient = module.branches[0].weight.grad
                before = module.branches[0].weight.detach().clone()
                optimizer.step()
                moved.append(not torch.equal(before, module.branches[0].weight))
        return moved, gradient is None, gradient is not None and not gradient.any()

    returns = returned(program, 2)
    if engine_name == "ddp":
        assert returns[1] == ([True, False, False], True, False)
    else:
        assert returns[1] == ([True, True, True], False, True)


def test_static_graph_learns_what_is_unused():
    training = Training(networks.branching, networks.branches((1, 1, 1), (1, 1, 1)), mean_square)
    check(training, {"static_graph": True})


def test_static_graph_takes_a_parameter_for_used_that_one_rank_uses():
    training = Training(networks.branching, networks.branches((0, 0, 0), (1, 1, 1)), mean_square)
    check(training, {"static_graph": True})


def test_outputs_that_the_loss_does_not_use():
    def loss(model, batch):
        return networks.TwoOutputs.losses(model(batch))[int(batch[0, 0] > 0)]

    training = Training(networks.TwoOutputs, batches(3, 3, 3), loss)
    assert len({bool(batch[0, 0] > 0) for batch in training.batches[0]}) == 2
    check(training, {"find_unused_parameters": True})


@pytest.mark.parametrize("build_module", [networks.branching, networks.multilayer])
def test_without_the_flag_the_engine_says_what_is_unused(build_module, engine_name):
    def program(rank):
        model = DistributedDataParallel(build_module())
        for batch in networks.branches((0, 0), (0, 0))[rank]:
            mean_square(model, batch).backward()

    errors = simulate(program, 2).errors
    if build_module is networks.multilayer:
        assert errors == {}
    else:
        assert sorted(errors) == [0, 1]
        for error in errors.values():
            if engine_name == "ddp":
                assert "branches.1.weight" in str(error)
            else:
                assert str(error).startswith("Expected to have finished reduction in the prior iteration")
