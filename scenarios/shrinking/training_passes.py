"""All passes that make a declared training simpler, in the order in which they run."""

from __future__ import annotations

from ddpsim.scenarios.shrinking.training_iterations import (
    fewer_exceptions,
    fewer_iterations,
    fewer_on_one_rank,
    plainer_rule,
)
from ddpsim.scenarios.shrinking.training_options import (
    fewer_faults,
    fewer_networks,
    fewer_rows,
    plainer,
    plainer_networks,
    plainest,
)
from ddpsim.scenarios.shrinking.training_ranks import fewer_ranks, only_two_or_three

PASSES = (
    fewer_ranks,
    only_two_or_three,
    fewer_iterations,
    fewer_on_one_rank,
    plainest,
    plainer,
    fewer_networks,
    fewer_exceptions,
    fewer_faults,
    plainer_networks,
    fewer_rows,
    plainer_rule,
)
