"""Nobody who could run waits for ever: loops that wait for another rank end, however they look, and replay the same."""

import torch.distributed as dist

from ddpsim import Budget, Verdict, explore, replay, simulate
from ddpsim.simulator.kernel.scheduler import TURN_STEPS
from tests.exploration.programs import store
from tests.kit.rows import rows

FEW = Budget(steps=20 * TURN_STEPS)


def adds_nothing(rank):
    """As torchelastic waits for its workers."""
    store().add("n", 1)
    while store().add("n", 0) < 2:
        pass


def writes_and_reads(rank):
    turns = 0
    store().add("n", 1)
    while store().add("n", 0) < 2:
        store().set(f"beat {rank}", str(turns := turns + 1))


def swaps(rank):
    while store().compare_set("lock", "", f"{rank}") != f"{rank}".encode():
        pass
    dist.barrier() if rank > 1 else store().delete_key("lock")


def sets_the_same(rank):
    while rank == 0 and not store().check(["done"]):
        store().set("alive", "yes")
    store().set("done", "yes")


def gets(rank):
    if rank == 1:
        store().set("n", "1")
    while store().get("n") != b"2":
        if rank == 0 and store().check(["go"]):
            store().set("n", "2")
        store().set("go", "now")


def counts_keys(rank):
    store().set(f"key {rank}", "")
    while store().num_keys() < 2:
        pass


def pops(rank):
    while rank == 0:
        try:
            return store().queue_pop("items", block=False)
        except dist.QueueEmptyError:
            pass
    return store().queue_push("items", "one")


LOOPS = [adds_nothing, writes_and_reads, swaps, sets_the_same, gets, counts_keys, pops]


@rows("policy", ["round_robin", "random"])
@rows("program", LOOPS)
def test_loops_that_wait_for_another_rank_end(program, policy):
    result = simulate(program, 2, policy=policy, budget=FEW)
    assert result.verdict is Verdict.PASS
    assert replay(program, 2, str(result.schedule)).trace.digest() == result.trace.digest()


def test_who_has_run_for_long_lets_the_next_one_go_first():
    """None of what rank 0 does is a look: its turn is over after so many steps."""

    def writes(rank):
        for number in range(2 * TURN_STEPS if rank == 0 else 1):
            store().set(f"{rank}", str(number))

    result = simulate(writes, 2)
    ranks = [event.rank for event in result.trace]
    assert ranks[: TURN_STEPS - 1] == [0] * (TURN_STEPS - 1)
    assert ranks.index(1) < TURN_STEPS + 2
    assert str(result.schedule).startswith("s1:0:")


@rows("program", [adds_nothing, swaps, counts_keys, sets_the_same, pops])
def test_loops_that_only_look_are_covered(program):
    exploration = explore(program, 2, budget=Budget(executions=200), keep_going=True)
    assert exploration.complete
    assert exploration.verdict is Verdict.PASS
