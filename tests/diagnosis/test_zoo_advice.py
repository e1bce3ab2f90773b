"""What findings of the zoo end with: the cause of the table, where a more general one would mislead."""

import pytest

from ddpsim.scenarios import registry, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.simulator.diagnosis.advice import Cause

from .ending import ends_with


def marked_line(name, lines_before=0):
    """The line of a bug that is marked as found, or one before it."""
    expected = registry[name].expected
    return f"{expected.file}:{expected.lines[0] - lines_before}"


# The cause, and what stands in its braces where that is more than the culprits.
CAUSES = {
    "allreduce-dtype-differs": (Cause.OTHER_DTYPE, {}),
    "allreduce-numel-differs": (Cause.OTHER_ARGUMENT, {"field": "shape"}),
    "async-result-read-before-wait": (
        Cause.READ_BEFORE_WAIT,
        {"fact": f"all_reduce #4 ({marked_line('async-result-read-before-wait', 3)})"},
    ),
    "average-copied-back-on-one-rank": (Cause.CHANGED_BETWEEN_STEPS, {}),
    "branch-unused-on-one-rank": (Cause.UNUSED_PARAMETERS, {"parameters": "image.weight, image.bias"}),
    "buffers-not-synchronised-at-wrap": (Cause.BUFFERS_NOT_SYNCHRONISED, {}),
    "buckets-in-gradient-ready-order": (Cause.REDUCED_BY_HAND, {}),
    "collective-save-inside-rank0-branch": (
        Cause.CALLS_ONE_OFF,
        {"operation": "barrier #0", "site": marked_line("collective-save-inside-rank0-branch")},
    ),
    "communication-hook-without-division": (Cause.SCALED, {"fact": "4 (the world size)"}),
    "compression-state-before-bucket-rebuild": (Cause.RAISED_IN_HOOK, {}),
    "dispatcher-leaves-a-rank-empty": (Cause.NO_NUMBER, {}),
    "early-stop-then-return": (Cause.RAN_OUT_OF_INPUT, {}),
    "expert-without-tokens": (Cause.BACKWARD_WITHOUT_BUCKET, {}),
    "freeze-after-wrap": (Cause.PARAMETERS_CHANGED, {"parameters": "0.weight (frozen now), 0.bias (frozen now)"}),
    "gradient-scale-through-gather": (Cause.SCALED, {"fact": "0.25 (1 / world size)"}),
    "group-rank-used-as-global-root": (Cause.GROUP_RANK_AS_ROOT, {}),
    "groups-in-a-ring": (Cause.GROUPS_IN_A_RING, {"fact": '"1", "2", "3" and "4"'}),
    "initialised-after-wrap": (Cause.STARTED_APART, {}),
    "inner-module-used-for-the-loss": (Cause.INNER_MODULE_TRAINED, {}),
    "join-divides-first-model-only": (Cause.JOINED_DIVISOR, {"who": "rank 1"}),
    "join-divisor-ignored-by-communication-hook": (Cause.JOINED_DIVISOR, {"who": "rank 1"}),
    "join-sharded-optimizer-stale-shard": (Cause.JOINED_STEPPED, {"who": "rank 1"}),
    "join-sparse-gradients-without-a-batch": (Cause.NO_GRADIENT_IN_JOIN, {}),
    "join-with-collective-in-the-loop": (Cause.UNKNOWN_TO_JOIN, {"operation": "all_reduce"}),
    "join-with-pre-forward-buffer-hook": (Cause.JOINED_WITH_BUFFERS, {"who": "rank 1"}),
    "join-with-unused-parameters": (Cause.JOINED_WITH_USED_MAP, {"who": "rank 1"}),
    "local-clock-decides": (Cause.DECIDED_ALONE, {"operation": "barrier"}),
    "loss-scale-differs": (Cause.GRADIENTS_CHANGED, {}),
    "mean-of-means": (Cause.OTHER_THAN_PLAIN_TRAINING, {}),
    "momentum-loaded-on-rank0": (Cause.OPTIMIZER_DIFFERS, {}),
    "nan-skip-on-one-rank": (Cause.SKIPPED_BACKWARD, {}),
    "new-group-not-called-by-everyone": (Cause.GROUP_NOT_CREATED, {}),
    "no-sync-around-half-of-the-step": (Cause.STEP_WITHOUT_SYNCHRONISATION, {}),
    "parameter-set-differs-at-wrap": (Cause.MODELS_DIFFER, {}),
    "parameters-in-other-order-at-wrap": (Cause.PARAMETERS_IN_OTHER_ORDER, {}),
    "rank0-eval-through-wrapper-with-buffers": (Cause.FORWARD_ALONE, {}),
    "reduce-to-different-ranks": (Cause.OTHER_DESTINATION, {"who": "each rank"}),
    "reducer-armed-by-another-forward": (Cause.BACKWARD_AFTER_REDUCTION, {}),
    "reentrant-checkpoint-reuses-layer": (Cause.READY_TWICE, {}),
    "rng-policy-own-permutation": (Cause.OTHER_THAN_PLAIN_TRAINING, {}),
    "root-differs": (Cause.OTHER_ROOT, {}),
    "running-statistics-drift": (Cause.BUFFERS_IN_EVALUATION, {}),
    "sampler-padding-counts-twice": (Cause.OTHER_COUNT, {}),
    "schedule-follows-local-metric": (Cause.OPTIMIZER_DIFFERS, {}),
    "second-backward-over-retained-graph": (Cause.BACKWARD_AFTER_REDUCTION, {}),
    "state-loaded-on-rank0-after-wrap": (Cause.STARTED_APART, {}),
    "submodule-without-trainable-params-not-wrapped": (Cause.OTHER_ON_SOME_RANKS, {}),
    "sync-batchnorm-not-entered-alike": (Cause.COLLECTIVE_IN_FORWARD, {}),
    "teardown-while-peers-communicate": (
        Cause.GROUP_DESTROYED,
        {"site": marked_line("teardown-while-peers-communicate"), "operation": "all_reduce #2"},
    ),
    "two-wrapped-models-in-different-order": (Cause.WRAPPERS_MIXED, {}),
    "two-wrapped-models-in-their-own-groups": (Cause.WRAPPERS_MIXED, {}),
    "uneven-batches-then-barrier": (Cause.LEFT_LOOP, {"operation": "barrier"}),
    "unfreeze-after-wrap": (Cause.NOT_IN_A_BUCKET, {"fact": "0.weight"}),
    "unused-on-all-ranks-single-step": (
        Cause.BUCKET_NOT_REDUCED,
        {
            "fact": "bucket 0 (head.weight, head.bias, auxiliary.weight, auxiliary.bias) was not reduced in this step: "
            "auxiliary.weight, auxiliary.bias got no gradient"
        },
    ),
    "wrapped-without-initial-sync": (Cause.STARTED_APART, {}),
    "zero-loss-detached-from-graph": (Cause.BACKWARD_WITHOUT_BUCKET, {}),
}


def findings(name):
    return run_scenario(registry[name], Engine.TORCH).findings


@pytest.mark.parametrize(("name", "cause", "facts"), [(name, *case) for name, case in CAUSES.items()], ids=CAUSES)
def test_the_cause_fits(name, cause, facts):
    ends_with(findings(name)[0], cause, **facts)


def test_a_step_of_a_static_graph_that_was_not_reduced():
    bucket = "bucket 0 (value.weight, value.bias, uncertainty.weight, uncertainty.bias)"
    fact = f"{bucket} was not reduced in this step: uncertainty.weight, uncertainty.bias got no gradient"
    ends_with(findings("static-graph-with-unused-output")[1], Cause.BUCKET_NOT_REDUCED, fact=fact)


def test_names_in_another_order_are_shown():
    (finding,) = findings("parameters-in-other-order-at-wrap")
    names = [line.split()[7] for line in finding.body.splitlines() if "name of tensor 0 = " in line]
    assert names == ["encoder.weight", "decoder.weight", "encoder.weight", "encoder.weight"]
