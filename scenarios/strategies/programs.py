"""Hypothesis strategies of programs: nothing wrong with them, or broken in one place.

Healthy ones are drawn round by round, so that no rank waits for good: see Note [No deadlock] in
scenarios/strategies/drawing.py, which draws such programs by a seed. Here every part is hypothesis's own draw, so that
a failure shrinks to few ranks, few rounds and plain calls that are waited for at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import strategies as st

from ddpsim import UsageError
from ddpsim.scenarios.strategies.breaking import Kind, broken
from ddpsim.scenarios.strategies.drawing import COLLECTIVES, Round
from ddpsim.simulator.calls import ANY_SOURCE, Shape
from ddpsim.simulator.operations import IN_PROGRAMS, Shapes
from ddpsim.simulator.programs.dtypes import DTYPES, reductions_of
from ddpsim.simulator.programs.program import Group, Issue, Program, Step, Wait
from ddpsim.simulator.programs.validation import members_of

_MOST_GROUPS = 2
_LARGE: Shape = (3001,)
"""More than a backend moves in one piece."""
_FIRST_OWN_TAG = 100
"""A receive from any source has a tag of its own, so that only one message can be meant."""

_NEVER = -1
_DELAYS = st.sampled_from([0, 0, 0, 1, 2, 3, _NEVER])
"""After how many more calls of its own a rank waits for one."""

_KINDS = tuple(kind for kind in Kind if kind is not Kind.NONE)


@st.composite
def programs(
    draw: st.DrawFn, *, min_ranks: int = 2, max_ranks: int = 4, min_rounds: int = 0, max_rounds: int = 8
) -> Program:
    """A program of plain calls in which nothing is wrong: it passes under every schedule.

    Drawn are the number of ranks, up to two more groups, and up to `max_rounds` collectives of any operation or
    messages, directed or to a receive from any source, with their shapes (of one and two dimensions, scalars, empty and
    large ones), dtypes, reductions, roots and splits. Each rank waits for a call at once, some calls later, or never.

        @given(programs(max_ranks=3))
        def test_my_transport(program):
            assert simulate(run_steps, program.world_size, args=(program,)).verdict is Verdict.PASS
    """
    _check_range("ranks", min_ranks, max_ranks, least=1)
    _check_range("rounds", min_rounds, max_rounds, least=0)
    world_size = draw(st.integers(min_ranks, max_ranks))
    groups = draw(_groups(world_size))
    members = members_of(Program(world_size, groups, ()))
    kinds = draw(st.lists(st.integers(0, 3), min_size=min_rounds, max_size=max_rounds))
    rounds = [draw(_rounds(number, members, is_message=kind == 3)) for number, kind in enumerate(kinds)]
    return Program(world_size, groups, tuple(draw(_steps(rounds, rank)) for rank in range(world_size)))


@st.composite
def broken_programs(
    draw: st.DrawFn, *, min_ranks: int = 2, max_ranks: int = 4, max_rounds: int = 8
) -> tuple[Program, Kind]:
    """A program that was broken in one place of one rank, and what was done to it.

    A break need not be a fault: where nobody waits for the call, say, the program still passes.
    `ddpsim.simulator.programs.check` says what comes of it. Kinds are those of breaking.py: a call that
    is missing, made again, swapped or of another operation, shape, dtype, reduction, root, group, peer or tag; splits
    that differ; a rank that returns early or crashes.

        @given(broken_programs())
        def test_what_is_found(chosen):
            program, kind = chosen
            assert bool(check(program).findings) == bool(my_checker(program))
    """
    program = draw(programs(min_ranks=max(min_ranks, 2), max_ranks=max_ranks, min_rounds=1, max_rounds=max_rounds))
    possible = [kind for kind in _KINDS if broken(Random(0), program, kind) is not None]
    kind = draw(st.sampled_from(possible))
    changed = broken(draw(st.randoms(use_true_random=False)), program, kind)
    assert changed is not None, "whether there is a place for a break does not hang on what is drawn"
    return changed[0], kind


def _check_range(what: str, least_wanted: int, most: int, *, least: int) -> None:
    if not least <= least_wanted <= most:
        raise UsageError(
            f"programs of {least_wanted} to {most} {what} are asked for, expected a range from {least} on: "
            f"give min_{what} and max_{what} that fit together"
        )


# --- what communicates ------------------------------------------------------------------------------------------------


def _groups(world_size: int) -> st.SearchStrategy[tuple[Group, ...]]:
    ranks = st.lists(st.integers(0, world_size - 1), min_size=min(2, world_size), max_size=world_size, unique=True)
    return st.lists(ranks, max_size=_MOST_GROUPS).map(
        lambda each: tuple(Group(f"g{number}", tuple(sorted(own))) for number, own in enumerate(each, start=1))
    )


@st.composite
def _rounds(draw: st.DrawFn, number: int, members: Mapping[str, Sequence[int]], *, is_message: bool) -> Round:
    """Calls that belong together, by rank."""
    group = draw(st.sampled_from(list(members)))
    ranks = members[group]
    if is_message and len(ranks) > 1:
        return draw(_messages(number, group, ranks))
    operation = draw(st.sampled_from(COLLECTIVES))
    dtype = draw(st.sampled_from(DTYPES)) if IN_PROGRAMS[operation].shapes is not Shapes.NONE else None
    if operation == "all_to_all_single":
        return draw(_exchanges(Issue(f"c{number}", operation, group, dtype=dtype), ranks))
    return dict.fromkeys(ranks, draw(_collectives(Issue(f"c{number}", operation, group, dtype=dtype), ranks)))


@st.composite
def _collectives(draw: st.DrawFn, plain: Issue, ranks: Sequence[int]) -> Issue:
    """The call that all members make alike."""
    takes = IN_PROGRAMS[plain.operation]
    return Issue(
        plain.name,
        plain.operation,
        plain.group,
        draw(_shape_lists(plain.operation, len(ranks))),
        plain.dtype,
        draw(st.sampled_from(reductions_of(str(plain.dtype)))) if takes.reduces else None,
        draw(st.sampled_from(ranks)) if takes.has_root else None,
    )


@st.composite
def _messages(draw: st.DrawFn, number: int, group: str, ranks: Sequence[int]) -> Round:
    sender, receiver = draw(st.lists(st.sampled_from(ranks), min_size=2, max_size=2, unique=True))
    is_from_any = draw(st.sampled_from([False, False, True]))
    tag = _FIRST_OWN_TAG + number if is_from_any else draw(st.sampled_from([0, 0, 1]))
    shape, dtype = draw(_shapes()), draw(st.sampled_from(DTYPES))
    shapes = ((),) if is_from_any and 0 in shape else (shape,)  # gloo refuses an empty one from any source
    source = ANY_SOURCE if is_from_any else sender
    return {
        sender: Issue(f"c{number}", "send", group, shapes, dtype, peer=receiver, tag=tag),
        receiver: Issue(f"c{number}", "recv", group, shapes, dtype, peer=source, tag=tag),
    }


@st.composite
def _exchanges(draw: st.DrawFn, plain: Issue, ranks: Sequence[int]) -> Round:
    """An all_to_all_single with parts of all sizes; every rank sends something."""
    size, row = len(ranks), draw(st.sampled_from([(), (3,)]))
    parts = [draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)) for _ in ranks]
    for number in range(size):
        parts[number][(number + 1) % size] += 1
    received = [tuple(column) for column in zip(*parts, strict=True)]
    return {
        rank: Issue(
            plain.name,
            plain.operation,
            plain.group,
            ((sum(own), *row), (sum(theirs), *row)),
            plain.dtype,
            splits=(tuple(own), theirs),
        )
        for rank, own, theirs in zip(ranks, parts, received, strict=True)
    }


def _shape_lists(operation: str, size: int) -> st.SearchStrategy[tuple[Shape, ...]]:
    wanted = IN_PROGRAMS[operation].shapes
    if wanted is Shapes.NONE:
        return st.just(())
    if wanted is Shapes.SEVERAL:
        return st.lists(_shapes(), min_size=1, max_size=3).map(tuple)
    if operation == "reduce_scatter_tensor":
        return _shapes(has_rows=True).map(lambda shape: ((shape[0] * size, *shape[1:]),))
    shapes = _shapes(has_rows=operation == "all_gather_into_tensor")
    return shapes.map(lambda shape: (shape,) * (size if wanted is Shapes.PER_MEMBER else 1))


@st.composite
def _shapes(draw: st.DrawFn, *, has_rows: bool = False) -> Shape:
    """Mostly small ones; seldom a scalar, one without an element, or a large one."""
    kind = draw(st.integers(0, 29))
    if kind == 29:
        return _LARGE
    if kind == 28:
        return (0,)
    if kind > 23 and not has_rows:
        return ()
    return tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=2)))


# --- what a rank does of it -------------------------------------------------------------------------------------------


@st.composite
def _steps(draw: st.DrawFn, rounds: Sequence[Round], rank: int) -> tuple[Step, ...]:
    """Its calls in order, each waited for at once, some calls later, or never."""
    own = [calls[rank] for calls in rounds if rank in calls]
    delays = [draw(_DELAYS) for _ in own]
    due: dict[int, list[Step]] = {}
    for number, delay in enumerate(delays):
        if delay != _NEVER:
            due.setdefault(number + delay, []).append(Wait(own[number].name))
    steps: list[Step] = []
    for number, issue in enumerate(own):
        steps += [issue, *due.pop(number, ())]
    return (*steps, *(wait for number in sorted(due) for wait in due[number]))
