"""What gloo does not check, each proved on real gloo processes: the simulator fails the program, and gloo completes it.

Beside each stands a neighbour that gloo does notice, so that the list says no more than is true.
"""

import pytest

from scenarios.agreement.breaking import Kind, LabelledProgram
from scenarios.agreement.comparison import compare, simulated
from scenarios.agreement.interpreter import run_steps
from scenarios.agreement.outcome import Ending
from scenarios.agreement.pool import GlooPool, Job
from scenarios.agreement.silent import Silence
from simulator import Code, Verdict
from simulator.programs.program import Issue
from tests.programs.programs import barrier, program, received, reduced, sent, waited


def moved(operation, shape=(4,), dtype="float32", root=0):
    return Issue("a", operation, shapes=(shape,), dtype=dtype, root=root)


def summed(shape, root):
    return Issue("a", "reduce", shapes=(shape,), dtype="float32", reduction="SUM", root=root)


def gathered(operation):
    return Issue("a", operation, shapes=((4,),), dtype="float32")


def scattered(rows):
    return Issue("a", "reduce_scatter_tensor", shapes=((rows,),), dtype="float32", reduction="SUM")


def coalesced(*shapes):
    return Issue("a", "all_reduce_coalesced", shapes=shapes, dtype="float32", reduction="SUM")


def exchanged(sent_rows, received_rows, dtype):
    shapes = ((sum(sent_rows), 3), (sum(received_rows), 3))
    return Issue("a", "all_to_all_single", shapes=shapes, dtype=dtype, splits=(sent_rows, received_rows))


A = reduced("a")

SILENT = {
    "reduction": (Silence.ANOTHER_REDUCTION, program(waited(A), waited(reduced("a", reduction="MAX")))),
    "dtype-of-the-same-size": (Silence.AS_MANY_BYTES, program(waited(A), waited(reduced("a", dtype="int32")))),
    "shape-of-as-many-elements": (Silence.AS_MANY_BYTES, program(waited(A), waited(reduced("a", 2, 2)))),
    "rows-of-another-dtype": (
        Silence.AS_MANY_BYTES,
        program(waited(exchanged((1, 2), (1, 3), "int8")), waited(exchanged((3, 0), (2, 0), "bool"))),
    ),
    "message-of-another-dtype": (
        Silence.AS_MANY_BYTES,
        program(waited(sent("m", 1)), waited(received("m", 0, dtype="int64", shape=(2,)))),
    ),
    "message-shorter": (
        Silence.ROOM_TO_SPARE,
        program(waited(sent("m", 1)), waited(received("m", 0, shape=(5,)))),
    ),
    "message-of-a-shorter-dtype": (
        Silence.ROOM_TO_SPARE,
        program(waited(sent("m", 1, dtype="int8")), waited(received("m", 0))),
    ),
    "broadcast-shorter": (
        Silence.ROOM_TO_SPARE,
        program(waited(moved("broadcast")), waited(moved("broadcast", (5,)))),
    ),
    "scatter-shorter": (Silence.ROOM_TO_SPARE, program(waited(moved("scatter")), waited(moved("scatter", (5,))))),
    "gather-shorter": (Silence.ROOM_TO_SPARE, program(waited(moved("gather", (5,))), waited(moved("gather")))),
    "all_reduce_coalesced": (
        Silence.ONE_ALGORITHM,
        program(waited(A), waited(coalesced((4,))), waited(coalesced((2,), (2,)))),
    ),
    "reduce_scatter_tensor": (Silence.ONE_ALGORITHM, program(waited(A), waited(scattered(4)))),
    "all_gathers": (
        Silence.ONE_ALGORITHM,
        program(
            waited(gathered("all_gather")),
            waited(gathered("all_gather_coalesced")),
            waited(gathered("all_gather_into_tensor")),
        ),
    ),
    # In gloo's tree of four ranks, rank 3 has rank 1 above it whether the root is 0 or 1.
    "root-of-broadcast": (
        Silence.SAME_PART,
        program(*[waited(moved("broadcast"))] * 3, waited(moved("broadcast", root=1))),
    ),
    # Only who has reduced a part sends it to the root, and one element is one part, of another rank than 1.
    "root-of-a-small-reduce": (
        Silence.SAME_PART,
        program(waited(summed((), 2)), waited(summed((), 0)), waited(summed((), 2))),
    ),
    "barrier-never-waited-for": (Silence.NEVER_WAITED_FOR, program((A,), (barrier("a"),))),
    "operation-never-waited-for": (
        Silence.NEVER_WAITED_FOR,
        program((A,), (moved("broadcast", root=1),)),
    ),
    "root-never-waited-for": (
        Silence.NEVER_WAITED_FOR,
        program((moved("gather", root=1),), (moved("gather", root=0),)),
    ),
    "gather-without-its-last": (
        Silence.OWN_PART_DONE,
        program((moved("gather"),), waited(moved("gather")), ()),
    ),
    "scatter-without-its-last": (
        Silence.OWN_PART_DONE,
        program((moved("scatter"),), waited(moved("scatter")), ()),
    ),
}

