"""What findings of the zoo end with, where a more general cause would mislead."""

import pytest

from ddpsim.scenarios import registry, run_scenario
from ddpsim.scenarios.engines import Engine

REDUCED = "a backward ran when this step's reduction was over"
WORDS = {
    "average-copied-back-on-one-rank": ("since the step before they were", "change parameters on every rank alike"),
    "buckets-in-gradient-ready-order": ("reductions meet by their order and size", "in the order of the parameters"),
    "communication-hook-without-division": ("4 (the world size) times", "let a hook that sums divide"),
    "initialised-after-wrap": ("differed before the first step already", "initialise before wrapping"),
    "allreduce-dtype-differs": ("a tensor made of whole numbers", "dtype=torch.float32"),
    "async-result-read-before-wait": ("had not been waited for", "wait() for the work before the tensor is read"),
    "collective-save-inside-rank0-branch": (
        "met in barrier #0, rank 0 at collective_save_inside_rank0_branch.py:17, ranks 1-3",
        "make the call at collective_save_inside_rank0_branch.py:17 on every rank, or on none",
    ),
    "compression-state-before-bucket-rebuild": ("a hook that the backward calls raised", "by parameter, not by"),
    "dispatcher-leaves-a-rank-empty": ("no number came up on some rank", "isnan(loss)"),
    "early-stop-then-return": ("ran out of input, or stopped,", "all_reduce(MAX) of a flag"),
    "expert-without-tokens": ("no forward was made there", "on a dummy input if need be"),
    "freeze-after-wrap": ("0.weight (frozen now), 0.bias (frozen now) changed", "before wrapping"),
    "gradient-scale-through-gather": ("0.25 (1 / world size) times", "what all ranks gathered"),
    "groups-in-a-ring": ("each waits for one that begins elsewhere", "one global order"),
    "join-divides-first-model-only": ("every model of a join but the first", "a join of its own"),
    "join-divisor-ignored-by-communication-hook": ("a communication hook", "use no communication hook"),
    "join-sharded-optimizer-stale-shard": ("updates its shard with those of its own last batch", "whole on every rank"),
    "join-sparse-gradients-without-a-batch": ("rank 1 ran out of input before a sparse gradient", "sparse=False"),
    "join-with-pre-forward-buffer-hook": ("buffers that stand still", "weigh a rank by zero"),
    "join-with-unused-parameters": ("an old map of used parameters", "a loss weighted by zero"),
    "local-clock-decides": ("by what only it knows", "let one rank decide and broadcast"),
    "loss-scale-differs": ("the gradients that it applied were not", "by an all_reduce of it"),
    "mean-of-means": ("as if they were equal", "weigh each rank's loss by its samples"),
    "momentum-loaded-on-rank0": ("its learning rate or its state", "load the optimizer's state on every rank"),
    "new-group-not-called-by-everyone": ("rank 1 did not come to it", "create all groups on every rank"),
    "no-sync-around-half-of-the-step": ("no synchronising forward preceded", "no_sync() has to end before its forward"),
    "parameters-in-other-order-at-wrap": (
        "the model of rank 1 has its parameters in another order",
        "sort their names",
    ),
    "reduce-to-different-ranks": ("each rank passed another root", "use all_reduce or all_gather"),
    "reducer-armed-by-another-forward": (REDUCED, "run each backward before the next forward"),
    "rng-policy-own-permutation": ("seen twice or never", "shuffle with the same seed"),
    "sampler-padding-counts-twice": ("a sampler repeats samples", "cut off what comes after the last one"),
    "schedule-follows-local-metric": ("its learning rate or its state", "a metric that all ranks have alike"),
    "second-backward-over-retained-graph": (REDUCED, "add the losses up and run one backward"),
    "state-loaded-on-rank0-after-wrap": (
        "differed before the first step already",
        "load or initialise before wrapping",
    ),
    "submodule-without-trainable-params-not-wrapped": ("what ranks 1-3 received or computed", "modules outside of it"),
    "teardown-while-peers-communicate": ("rank 1 destroyed the group at teardown_", "destroy the group together"),
    "two-wrapped-models-in-their-own-groups": ("rank 1 used the wrappers in another order", "of their own do not help"),
    "uneven-batches-then-barrier": ("rank 1 left the training loop before the others", "`with model.join():`"),
    "wrapped-without-initial-sync": ("wrapped with init_sync=False", "leave init_sync=False out, or seed alike"),
}


def ends(scenario):
    return [finding.body.splitlines()[-2:] for finding in run_scenario(scenario, Engine.TORCH).findings]


@pytest.mark.parametrize(("name", "words"), WORDS.items(), ids=WORDS)
def test_cause_and_remedy_fit(name, words):
    cause, remedy = ends(registry[name])[0]
    assert words[0] in cause
    assert words[1] in remedy


def test_a_step_of_a_static_graph_that_was_not_reduced():
    (cause, _) = ends(registry["static-graph-with-unused-output"])[1]
    assert "bucket 0 (value.weight, value.bias, uncertainty.weight, uncertainty.bias) was not reduced" in cause
