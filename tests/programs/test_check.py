"""What the check finds, worked out by hand: which code, who is to blame, where each rank stopped; and what passes."""

from ddpsim.simulator.calls import ANY_SOURCE, Site
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankState
from ddpsim.simulator.programs.check import MatchedCall, RankEnd, check_program
from ddpsim.simulator.programs.program import CrashStep, Group, Issue, Return, Wait
from ddpsim.simulator.verdict import Code, Verdict
from tests.kit.rows import rows
from tests.programs.programs import barrier, program, received, reduced, sent, waited

A, B = reduced("a"), reduced("b", 2, 3)


def found(checked):
    return [(finding.code, finding.ranks) for finding in checked.findings]


FAILING = {
    "missing": (program(waited(A, B), waited(A, B), waited(A)), Code.DEADLOCK_MISSING_RANK, (2,)),
    "extra-on-one-of-three": (program(waited(A, B), waited(A), waited(A)), Code.DEADLOCK_MISSING_RANK, (0,)),
    "early-return": (program(waited(A), (Return(), *waited(A)), waited(A)), Code.DEADLOCK_MISSING_RANK, (1,)),
    "swapped-signatures": (program(waited(A, B), waited(B, A), waited(A, B)), Code.MISMATCH_SHAPE, (1,)),
    "operation": (program(waited(A), waited(A), waited(barrier("a"))), Code.MISMATCH_OPERATION, (2,)),
    "dtype": (program(waited(A), waited(A), waited(reduced("a", dtype="int32"))), Code.MISMATCH_DTYPE, (2,)),
    "reduction": (program(waited(A), waited(reduced("a", reduction="MAX"))), Code.MISMATCH_REDUCTION, (0, 1)),
    "send-without-recv": (program(waited(sent("m", 1)), ()), Code.DEADLOCK_MISSING_RANK, (1,)),
    "both-send-first": (
        program(waited(sent("m", 1), received("n", 1)), waited(sent("n", 0), received("m", 0))),
        Code.DEADLOCK_CYCLE,
        (0, 1),
    ),
    "tags": (program(waited(sent("m", 1)), waited(received("m", 0, tag=1))), Code.DEADLOCK_CYCLE, (0, 1)),
    "message-longer": (
        program(waited(sent("m", 1, shape=(5,))), waited(received("m", 0))),
        Code.MISMATCH_SHAPE,
        (0, 1),
    ),
    "message-dtype": (
        program(waited(sent("m", 1, dtype="int32")), waited(received("m", ANY_SOURCE))),
        Code.MISMATCH_DTYPE,
        (0, 1),
    ),
    "any-source-of-none": (program(waited(received("m", ANY_SOURCE)), (), ()), Code.DEADLOCK_MISSING_RANK, (1, 2)),
    "groups-in-other-order": (
        program(
            waited(barrier("x", "g"), barrier("y", "h")),
            waited(barrier("y", "h"), barrier("x", "g")),
            groups=[Group("g", (0, 1)), Group("h", (0, 1))],
        ),
        Code.DEADLOCK_CYCLE,
        (0, 1),
    ),
}


@rows("case", FAILING.values(), ids=FAILING)
def test_fails(case):
    broken, code, culprits = case
    checked = check_program(broken)
    assert found(checked) == [(code, culprits)]
    assert checked.verdict is Verdict.FAIL


PASSING = {
    "in-order": program(waited(A, B), waited(A, B)),
    "asynchronous": program((A, B, Wait("b"), Wait("a")), (A, B, Wait("a"), Wait("b"))),
    "steps-after-a-return": program((sent("m", 1), Wait("m")), (received("m", 0), Wait("m"), Return(), A)),
    "exchange": program(
        (sent("m", 1), received("n", 1), Wait("m"), Wait("n")), (sent("n", 0), received("m", 0), Wait("n"), Wait("m"))
    ),
    "any-source": program(waited(received("m", ANY_SOURCE)), waited(sent("m", 0)), ()),
    "one-rank": program(waited(A)),
    "nothing": program((), ()),
}


@rows("healthy", PASSING.values(), ids=PASSING)
def test_passes(healthy):
    checked = check_program(healthy)
    assert found(checked) == []
    assert checked.verdict is Verdict.PASS
    assert {end.state for end in checked.ends} == {RankState.RETURNED}