NOTICED = {
    "dtype-of-another-size": program(waited(A), waited(reduced("a", dtype="float64"))),
    "shape-of-more-elements": program(waited(A), waited(reduced("a", 5))),
    "rows-of-a-larger-dtype": program(
        waited(exchanged((1, 2), (1, 3), "int8")), waited(exchanged((3, 0), (2, 0), "int32"))
    ),
    "message-longer": program(waited(sent("m", 1, shape=(5,))), waited(received("m", 0))),
    "broadcast-longer": program(waited(moved("broadcast", (5,))), waited(moved("broadcast"))),
    "gather-longer": program(waited(moved("gather")), waited(moved("gather", (5,)))),
    "root-of-reduce": program(waited(summed((12,), 2)), waited(summed((12,), 0)), waited(summed((12,), 2))),
    "operation": program(waited(A), waited(moved("broadcast", root=1))),
    "root-of-broadcast-on-two": program(waited(moved("broadcast")), waited(moved("broadcast", root=1))),
    "root-of-gather": program(waited(moved("gather")), waited(moved("gather", root=1))),
    "operation-waited-for-by-one": program(waited(A), (moved("broadcast", root=1),)),
    "gather-waited-for-by-its-root": program(waited(moved("gather")), waited(moved("gather")), ()),
    "all_gather-without-its-last": program(waited(gathered("all_gather")), (gathered("all_gather"),), ()),
}

BOOLS = program(
    waited(reduced("a", dtype="bool")), waited(reduced("a", dtype="bool")), waited(reduced("a", dtype="bool"))
)


@pytest.fixture(scope="module")
def on_gloo():
    """What became of each rank of every program here."""
    programs = [BOOLS, *(each for _, each in SILENT.values()), *NOTICED.values()]
    with GlooPool() as pool:
        jobs = [Job(run_steps, each.world_size, (each,), still_seconds=0.5) for each in programs]
        return dict(zip(programs, [outcomes for _, outcomes in pool.run(jobs)], strict=True))


def compared(broken, outcomes):
    return compare(LabelledProgram(0, broken, Kind.OPERATION), simulated(broken), outcomes)


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_gloo_completes_it(case, on_gloo):
    silence, broken = case
    comparison = compared(broken, on_gloo[broken])
    assert set(comparison.endings) == {Ending.RETURNED}
    assert simulated(broken).verdict is Verdict.FAIL
    assert (comparison.silence, comparison.disagreement) == (silence, "")


def test_every_silence_is_proved():
    assert {silence for silence, _ in SILENT.values()} == set(Silence)


@pytest.mark.parametrize("broken", NOTICED.values(), ids=NOTICED)
def test_gloo_does_not_complete_it(broken, on_gloo):
    comparison = compared(broken, on_gloo[broken])
    assert set(comparison.endings) != {Ending.RETURNED}
    assert (comparison.silence, comparison.disagreement) == (None, "")


def test_another_reduction_gives_a_mixture_of_both(on_gloo):
    mixed = on_gloo[SILENT["reduction"][1]][0].value
    for reduction in ("SUM", "MAX"):
        repaired = simulated(program(*[waited(reduced("a", reduction=reduction))] * 2)).returns[0]
        assert mixed != repaired


def test_gloo_adds_bools_as_bytes(on_gloo):
    contents = [outcome.value["a"][0].content for outcome in on_gloo[BOOLS]]
    assert max(contents[0]) > 1
    comparison = compared(BOOLS, on_gloo[BOOLS])
    assert (comparison.found, comparison.disagreement) == ((), "")


def test_a_completed_program_is_a_disagreement_where_nothing_explains_it(on_gloo):
    broken = NOTICED["operation"]
    completed = on_gloo[SILENT["reduction"][1]]
    comparison = compared(broken, completed)
    assert comparison.found == (Code.MISMATCH_OPERATION,)
    assert comparison.disagreement == "the simulator finds mismatch.operation, but on gloo every rank returned"
