"""A scheduler in miniature: ranks that make their steps in order, and never wait."""

from collections.abc import Sequence

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Policy


def interleave(policy: Policy, lengths: Sequence[int]) -> tuple[int, ...]:
    """The ranks in the order in which they make their steps; `lengths` says how many each has.

    A choice is offered before each step, as the simulator does it: the rank that could go on is option 0.
    """
    left = list(lengths)
    order: list[int] = []
    current = 0
    while any(left):
        enabled = [rank for rank in range(len(left)) if left[rank]]
        options = [rank for rank in enabled if rank >= current] + [rank for rank in enabled if rank < current]
        point = ChoicePoint(ChoiceKind.RANK, len(order), current)
        current = options[policy.choose(point, options) if len(options) > 1 else 0]
        left[current] -= 1
        order.append(current)
    return tuple(order)
