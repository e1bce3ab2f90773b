"""Hypothesis strategies of programs, each a list of communication calls per rank: correct, or broken in one place.
generator.py and breaking.py make the programs.

Hypothesis makes each of their choices, so it can shrink a failure to few ranks, few rounds and simple calls that are
waited for at once.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from ddpsim import UsageError
from ddpsim.scenarios.fuzzing.strategies.breaking import BreakKind, break_program, possible_breaks
from ddpsim.scenarios.fuzzing.strategies.generator import ProgramExtent, choose_one, draw_program
from ddpsim.simulator.programs.program import Program


@dataclass(frozen=True, slots=True)
class _HypothesisSource:
    """A source of choices that hypothesis draws."""

    draw: st.DrawFn

    def draw_integer(self, least: int, most: int) -> int:
        """Return a number in the range, drawn by hypothesis."""
        return self.draw(st.integers(least, most))


@st.composite
def programs(
    draw: st.DrawFn, *, min_ranks: int = 2, max_ranks: int = 4, min_rounds: int = 0, max_rounds: int = 8
) -> Program:
    """Draw a correct program of plain calls: it passes under every schedule.

    Drawn are the number of ranks, up to two more groups, and up to `max_rounds` collectives of any operation or
    messages, directed or to a receive from any source, with their shapes (of one and two dimensions, scalars, empty and
    large ones), dtypes, reductions, roots and splits. Each rank waits for a call at once, some calls later, or never.

        @given(programs(max_ranks=3))
        def test_my_transport(program):
            assert simulate(run_steps, program.world_size, args=(program,)).verdict is Verdict.PASS
    """
    _check_range("ranks", min_ranks, max_ranks, least=1)
    _check_range("rounds", min_rounds, max_rounds, least=0)
    return draw_program(_HypothesisSource(draw), ProgramExtent((min_ranks, max_ranks), (min_rounds, max_rounds)))


@st.composite
def broken_programs(
    draw: st.DrawFn, *, min_ranks: int = 2, max_ranks: int = 4, max_rounds: int = 8
) -> tuple[Program, BreakKind]:
    """Draw a program that was broken in one place of one rank, and the kind of break.

    A break need not be a fault: if no rank waits for the call, the program still passes.
    `ddpsim.simulator.programs.check` returns what happens. Kinds are those of breaking.py: a call that is missing,
    repeated, swapped or of another operation, shape, dtype, reduction, root, group, peer or tag; splits that differ; a
    rank that returns early or crashes.

        @given(broken_programs())
        def test_what_is_found(chosen):
            program, kind = chosen
            assert bool(check(program).findings) == bool(my_checker(program))
    """
    program = draw(programs(min_ranks=max(min_ranks, 2), max_ranks=max_ranks, min_rounds=1, max_rounds=max_rounds))
    choices = _HypothesisSource(draw)
    kind = choose_one(choices, possible_breaks(program))
    changed = break_program(choices, program, kind)
    assert changed is not None, "whether a break fits does not depend on the drawn choices"
    return changed[0], kind


def _check_range(what: str, least_wanted: int, most: int, *, least: int) -> None:
    if not least <= least_wanted <= most:
        raise UsageError(
            f"programs of {least_wanted} to {most} {what} are asked for, expected a range from {least} on: "
            f"give min_{what} and max_{what} that fit together"
        )
