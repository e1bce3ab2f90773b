"""Races and initials of small runs, worked out by hand; who sleeps on. In the words of the published algorithm."""

from types import SimpleNamespace

from ddpsim.simulator.accesses import ALL_KEYS, Access, AccessMode
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint
from ddpsim.simulator.diagnosis.nondeterminism import OfferedChoice
from ddpsim.simulator.exploration.happens_before import HappensBefore, initial_ranks
from ddpsim.simulator.exploration.nodes import ChoiceNode, ExploredStep, may_run, sleep_after_access
from tests.kit.rows import rows

MODES = {"r": AccessMode.READ, "w": AccessMode.WRITE, "m": AccessMode.MISS}


def order_of(text, world_size=4):
    """`0wx` is a step of rank 0 that writes x; its node is its place in the text."""
    order = HappensBefore(world_size)
    for node, (rank, mode, key) in enumerate(text.split()):
        order.begin_step(int(rank), node)
        order.accessed(int(rank), Access(("key", key), MODES[mode]))
    return order


def races_of(order):
    return {(race.earlier.position, race.later.position): initial_ranks(race, order.steps) for race in order.races}


@rows(
    ("run", "races"),
    [
        ("0wx 1wy", {}),
        ("0rx 1rx", {}),
        ("0wx 0rx", {}),
        ("0wx 1rx", {(0, 1): [1]}),
        # The read by 2 comes after both writes; with the first it is in no race, as the second lies between.
        ("0wx 1wx 2rx", {(0, 1): [1], (1, 2): [2]}),
        # v = 2ry 1wx: both are independent of 0rx, so either may go first.
        ("0rx 2ry 1wx", {(0, 2): [2, 1]}),
        # v = 2rx 1wx, and the write depends on the other read: only 2 may go first.
        ("0rx 2rx 1wx", {(1, 2): [1], (0, 2): [2]}),
        # v = 2wz 1rz 1wx: 1 needs what 2 did. That 3 came after 0 leaves it out.
        (
            "0wx 3rx 2wz 1rz 1wx",
            {
                (0, 1): [3],
                (2, 3): [1],
                (1, 4): [2],
            },
        ),
        # The paper's example of a read and two writers that read before (POPL 2014, figure 2).
        ("0wx 1ry 1rx 2rz 2rx", {(0, 2): [1], (0, 4): [1, 2]}),
        # Who missed a key is in a race with who took it away, and not with who brings it.
        ("0wx 1mx", {(0, 1): [1]}),
        ("1mx 0wx", {}),
        ("1mx 0rx", {}),
    ],
)
def test_races_and_initials(run, races):
    assert races_of(order_of(run)) == races


def test_all_keys_are_touched_by_each():
    order = order_of("0wx 1wy")
    order.begin_step(2, 2)
    order.accessed(2, Access(ALL_KEYS, AccessMode.READ))
    assert races_of(order) == {(1, 2): [2], (0, 2): [1]}  # before the first write it comes only after the second one


def test_a_rank_that_waited_is_in_no_race_with_who_woke_it():
    order = order_of("0wx")
    order.woke_task(0, 1)
    order.begin_step(1, 1)
    order.accessed(1, Access(("key", "x"), AccessMode.READ))
    assert races_of(order) == {}


def test_a_key_that_is_needed_may_have_been_there_before():
    """Rank 1 sets x, deletes it and sets it again; rank 0, which gets it then, could have got it before the delete."""
    order = HappensBefore(2)
    for node in range(3):
        order.begin_step(1, node)
        order.accessed(1, Access(("key", "x"), AccessMode.WRITE))
        if node != 1:
            order.created_key(1, ("key", "x"))
        if node == 0:
            order.woke_task(1, 0)
    order.begin_step(0, 3)
    order.needed_key(0, ("key", "x"))
    order.accessed(0, Access(("key", "x"), AccessMode.READ))
    assert races_of(order) == {(1, 3): [0]}


