"""Races and initials of small runs, worked out by hand. In the words of the published algorithm."""

from types import SimpleNamespace

from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.exploration.happens_before import HappensBefore, initial_ranks
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
