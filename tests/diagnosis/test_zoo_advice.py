"""What findings of the zoo end with, where a more general cause would mislead."""

import pytest

from scenarios import registry, run_scenario
from scenarios.engines import Engine

REDUCED = "a backward ran when this step's reduction was over"
WORDS = {
    "async-result-read-before-wait": ("had not been waited for", "wait() for the work before the tensor is read"),
    "dispatcher-leaves-a-rank-empty": ("no number came up on some rank", "isnan(loss)"),
    "early-stop-then-return": ("ran out of input, or stopped,", "all_reduce(MAX) of a flag"),
    "freeze-after-wrap": ("0.weight (frozen now), 0.bias (frozen now) changed", "before wrapping"),
    "groups-in-a-ring": ("each waits for one that begins elsewhere", "one global order"),
    "new-group-not-called-by-everyone": ("rank 1 did not come to it", "create all groups on every rank"),
    "no-sync-around-half-of-the-step": ("no synchronising forward preceded", "no_sync() has to end before its forward"),
    "parameters-in-other-order-at-wrap": (
        "the model of rank 1 has its parameters in another order",
        "sort their names",
    ),
    "reduce-to-different-ranks": ("each rank passed another root", "use all_reduce or all_gather"),
    "reducer-armed-by-another-forward": (REDUCED, "run each backward before the next forward"),
    "second-backward-over-retained-graph": (REDUCED, "add the losses up and run one backward"),
    "two-wrapped-models-in-their-own-groups": ("rank 1 used the wrappers in another order", "of their own do not help"),
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
