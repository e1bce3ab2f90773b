"""What gloo does not check, each proved on real gloo processes: the simulator fails the program, and gloo completes it.

Beside each stands a neighbour that gloo does notice, so that the list says no more than is true.
"""

import pickle

import pytest

from ddpsim import Verdict
from ddpsim.scenarios.fuzzing.strategies.programs import BreakKind
from ddpsim.scenarios.jobs.rank_report import RankEnding, RankReport
from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.programs.program import Issue, Wait
from tests.agreement.comparison import compare, simulated
from tests.agreement.gloo import on_gloo
from tests.agreement.labelled import LabelledProgram
from tests.agreement.silent import Silence
from tests.kit.rows import rows
from tests.programs.programs import barrier, program, received, reduced, sent, waited


def moved(operation, shape=(4,), dtype="float32", root=0):
    return Issue("a", operation, shapes=(shape,), dtype=dtype, root=root)


def summed(*shape, root):
    return Issue("a", "reduce", shapes=(shape,), dtype="float32", reduction="SUM", root=root)


def gathered(operation, *shapes):
    return Issue("a", operation, shapes=shapes or ((4,),), dtype="float32")


def scattered(*rows, operation="reduce_scatter_tensor"):
    return Issue("a", operation, shapes=tuple((each,) for each in rows), dtype="float32", reduction="SUM")


def all_to_all(*counts, dtype="float32"):
    return Issue("a", "all_to_all", shapes=tuple((each,) for each in counts), dtype=dtype)


def coalesced(*shapes):
    return Issue("a", "all_reduce_coalesced", shapes=shapes, dtype="float32", reduction="SUM")


def exchanged(sent_rows, received_rows, dtype):
    shapes = ((sum(sent_rows), 3), (sum(received_rows), 3))
    return Issue("a", "all_to_all_single", shapes=shapes, dtype=dtype, splits=(sent_rows, received_rows))


def both(*calls):
    """Each rank makes a call of its own, and waits for it."""
    return program(*map(waited, calls))


NIGHTLY = pytest.mark.tier("nightly")
"""It is the table that is tested on gloo, and it does not change; programs that are drawn look at the rest in CI."""

A = reduced("a")

OF_NOTHING = (
    reduced("a", 0),
    coalesced((0,), (0,)),
    summed(0, root=0),
    scattered(0, 0, 0, operation="reduce_scatter"),
    scattered(0),
    gathered("all_gather", (0,)),
    gathered("all_gather_coalesced", (0,), (0, 2)),
    gathered("all_gather_into_tensor", (0,)),
)

SILENT = {
    Silence.ANOTHER_REDUCTION: {"reduction": both(A, reduced("a", reduction="MAX"))},
    Silence.AS_MANY_BYTES: {
        "dtype-of-the-same-size": both(A, reduced("a", dtype="int32")),
        "shape-of-as-many-elements": both(A, reduced("a", 2, 2)),
        "rows-of-another-dtype": both(exchanged((1, 2), (1, 3), "int8"), exchanged((3, 0), (2, 0), "bool")),
        "message-of-another-dtype": both(sent("m", 1), received("m", 0, dtype="int64", shape=(2,))),
    },
    Silence.ROOM_TO_SPARE: {
        "message-shorter": both(sent("m", 1), received("m", 0, shape=(5,))),
        "message-of-a-shorter-dtype": both(sent("m", 1, dtype="int8"), received("m", 0)),
        "broadcast-shorter": both(moved("broadcast"), moved("broadcast", (5,))),
        "broadcast-shorter-at-its-end": both(*[moved("broadcast")] * 3, moved("broadcast", (5,))),
        "scatter-shorter": both(moved("scatter"), moved("scatter", (5,))),
        "gather-shorter": both(moved("gather", (5,)), moved("gather")),
        "rows-fewer": both(exchanged((1, 1), (1, 2), "int8"), exchanged((1, 1), (1, 1), "int8")),
    },
    Silence.ONE_ALGORITHM: {
        "all_reduce_coalesced": both(A, coalesced((4,)), coalesced((2,), (2,))),
        "reduce_scatter_tensor": both(A, scattered(4)),
        "all_gathers": both(*map(gathered, ("all_gather", "all_gather_coalesced", "all_gather_into_tensor"))),
    },
    Silence.SAME_PART: {
        # In gloo's tree of four ranks, rank 3 has rank 1 above it whether the root is 0 or 1.
        "root-of-broadcast": both(*[moved("broadcast")] * 3, moved("broadcast", root=1)),
        # Only who has reduced a part sends it to the root, and one element is one part, of another rank than 1.
        "root-of-a-small-reduce": both(summed(root=2), summed(root=0), summed(root=2)),
    },
    Silence.NEVER_WAITED_FOR: {
        "barrier-never-waited-for": program((A,), (barrier("a"),)),
        "operation-never-waited-for": program((A,), (moved("broadcast", root=1),)),
        "root-never-waited-for": program((moved("gather", root=1),), (moved("gather", root=0),)),
        "nothing-against-something": program(waited(reduced("a", 0)), (A,)),
    },
    Silence.OWN_PART_DONE: {
        **{
            f"{each}-without-its-last": program((moved(each),), waited(moved(each)), ())
            for each in ("gather", "scatter", "broadcast")
        },
        # The one element goes from rank 2 by rank 1 to rank 0, the root; rank 1 goes on once it has been taken from it.
        "small-reduce-waited-for-by-its-first": program((), (summed(root=0),), waited(summed(root=0))),
        # Only when rank 1 has gone on, it makes the call that rank 0 waits for.
        "gather-without-its-last-and-then-more": program(
            (moved("gather"), *waited(sent("m", 1))), waited(moved("gather"), received("m", 0)), ()
        ),
    },
    Silence.NOTHING_TO_MOVE: {
        **{f"{issue.operation}-of-nothing": program(waited(issue), waited(issue), ()) for issue in OF_NOTHING},
        "different-operations-of-nothing": both(reduced("a", 0), gathered("all_gather", (0,))),
    },
}
PROVED = {name: (silence, each) for silence, programs in SILENT.items() for name, each in programs.items()}

