"""The failure of a program, and all its parts, to prove by looking at each that none of them fails."""

from itertools import product

from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.verdict import Verdict


def failure_of(program):
    """The code that leads what `check` finds in a program; None if it passes."""
    checked = check_program(program)
    return checked.findings[0].code if checked.verdict is Verdict.FAIL else None


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
