"""Simpler programs: what the ways give is valid, and where they lead."""

import pytest

from ddpsim import Budget, Code
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.programs.program import CrashStep, Group, Issue, Wait
from ddpsim.simulator.programs.validation import validate_program
from ddpsim.simulator.shrinking.greedy import ShrinkAttempt, shrink_value
from ddpsim.simulator.shrinking.program_passes import PASSES, reduce_to_ranks, remove_ranks, size_of_program
from tests.agreement.labelled import labelled
from tests.programs.programs import barrier, program, received, reduced, sent, waited
from tests.shrinking.enumeration import failure_of

EXCHANGE = Issue("x", "all_to_all_single", shapes=((6,), (6,)), dtype="float32", splits=((1, 2, 3), (3, 2, 1)))


def shrunk(value):
    code = failure_of(value)
    assert code is not None
    return shrunk_while(value, lambda tried: failure_of(tried) is code)


def shrunk_while(value, fails):
    return shrink_value(
        value,
        PASSES,
        lambda tried: ShrinkAttempt(tried if fails(tried) else None),
        size=size_of_program,
        budget=Budget(executions=100_000),
    )


def simpler(value):
    """What all ways give."""
    return [other for way in PASSES for other in way(value)]


LEAST = {
    Code.RANK_ERROR: {(1, 1, 0)},  # the crash is the failure, and nobody has to wait for it
    Code.DEADLOCK_MISSING_RANK: {(2, 2, 1), (1, 2, 1)},  # a call and its wait; on one rank, for any source
    Code.DEADLOCK_CYCLE: {(2, 4, 2)},  # each of two ranks waits for the other
    Code.MISMATCH_SPLITS: {(1, 1, 1), (2, 2, 2)},  # a rank's own do not fit; or those of two ranks
}
"""By code: ranks, steps and calls. It takes two ranks with a call each to disagree, as all other codes say."""


def test_broken_programs_come_to_the_least_that_fails_with_their_code():
    programs = [labelled(seed, (2, 6)).program for seed in range(150)]
    failing = [each for each in programs if failure_of(each)]
    assert len(failing) > 50
    for each in failing:
        found = shrunk(each)
        validate_program(found.value)
        assert found.is_minimal
        assert failure_of(found.value) is failure_of(each)
        assert found.size[:3] in LEAST.get(failure_of(each), {(2, 2, 2)})
        assert found.size[3] <= (failure_of(each) is Code.DEADLOCK_CYCLE)  # a group beside the default one


def test_at_the_end_no_step_of_any_way_leads_on():
    for seed in range(25):
        each = labelled(seed, (2, 6)).program
        if code := failure_of(each):
            found = shrunk(each)
            simpler = [other for way in PASSES for other in way(found.value) if size_of_program(other) < found.size]
            assert not any(failure_of(other) is code for other in simpler)


@pytest.mark.parametrize("seed", range(6))
def test_every_way_gives_programs_that_ranks_could_run(seed):
    each = labelled(seed, (2, 5)).program
    for way in PASSES:
        for simpler in way(each):
            validate_program(simpler)
            assert simpler != each


def test_ranks_are_numbered_anew():
    groups = [Group("g", (1, 3)), Group("h", (0, 2))]
    message = sent("m", 3), received("m", 1)
    whole = program((), (reduced("a", group="g"), message[0]), (), (reduced("a", group="g"), message[1]), groups=groups)
    assert reduce_to_ranks(whole, [1, 3], stand_in=None) == program(
        (reduced("a", group="g"), sent("m", 1)),
        (reduced("a", group="g"), received("m", 0)),
        groups=[Group("g", (0, 1))],
    )


def test_a_message_to_somebody_who_is_gone_goes_with_its_wait_or_to_another():
    whole = program(waited(sent("m", 1)), waited(received("m", 0)), waited(barrier("b")))
    assert reduce_to_ranks(whole, [0, 2], stand_in=None) == program((), waited(barrier("b")))
    assert reduce_to_ranks(whole, [0, 2], stand_in=2) == program(waited(sent("m", 1)), waited(barrier("b")))
    assert reduce_to_ranks(whole, [0, 2], stand_in=0) == program((), waited(barrier("b")))


def test_a_root_that_is_gone_is_the_first_member_or_another():
    rooted = Issue("r", "broadcast", shapes=((2,),), dtype="int8", root=1)
    whole = program([rooted], [rooted], [rooted])
    roots = [
        [steps[0].root for steps in reduce_to_ranks(whole, [0, 2], stand_in=stand_in).ranks] for stand_in in (None, 2)
    ]
    assert roots == [[0, 0], [1, 1]]


def test_parts_for_a_rank_that_is_gone_are_gone():
    scattered = Issue("s", "reduce_scatter", shapes=((1,), (2,), (3,)), dtype="float32", reduction="SUM")
    rows = Issue("t", "reduce_scatter_tensor", shapes=((12, 5),), dtype="float32", reduction="SUM")
    anybody = received("m", ANY_SOURCE)
    ((exchange, part, shared, receive),) = reduce_to_ranks(
        program([], [], [EXCHANGE, scattered, rows, anybody]), [2], stand_in=None
    ).ranks
    assert (exchange.shapes, exchange.splits) == (((3,), (1,)), ((3,), (1,)))
    assert part.shapes == ((3,),)
    assert shared.shapes == ((4, 5),)
    assert receive == anybody


