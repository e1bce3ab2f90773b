"""Hypothesis strategies of schedules, and of the scheduling policies that make a schedule."""

from hypothesis import strategies as st

from ddpsim import Pct, Policy
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy

_MOST_SWITCHES = 4
"""The most switches between ranks in a drawn schedule with few switches. Most bugs need two or three ordered events
(simulator/policies/pct.py)."""
_MOST_SEED = 2**32 - 1
_MOST_DEPTH = 4

Choices = tuple[int, ...]


def schedules(*, max_choices: int = 60, max_choice: int = 3) -> st.SearchStrategy[Choices]:
    """Draw schedules: tuples of choices for `GuidedPolicy`, which uses each modulo the number of options at its point.

    Drawn are long tuples with many switches between ranks, and tuples with up to four switches, far apart. A choice 0
    is what round robin would choose. The simplest schedule is (): round robin throughout.

        @given(schedules())
        def test_any_interleaving(choices):
            assert simulate(program, 3, policy=Guided(choices)).verdict is Verdict.PASS
    """
    dense = st.lists(st.integers(0, max_choice), max_size=max_choices).map(tuple)
    indices, switches = st.integers(0, max(max_choices - 1, 0)), st.integers(1, max(max_choice, 1))
    sparse = st.dictionaries(indices, switches, max_size=min(_MOST_SWITCHES, max_choices)).map(_choices_with_switches)
    return sparse | dense


def _choices_with_switches(switches: dict[int, int]) -> Choices:
    return tuple(switches.get(index, 0) for index in range(max(switches, default=-1) + 1))


def policies(*, max_choices: int = 60) -> st.SearchStrategy[Policy]:
    """Draw policies for one run: drawn choices, a random walk, or PCT of depth 1 to 4.

        @given(policies())
        def test_any_interleaving(policy):
            assert simulate(program, 3, policy=policy).verdict is Verdict.PASS

    A policy serves for one run. The result's schedule has the choices that were taken.
    """
    seeds = st.integers(0, _MOST_SEED)
    return st.one_of(
        st.builds(GuidedPolicy, schedules(max_choices=max_choices)),
        st.builds(RandomWalk, seeds),
        st.builds(Pct, seeds, depth=st.integers(1, _MOST_DEPTH)),
    )