# Rank 2 sends rank 0 a row too few, and rank 1 one too many.
UNEVEN = (
    exchanged((2, 1, 1), (2, 3, 2), "int8"),
    exchanged((3, 2, 2), (1, 2, 1), "int8"),
    exchanged((1, 2, 2), (1, 2, 2), "int8"),
)

TOO_LONG = {
    "message-longer-never-waited-for": (0, program(waited(sent("m", 1, shape=(5,))), (received("m", 0),))),
    "broadcast-longer-never-waited-for": (0, program(waited(moved("broadcast", (5,))), (moved("broadcast"),))),
    "scatter-longer-never-waited-for": (0, program(waited(moved("scatter", (5,))), (moved("scatter"),))),
    "gather-longer-never-waited-for": (1, program((moved("gather"),), waited(moved("gather", (5,))))),
    "rows-more-never-waited-for": (2, program(UNEVEN[:1], UNEVEN[1:2], waited(UNEVEN[2]))),
}
"""And who waits: not the rank that has no room for what it is sent. That one dies of it, if it is not gone before."""

UNCERTAIN = [
    program((gathered("all_gather"),), waited(gathered("all_gather", (5,)))),
    program((all_to_all(4, 4),), waited(all_to_all(5, 5))),
]
"""Here gloo lets who waits return, hang or raise: it depends on when the other is gone."""

NOTICED = {
    "dtype-of-another-size": both(A, reduced("a", dtype="float64")),
    "shape-of-more-elements": both(A, reduced("a", 5)),
    "rows-of-a-larger-dtype": both(exchanged((1, 2), (1, 3), "int8"), exchanged((3, 0), (2, 0), "int32")),
    "message-longer": both(sent("m", 1, shape=(5,)), received("m", 0)),
    "message-longer-waited-for": program((sent("m", 1, shape=(5,)),), waited(received("m", 0))),
    "broadcast-longer-waited-for": program((moved("broadcast", (5,)),), waited(moved("broadcast"))),
    "scatter-longer-waited-for": program((moved("scatter", (5,)),), waited(moved("scatter"))),
    "gather-longer-waited-for": program(waited(moved("gather")), (moved("gather", (5,)),)),
    "rows-more-waited-for": program(UNEVEN[:1], waited(UNEVEN[1]), UNEVEN[2:]),
    "rows-for-itself-fewer": program(waited(exchanged((1, 1), (1, 1), "int8")), (exchanged((1, 1), (1, 2), "int8"),)),
    "all_gather-of-three-longer": program(
        (gathered("all_gather"),), (gathered("all_gather"),), waited(gathered("all_gather", (5,)))
    ),
    "broadcast-longer": both(moved("broadcast", (5,)), moved("broadcast")),
    # In gloo's tree rank 3 receives from rank 1.
    "broadcast-longer-on-its-way": both(moved("broadcast"), moved("broadcast", (5,)), *[moved("broadcast")] * 2),
    "gather-longer": both(moved("gather"), moved("gather", (5,))),
    "root-of-reduce": both(summed(12, root=2), summed(12, root=0), summed(12, root=2)),
    "operation": both(A, moved("broadcast", root=1)),
    "root-of-broadcast-on-two": both(moved("broadcast"), moved("broadcast", root=1)),
    "root-of-gather": both(moved("gather"), moved("gather", root=1)),
    "operation-waited-for-by-one": program(waited(A), (moved("broadcast", root=1),)),
    "gather-waited-for-by-its-root": program(waited(moved("gather")), waited(moved("gather")), ()),
    "all_gather-without-its-last": program(waited(gathered("all_gather")), (gathered("all_gather"),), ()),
    "broadcast-waited-for-by-its-root": program(waited(moved("broadcast")), waited(moved("broadcast")), ()),
    "small-reduce-waited-for-by-its-second": program((), waited(summed(root=0)), (summed(root=0),)),
    "gather-without-its-last-and-then-a-barrier": program(
        (moved("gather"), barrier("b")), waited(moved("gather"), barrier("b")), ()
    ),
    **{
        f"{issue.operation}-of-nothing": program(waited(issue), waited(issue), ())
        for issue in (
            *(moved(each, (0,)) for each in ("broadcast", "gather", "scatter")),
            all_to_all(0, 0, 0, dtype="int8"),
            exchanged((0, 0, 0), (0, 0, 0), "int8"),
        )
    },
    "message-of-nothing": program(waited(sent("m", 1, shape=(0,))), ()),
    "coalesced-of-nothing-and-something": program(waited(coalesced((0,), (2,))), ()),
    "nothing-against-something-waited-for": both(reduced("a", 0), A),
}

