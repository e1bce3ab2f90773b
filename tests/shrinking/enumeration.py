"""All programs up to a size, to prove by looking at each that none of them fails."""

from itertools import product

from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import Group, Program, Wait
from ddpsim.simulator.programs.validation import validate_program
from ddpsim.simulator.shrinking.program_passes import size_of_program
from ddpsim.simulator.verdict import Verdict


def failure_of(program):
    """The code that leads what `check` finds in a program; None if it passes."""
    checked = check_program(program)
    return checked.findings[0].code if checked.verdict is Verdict.FAIL else None


def programs(world_size, most_steps, calls_of, *, groups=()):
    """All programs of so many ranks and at most so many steps in all, each made of these calls, and waits for them.

    `calls_of(rank, name)` gives the steps, besides waits, that a rank can make at a place.
    """
    by_rank = [[*rank_steps(rank, most_steps, calls_of)] for rank in range(world_size)]
    for ranks in product(*by_rank):
        if sum(map(len, ranks)) <= most_steps:
            yield Program(world_size, groups, ranks)


def rank_steps(rank, most_steps, calls_of, before=()):
    """All that a rank can do in at most so many steps; every call has a name of its own."""
    yield before
    if len(before) < most_steps:
        waits = [Wait(step.name) for step in before if hasattr(step, "operation")]
        for step in (*calls_of(rank, f"c{len(before)}"), *(wait for wait in waits if wait not in before)):
            yield from rank_steps(rank, most_steps, calls_of, (*before, step))


def smallest_failure(code, most_ranks, most_steps, calls_of, *, groups_of=lambda world_size: ()):
    """The size of the smallest program that fails with a code, of all up to so many ranks and steps."""
    sizes = []
    for world_size in range(1, most_ranks + 1):
        for program in programs(world_size, most_steps, calls_of(world_size), groups=groups_of(world_size)):
            validate_program(program)
            if failure_of(program) == code:
                sizes.append(size_of_program(program))
    return min(sizes)


def parts_of(program):
    """Every program that is left when some of its steps are: all but itself."""
    indices = [(rank, index) for rank, steps in enumerate(program.ranks) for index in range(len(steps))]
    for kept in product([False, True], repeat=len(indices)):
        if not all(kept):
            chosen = {index for index, is_kept in zip(indices, kept, strict=True) if is_kept}
            ranks = tuple(
                tuple(step for index, step in enumerate(steps) if (rank, index) in chosen)
                for rank, steps in enumerate(program.ranks)
            )
            yield Program(program.world_size, program.groups, ranks)


PAIR = Group("pair", (0, 1))
