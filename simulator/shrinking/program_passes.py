"""All passes that make a program simpler, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.programs.validation import validate
from ddpsim.simulator.shrinking.program_calls import plainer_calls
from ddpsim.simulator.shrinking.program_groups import fewer_groups, smaller_groups
from ddpsim.simulator.shrinking.program_ranks import fewer_ranks, two_or_three_ranks
from ddpsim.simulator.shrinking.program_steps import (
    fewer_rounds,
    fewer_rounds_in_pairs,
    fewer_steps,
    fewer_steps_in_pairs,
    idle_ranks,
    synchronous,
)

_PASSES = (
    fewer_ranks,
    two_or_three_ranks,
    fewer_rounds,
    idle_ranks,
    fewer_steps,
    fewer_rounds_in_pairs,
    fewer_steps_in_pairs,
    fewer_groups,
    smaller_groups,
    plainer_calls,
    synchronous,
)


def _valid(shrink_pass: Callable[[Program], Iterator[Program]]) -> Callable[[Program], Iterator[Program]]:
    """What a pass gives, without what ranks could not run: it need not look at every rule itself."""

    def valid(program: Program) -> Iterator[Program]:
        return (simpler for simpler in shrink_pass(program) if simpler != program and _is_valid(simpler))

    return valid


def _is_valid(program: Program) -> bool:
    try:
        validate(program)
    except UsageError:
        return False
    return True


PASSES = tuple(map(_valid, _PASSES))
"""Each gives valid programs only."""