BOOLS = both(*[reduced("a", dtype="bool")] * 3)
NOTHING_FROM_ANY = both(sent("m", 1, shape=(0,)), received("m", ANY_SOURCE, shape=(0,)))
WAITED_TWICE = program((*waited(sent("m", 1)), Wait("m")), (*waited(received("m", 0)), Wait("m")))


@pytest.fixture(scope="module")
def reported(server):
    """What became of each rank of every program here."""
    told = [each for _, each in (*PROVED.values(), *TOO_LONG.values())]
    programs = [BOOLS, NOTHING_FROM_ANY, WAITED_TWICE, *told, *NOTICED.values()]
    return dict(zip(programs, on_gloo((each, 0.5) for each in programs), strict=True))


def compared(broken, reports):
    return compare(LabelledProgram(0, broken, BreakKind.OPERATION), simulated(broken), reports)


@NIGHTLY
@pytest.mark.parametrize(("silence", "broken"), PROVED.values(), ids=PROVED)
def test_gloo_completes_it(silence, broken, reported):
    comparison = compared(broken, reported[broken])
    assert set(comparison.endings) == {RankEnding.RETURNED}
    assert simulated(broken).verdict is Verdict.FAIL
    assert (comparison.silence, comparison.disagreement) == (silence, "")


@NIGHTLY
@pytest.mark.parametrize(("who", "broken"), TOO_LONG.values(), ids=TOO_LONG)
def test_gloo_completes_it_for_those_who_wait(who, broken, reported):
    comparison = compared(broken, reported[broken])
    assert comparison.endings[who] is RankEnding.RETURNED
    assert comparison.disagreement == ""


@rows("broken", [*(broken for _, broken in TOO_LONG.values()), *UNCERTAIN])
def test_it_is_excused_when_who_gets_too_much_is_gone_before(broken):
    comparison = compared(broken, [RankReport(0, RankEnding.RETURNED, 0.0)] * broken.world_size)
    assert (comparison.silence, comparison.disagreement) == (Silence.NEVER_WAITED_FOR, "")


def test_every_silence_is_proved():
    assert set(SILENT) == set(Silence)


@NIGHTLY
@pytest.mark.parametrize("broken", NOTICED.values(), ids=NOTICED)
def test_gloo_does_not_complete_it(broken, reported):
    comparison = compared(broken, reported[broken])
    assert set(comparison.endings) != {RankEnding.RETURNED}
    assert (comparison.silence, comparison.disagreement) == (None, "")


@rows("broken", NOTICED.values(), ids=NOTICED)
def test_it_would_be_a_disagreement_had_gloo_completed_it(broken):
    comparison = compared(broken, [RankReport(0, RankEnding.RETURNED, 0.0)] * broken.world_size)
    codes = ", ".join(comparison.found)
    assert comparison.silence is None
    assert comparison.disagreement == f"the simulator finds {codes}, but on gloo every rank returned"


@NIGHTLY
def test_another_reduction_gives_a_mixture_of_both(reported):
    mixed = pickle.loads(reported[PROVED["reduction"][1]][0].value)
    for reduction in ("SUM", "MAX"):
        repaired = simulated(program(*[waited(reduced("a", reduction=reduction))] * 2)).returns[0]
        assert mixed != repaired


@NIGHTLY
def test_gloo_adds_bools_as_bytes(reported):
    contents = [pickle.loads(report.value)["a"][0].content for report in reported[BOOLS]]
    assert max(contents[0]) > 1
    comparison = compared(BOOLS, reported[BOOLS])
    assert (comparison.found, comparison.disagreement) == ((), "")


@NIGHTLY
def test_gloo_waits_for_good_when_it_waits_twice_for_a_message(reported):
    assert {report.ending for report in reported[WAITED_TWICE]} == {RankEnding.HUNG}
    assert simulated(WAITED_TWICE).verdict is Verdict.PASS


@NIGHTLY
def test_gloo_refuses_to_receive_nothing_from_any_source(reported):
    refused = reported[NOTHING_FROM_ANY][1]
    assert refused.ending is RankEnding.RAISED
    assert "offset < this->size. 0 vs 0" in refused.error.line
