"""A program's calls beside those of a job's records."""

from ddpsim import simulate
from ddpsim.scenarios.records.own_program import compare_with_records
from ddpsim.simulator.records import flight_recorder
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.run_log import make_run_log
from tests.records.dumps import call, job

SIZE = 3
DONE = call(size=(2,))


def beside(program, calls, **changes):
    result = simulate(program, SIZE, check=None)
    dumps = job(calls, {"1": (0, 2)})
    for rank, each in changes.items():
        each(dumps[int(rank.removeprefix("rank"))])
    records = [flight_recorder.read_dump(each, f"rank_{rank}") for rank, each in dumps.items()]
    return compare_with_records(combine_records(records), make_run_log(result.trace, SIZE))


def reducing(times):
    def program(rank):
        import torch
        import torch.distributed as dist

        for _ in range(times[rank]):
            dist.all_reduce(torch.ones(2))

    return program


def in_a_pair(rank):
    import torch
    import torch.distributed as dist

    pair = dist.new_group([0, 2])
    dist.all_reduce(torch.ones(2))
    if rank != 1:
        dist.all_reduce(torch.ones(2), group=pair)


def test_the_same_calls_are_counted():
    comparison = beside(reducing([3, 2, 3]), [[DONE] * 3, [DONE] * 2, [DONE] * 3])
    assert (comparison.alike, comparison.differences) == (8, ())


def test_groups_are_known_by_the_order_in_which_they_were_used():
    pair = call(size=(2,), group="1")
    assert beside(in_a_pair, [[DONE, pair], [DONE], [DONE, pair]]).differences == ()
    (first,) = beside(in_a_pair, [[DONE, pair], [DONE], [DONE, DONE]]).differences
    assert (first.rank, first.alike, first.recorded.group) == (2, 1, "default")


def test_the_first_call_that_differs_is_told_of_each_rank():
    odd = [DONE, call("broadcast", (2,), line=30), DONE]
    first, *others = beside(reducing([3, 3, 3]), [[DONE] * 3, odd, [DONE] * 2]).differences
    assert (first.rank, first.alike, str(first.recorded.site)) == (1, 1, "train.py:30")
    assert (first.recorded.operation, first.made.operation) == ("broadcast", "all_reduce")
    assert [(each.rank, each.alike, each.recorded, each.made.sequence) for each in others] == [(2, 2, None, 2)]


def test_a_program_that_makes_fewer_calls_differs_where_it_ends():
    (first,) = beside(reducing([2, 2, 2]), [[DONE] * 2, [DONE] * 2, [DONE] * 3]).differences
    assert (first.rank, first.alike, first.recorded.sequence, first.made) == (2, 2, 2, None)


def test_a_ring_that_lost_its_beginning_is_compared_from_there_on():
    def lose(dump):
        del dump["entries"][:2]

    assert beside(reducing([4, 4, 4]), [[DONE] * 4] * 3, rank1=lose).differences == ()


def with_a_message(rank):
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(2))
    if rank < 2:
        (dist.recv if rank else dist.send)(torch.ones(2), 1 - rank)
    dist.all_reduce(torch.ones(2))


def test_messages_are_not_compared_with_the_records_of_gloo_which_have_none():
    def of_gloo(dump):
        for number, entry in enumerate(dump["entries"]):
            # gloo counts all operations, messages, too
            entry |= {"profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": True, "op_id": 2 * number}

    changes = {f"rank{rank}": of_gloo for rank in range(SIZE)}
    assert beside(with_a_message, [[DONE] * 2] * SIZE, **changes).differences == ()
    assert [each.rank for each in beside(with_a_message, [[DONE] * 2] * SIZE).differences] == [0, 1]  # NCCL's have them