def test_halves_go_first():
    sizes = [simpler.world_size for simpler in remove_ranks(program(*[()] * 8))]
    assert sizes == [4] * 2 + [6] * 4 + [7] * 8
    of_few = [each.world_size for each in remove_ranks(program(*[()] * 4))]
    assert of_few[-10:] == [2] * 6 + [3] * 4  # none of them need be superfluous alone


def test_calls_of_one_name_go_together_with_their_waits():
    whole = program(waited(reduced("a"), reduced("b")), waited(reduced("a")))
    found = simpler(whole)
    assert program(waited(reduced("b")), ()) in found
    assert program(waited(reduced("a")), waited(reduced("a"))) in found


def test_a_wait_goes_with_its_call_and_not_the_other_way_round():
    a, wait = waited(reduced("a"))
    found = simpler(program((a, wait, CrashStep())))
    assert program((CrashStep(),)) in found
    assert program((a, CrashStep())) in found
    assert program((wait, CrashStep())) not in found


def test_waits_move_to_their_calls():
    a, b = reduced("a"), reduced("b")
    late = program((a, b, Wait("b"), Wait("a")), (a, b, Wait("a")))
    at_once = program((a, Wait("a"), b, Wait("b")), (a, Wait("a"), b))
    assert (
        shrunk_while(late, lambda tried: size_of_program(tried)[:3] == (2, 7, 4)).size
        == shrunk_while(at_once, lambda tried: size_of_program(tried)[:3] == (2, 7, 4)).size
    )
    assert size_of_program(late).options == size_of_program(at_once).options + 2


def test_a_group_is_left_out_or_another_takes_its_place():
    groups = [Group("g", (0, 1)), Group("h", (0, 1)), Group("unused", (0,))]
    call, on_h = reduced("a", group="g"), reduced("b", group="h")
    found = simpler(program([call, on_h], [call], groups=groups))
    assert program([call, on_h], [call], groups=groups[:2]) in found
    assert program([on_h], [], groups=groups[1:2]) in found
    for name in ("default", "h"):
        other = reduced("a", group=name)
        assert program([other, on_h], [other], groups=groups[1:2]) in found


def test_a_member_of_a_group_makes_no_calls_on_it():
    call, other = reduced("a", group="g"), reduced("b")
    found = simpler(program([call, Wait("a"), other], [call, other], groups=[Group("g", (0, 1))]))
    assert program([other], [call, other], groups=[Group("g", (1,))]) in found
    assert program([call, Wait("a"), other], [other], groups=[Group("g", (0,))]) in found


def test_calls_that_have_to_stay_are_as_plain_as_can_be():
    calls = [
        Issue("a", "reduce", shapes=((5, 2),), dtype="int8", reduction="MAX", root=1),
        sent("b", 1, tag=7, dtype="bool", shape=()),
        Issue("c", "reduce_scatter_tensor", shapes=((6, 2),), dtype="int8", reduction="MIN"),
        Issue("d", "all_reduce_coalesced", shapes=((2,), (3,)), dtype="int8", reduction="MIN"),
        Issue("e", "all_to_all", shapes=((2,), (2,)), dtype="int8"),
        Issue("f", "all_to_all_single", shapes=((3,), (3,)), dtype="int8", splits=((1, 2), (3, 0))),
        barrier("g"),
    ]

    def has_all(tried):
        return tried.world_size == 2 and [step.name for step in tried.ranks[0]] == [step.name for step in calls]

    plain = shrunk_while(program(calls, []), has_all).value.ranks[0]
    assert [step.shapes for step in plain] == [
        *[((1,),), ((1,),), ((2,),), ((1,),), ((1,), (1,)), ((2,), (2,)), ()],
    ]
    assert {step.dtype for step in plain} == {"float32", None}
    assert (plain[0].reduction, plain[0].root, plain[1].tag, plain[5].splits) == ("SUM", 0, 0, ((1, 1), (1, 1)))
    assert size_of_program(program(plain, [])).options == 0


def test_a_shape_that_has_to_differ_becomes_the_next_one():
    found = shrunk(program([reduced("a", 64, 3)], [reduced("a", 17)])).value
    assert sorted(steps[0].shapes for steps in found.ranks) == [((1,),), ((2,),)]


def test_splits_that_have_to_differ_do_so_by_one():
    other = Issue("x", "all_to_all_single", shapes=((6,), (7,)), dtype="float32", splits=((1, 2, 3), (3, 3, 1)))
    found = shrunk(program([EXCHANGE], [other], [EXCHANGE]))
    assert found.size[:3] == (1, 1, 1)
    assert found.value.ranks[0][0].splits in [((1,), (2,)), ((2,), (1,)), ((1,), (0,)), ((0,), (1,))]