def test_groups_in_other_order_pass_without_waits_with_a_hazard():
    groups = [Group("g", (0, 1)), Group("h", (0, 1))]
    x, y = barrier("x", "g"), barrier("y", "h")
    checked = check_program(program((x, y, Wait("x"), Wait("y")), (y, x, Wait("x"), Wait("y")), groups=groups))
    assert found(checked) == [(Code.HAZARD_GROUP_ORDER, (0, 1))]
    assert checked.verdict is Verdict.PASS


def test_a_crash_leads_and_the_wait_for_it_follows():
    checked = check_program(program((A, CrashStep(), Wait("a")), waited(A, B)))
    assert found(checked) == [(Code.RANK_ERROR, (0,)), (Code.DEADLOCK_DEAD_RANK, (0,))]
    assert checked.ends == (RankEnd(RankState.RAISED, 1), RankEnd(RankState.WAITING, 3))
    assert "a crash that is a step of the program" in str(checked)


def test_where_ranks_stop():
    checked = check_program(program((A, Return(), Wait("a")), waited(A, B), waited(A, B)))
    assert checked.ends == (
        RankEnd(RankState.RETURNED, 1),
        RankEnd(RankState.WAITING, 3),
        RankEnd(RankState.WAITING, 3),
    )


def test_a_mismatch_ends_the_run_where_it_is_found():
    checked = check_program(program(waited(A, B), waited(reduced("a", 5), B)))
    assert checked.ends == (RankEnd(RankState.WAITING, 1), RankEnd(None, 0))
    assert checked.clashing == ((MatchedCall(0, A), MatchedCall(1, reduced("a", 5))),)
    assert checked.met == ()


def test_calls_that_differ_are_told_though_a_member_is_missing():
    checked = check_program(program(waited(A), waited(barrier("a")), ()))
    assert found(checked) == [(Code.MISMATCH_OPERATION, (0, 1))]
    assert "not every member of the group has arrived" in str(checked)
    assert checked.clashing == ((MatchedCall(0, A), MatchedCall(1, barrier("a"))),)


def test_who_met():
    first, second = sent("m", 2), received("m", ANY_SOURCE)
    groups = [Group("g", (1, 2))]
    x = barrier("x", "g")
    checked = check_program(program(waited(A, first), waited(A, x), waited(A, second, x), groups=groups))
    assert checked.met == (
        (MatchedCall(0, A), MatchedCall(1, A), MatchedCall(2, A)),
        (MatchedCall(0, first), MatchedCall(2, second)),
        (MatchedCall(1, x), MatchedCall(2, x)),
    )


def test_an_unwaited_call_is_a_hazard_where_its_rank_returns():
    checked = check_program(program((A,), waited(A)))
    assert found(checked) == [(Code.HAZARD_UNWAITED_WORK, (0,))]
    assert checked.findings[0].sites == (Site("a", 1, ""),)


def test_calls_of_other_names_that_meet_are_one_off():
    # Rank 1 leaves "a" out, so its "b" meets "a", and the last "b" of rank 0 is left over.
    a, b = reduced("a"), reduced("b")
    checked = check_program(program(waited(a, b), waited(b)))
    assert found(checked)[0] == (Code.DEADLOCK_MISSING_RANK, (0, 1))
    assert found(checked)[1] == (Code.HAZARD_CALL_SITE, (0, 1))
    assert "b:2" in str(checked)
    same_line = check_program(program(waited(a, b), waited(b)), site_of=lambda issue: Site("line", 1, ""))
    assert found(same_line) == [(Code.DEADLOCK_MISSING_RANK, (1,))]


def test_all_to_all_moves_as_much_as_its_splits_say():
    def exchanged(sent_rows, received_rows):
        shapes = ((sum(sent_rows),), (sum(received_rows),))
        return Issue("x", "all_to_all_single", shapes=shapes, dtype="int8", splits=(sent_rows, received_rows))

    fitting = program(waited(exchanged((1, 2), (1, 3))), waited(exchanged((3, 0), (2, 0))))
    assert found(check_program(fitting)) == []
    misfit = program(waited(exchanged((1, 2), (1, 3))), waited(exchanged((2, 1), (2, 0))))
    assert [code for code, _ in found(check_program(misfit))] == [Code.MISMATCH_SPLITS]
