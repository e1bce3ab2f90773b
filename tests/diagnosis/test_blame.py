"""Deadlocks and mismatches of groups and messages: who is blamed, and by which fact. Each has a twin that is clean."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ddpsim import Verdict, simulate
from tests.kit.rows import rows

from .ending import end

ONE = torch.ones(1)


def made_on_first_use(rank, *, users):
    if rank in users:
        dist.new_group()
    dist.all_reduce(ONE.clone())
    if rank not in users:
        dist.new_group()


def made_last(rank, *, users):
    dist.all_reduce(ONE.clone())
    if rank in users:
        dist.new_group()


def mesh_dimension(rank, *, odd, sizes=(2, 2)):
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    dist.all_reduce(ONE.clone(), group=mesh.get_group("tp" if rank in odd else "dp"))
    dist.barrier()


def row_or_column(rank, *, odd):
    rows_of, columns = (
        [dist.new_group([*part]) for part in parts] for parts in (((0, 1), (2, 3), (4, 5)), ((0, 2, 4), (1, 3, 5)))
    )
    for _ in range(2):
        dist.broadcast(ONE.clone(), group_src=0, group=columns[rank % 2] if rank in odd else rows_of[rank // 2])
    dist.barrier()


def group_of_others(rank, *, odd, gathers=False):
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    pair = pairs[(rank // 2 - (rank in odd)) % len(pairs)]
    if gathers:
        dist.all_gather_object([None, None], rank, group=pair)
    else:
        dist.all_reduce(ONE.clone(), group=pair)
    dist.barrier()


def local_names(rank, *, made_before):
    if rank in made_before:
        dist.new_group([rank], use_local_synchronization=True)
    if rank < 2:
        dist.all_reduce(ONE.clone(), group=dist.new_group([0, 1], use_local_synchronization=True))


def any_and_named(rank, *, source, receiver=0):
    if rank == receiver:
        work = dist.irecv(ONE.clone(), src=source)
        time.sleep(0.5)  # on real gloo, too, the message of rank 2 is there before the next receive
        dist.recv(ONE.clone(), src=2)
        work.wait()
    elif rank < 3:
        time.sleep(rank < 2)
        dist.send(ONE, receiver)


def crossed_tags(rank, *, tags):
    for tag in (1, 2) if rank == 0 else tags:
        (dist.send if rank == 0 else dist.recv)(ONE.clone(), 1 - rank, tag=tag)


def pipeline(rank, *, odd, batches, size=4):
    for _ in range(batches if rank == odd else 4):
        if rank > 0:
            dist.recv(ONE.clone(), rank - 1)
        if rank < size - 1:
            dist.send(ONE, rank + 1)
    dist.all_reduce(ONE.clone())


def own_part(rank, *, parts, makes_all, late):
    time.sleep(late.index(rank) + 1 if rank in late else 0)
    for part in parts:
        if makes_all or rank in part:
            dist.new_group(part)
    time.sleep(1)  # real ranks that have made their group stay until the late one comes


def each_table(rank, *, order, sizes=(1, 2, 3), grows=()):
    tables = {f"table_{size}": torch.ones(size, dtype=torch.int64 if size in grows else None) for size in sizes}
    for name in order(rank, list(tables)):
        dist.all_reduce(tables[name])


def one_side(rank, *, receives):
    if rank == 0:
        dist.send(ONE, 1)
        if receives:
            dist.recv(ONE.clone(), 1)
    else:
        dist.recv(ONE.clone(), 0)


def returns_early(rank, *, who):
    dist.all_reduce(ONE.clone())
    if rank in who:
        dist.all_gather([ONE.clone() for _ in range(4)], ONE)
    dist.all_reduce(ONE.clone())


def reversed_on(odd):
    return lambda rank, names: names[::-1] if rank in odd else names


def as_they_are(rank, names):
    return names


CASES = [
    (
        each_table,
        2,
        {"order": reversed_on({1})},
        {"order": as_they_are},
        (0, 1),
        "tables['table_1'] on rank 0 against tables['table_3'] on",
    ),
    (
        each_table,
        3,
        {"order": reversed_on({1})},
        {"order": as_they_are},
        (1,),
        "tables['table_1'] on ranks 0, 2 against tables['table_3'] on",
    ),
    (
        each_table,
        2,
        {"order": reversed_on({0}), "sizes": (4, 5), "grows": {5}},
        {"order": as_they_are, "grows": {2}},
        (0, 1),
        "tables['table_5'] on rank 0 against tables['table_4'] on rank 1; they go through",
    ),
    (
        own_part,
        4,
        {"parts": ([0, 3], [1, 2]), "makes_all": False, "late": (1, 2)},
        {"parts": ([0, 3], [1, 2]), "makes_all": True, "late": (1, 2)},
        (0, 1, 3),
        "some ranks gave other members",
    ),
    (
        own_part,
        5,
        {"parts": ([0, 1, 2], [3, 4]), "makes_all": False, "late": (3, 4)},
        {"parts": ([0, 1, 2], [3, 4]), "makes_all": True, "late": (3, 4)},
        (3,),
        "rank 3 gave other members",
    ),
    (
        made_on_first_use,
        3,
        {"users": {1}},
        {"users": {0, 1, 2}},
        (1,),
        "rank 1 made new_group #0, and the others did not",
    ),
    (made_on_first_use, 4, {"users": {0, 3}}, {"users": ()}, (1, 2), "ranks 1, 2 did not take part"),
    (made_on_first_use, 5, {"users": {2, 3}}, {"users": ()}, (2, 3), "ranks 2, 3 made new_group #0, and the others"),
    (made_last, 4, {"users": {2}}, {"users": ()}, (2,), "rank 2 made new_group #0, and the others did not"),
    (made_last, 4, {"users": {0, 1, 2}}, {"users": ()}, (3,), "rank 3 did not take part"),
    (mesh_dimension, 4, {"odd": {2, 3}}, {"odd": {}}, (0, 1, 2, 3), '"dp" on ranks 0, 1 against "tp" on ranks 2, 3'),
    (mesh_dimension, 6, {"odd": {5}, "sizes": (2, 3)}, {"odd": {}, "sizes": (2, 3)}, (5,), 'against "tp" on rank 5'),
    (row_or_column, 6, {"odd": {5}}, {"odd": {}}, (5,), "the same call of test_blame.py:"),
    (group_of_others, 6, {"odd": {5}}, {"odd": ()}, (5,), "rank 5 came to all_reduce at test_blame.py:"),
    (
        group_of_others,
        4,
        {"odd": {1}, "gathers": True},
        {"odd": (), "gathers": True},
        (1,),
        "rank 1 came to all_gather_object",
    ),
    (group_of_others, 8, {"odd": {0, 3}}, {"odd": ()}, (0,), "rank 0 came to all_reduce at test_blame.py:"),
    (local_names, 3, {"made_before": {1}}, {"made_before": {0, 1, 2}}, (0, 1), "ranks 0, 1 create a group of the same"),
    (any_and_named, 3, {"source": None}, {"source": 1}, (0,), "a receive of rank 0 from any source, at test_blame.py:"),
    (
        any_and_named,
        4,
        {"source": None, "receiver": 1},
        {"source": 0, "receiver": 1},
        (1,),
        "took the message for recv #1",
    ),
    (crossed_tags, 2, {"tags": (2, 1)}, {"tags": (1, 2)}, (0, 1), "the send of rank 0 has tag 1 in group "),
    (pipeline, 4, {"odd": 1, "batches": 3}, {"odd": 1, "batches": 4}, (1,), "and rank 1 reached recv at "),
    (pipeline, 4, {"odd": 3, "batches": 3}, {"odd": 3, "batches": 4}, (3,), "and rank 3 reached recv at "),
    (pipeline, 4, {"odd": 2, "batches": 5}, {"odd": 2, "batches": 4}, (2,), "rank 2 reached recv at "),
    (
        pipeline,
        2,
        {"odd": 1, "batches": 3, "size": 2},
        {"odd": 0, "batches": 4, "size": 2},
        (0, 1),
        "rank 0 reached send",
    ),
    (
        one_side,
        2,
        {"receives": True},
        {"receives": False},
        (1,),
        "rank 1 returned without the matching send, or the other",
    ),
    (returns_early, 4, {"who": {0}}, {"who": range(4)}, (0,), "and either side may be wrong"),
]


@pytest.mark.filterwarnings("ignore:Running .* does not belong to the given group")
@rows(("program", "size", "bad", "good", "culprits", "words"), CASES)
def test_who_is_blamed_and_why(program, size, bad, good, culprits, words):
    finding, *_ = simulate(lambda rank: program(rank, **bad), size).findings
    assert (finding.ranks, words in end(finding)[0]) == (culprits, True), finding.text
    assert simulate(lambda rank: program(rank, **good), size).verdict is Verdict.PASS


def test_one_rank_that_waits_for_a_message_of_one_that_returned_is_a_tie():
    (finding,) = simulate(lambda rank: one_side(rank, receives=True), 2).findings
    assert "a tie, one rank against one: rank 0 arrived, rank 1 did not; either may be wrong" in finding.text