@rows("is_for_good", [True, False])
@rows("is_removed", [True, False])
def test_a_rank_that_is_let_go_might_have_come_too_late_to_wait(is_for_good, is_removed):
    """Rank 0 waits for x, 1 sets it, 2 deletes it: had rank 0 come last, it would wait. 1 goes before it, for that."""
    order = order_of("0mx 1wx")
    order.begin_step(2, 2)
    order.began_to_wait(0, is_for_good=is_for_good)
    order.begin_step(0, None)
    order.released_rank(1, 0, [("key", "x")])
    if is_removed:
        order.removed_key(("key", "x"))
    assert races_of(order) == ({(0, 1): [1]} if is_for_good and is_removed else {})


def test_who_learns_that_a_call_is_complete_comes_after_all_who_issued_it():
    order = HappensBefore(3)
    for rank in range(2):
        order.begin_step(rank, rank)
        order.accessed(rank, Access(("call", "default", 0), AccessMode.CONTRIBUTE))
        order.issued_call(rank, (rank, 1), SimpleNamespace(peer=None))
    order.completed_calls([(0, 1), (1, 1)])
    order.saw_completion(0, (0, 1))
    order.begin_step(0, 2)
    order.accessed(0, Access(("call", "default", 0), AccessMode.READ))
    assert races_of(order) == {}
    order.begin_step(2, 3)
    order.accessed(2, Access(("call", "default", 0), AccessMode.READ))
    assert races_of(order) == {(1, 3): [2], (0, 3): [1]}


def test_a_message_that_came_later_could_have_been_taken():
    order = HappensBefore(3)
    channel = ("channel", "default", 0, 0)
    for node, (rank, mode, candidates) in enumerate(
        [(1, AccessMode.SEND, ()), (0, AccessMode.RECEIVE, (1,)), (2, AccessMode.SEND, ())]
    ):
        order.begin_step(rank, node)
        order.accessed(rank, Access(channel, mode), candidates=candidates)
    assert races_of(order) == {(1, 2): [2]}


# --- who sleeps on, and who is tried ----------------------------------------------------------------------------------

READ, WRITE = Access(("key", "x"), AccessMode.READ), Access(("key", "x"), AccessMode.WRITE)


def test_a_step_wakes_who_depends_on_it():
    sleep = {
        1: ExploredStep((READ,)),
        2: ExploredStep((WRITE,)),
        3: ExploredStep((Access(("key", "x"), AccessMode.MISS),)),
        4: ExploredStep(()),
    }
    assert set(sleep_after_access(sleep, 0, READ)) == {1, 3, 4}
    assert set(sleep_after_access(sleep, 0, Access(("key", "y"), AccessMode.WRITE))) == {1, 2, 3, 4}


def test_a_message_lets_a_receive_run_for_it_alone():
    channel = ("channel", "default", 0, 0)
    sleep = {0: ExploredStep((Access(channel, AccessMode.RECEIVE),), frozenset({1}))}
    assert not may_run(sleep, 0)
    woken = sleep_after_access(sleep, 2, Access(channel, AccessMode.SEND))
    assert may_run(woken, 0)
    assert woken[0].sources == {1}


def node(*, todo, sleep=()):
    point = ChoicePoint(ChoiceKind.RANK, 1, 0)
    return ChoiceNode(
        OfferedChoice(point, (0, 1, 2)), (0, 1, 2), {rank: ExploredStep(()) for rank in sleep}, list(todo)
    )


@rows(
    ("todo", "sleep", "found", "then"),
    [
        ((0,), (), [1], [0, 1]),
        ((0,), (), [2, 1], [0, 2]),  # one is enough
        ((0, 1), (), [2, 1], [0, 1]),  # and one is there
        ((0,), (1,), [1, 2], [0]),  # explored elsewhere
        ((0,), (), [3], [0, 1, 2]),  # nobody of them is open: all are tried
    ],
)
def test_one_of_the_initials_is_tried(todo, sleep, found, then):
    one = node(todo=todo, sleep=sleep)
    one.add_one_of(found)
    assert one.todo == then


def test_what_was_tried_sleeps():
    one = node(todo=[0, 1], sleep=[2])
    one.accesses[WRITE] = None
    assert one.advance_to_next_option()
    assert one.chosen_option == 1
    assert one.sleep == {0: ExploredStep((WRITE,)), 2: ExploredStep(())}
    assert not one.advance_to_next_option()
