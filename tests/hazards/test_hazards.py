"""Hazards: what passes here and may fail elsewhere; and programs that have none."""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ddpsim import Verdict, simulate
from ddpsim.simulator.hazards.hazard_watch import _CallInFlight, _CallsOfRank
from ddpsim.simulator.transport.payload import Payload
from tests.kit.results import codes
from tests.kit.rows import rows
from tests.kit.small_training import backward, sgd, train, wrapped


def hazards(program, world_size=2, **options):
    result = simulate(program, world_size, **options)
    assert result.verdict is Verdict.PASS, str(result)
    return codes(result), result


def test_unwaited_work():
    def program(rank):
        for _ in range(2):
            work = dist.all_reduce(torch.ones(1), async_op=True)
            if rank != 2:
                work.wait()

    codes, result = hazards(program, 3)
    assert codes == [("hazard.unwaited_work", (2,))]
    assert "2 calls of all_reduce never waited for (test_hazards.py:" in result.findings[0].summary


def in_flight_on(rank, flat, changed, *, when="between"):
    """Two halves of a flat buffer are reduced at once, and rank 1 writes `changed` before it waits for the second."""
    first, second = flat[: len(flat) // 2], flat[len(flat) // 2 :]
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    if rank == 1 and when == "at once":
        changed.div_(2)
    works[0].wait()
    if rank == 1 and when == "between":
        changed.div_(2)
    works[1].wait()


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_the_parts_of_a_flat_buffer_are_watched_apart(policy, value):
    def the_finished_half(rank):
        flat = torch.full((10,), value)
        in_flight_on(rank, flat, flat[:5])

    assert hazards(the_finished_half, 3, policy=policy)[0] == []


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize("when", ["at once", "between"])
def test_the_part_that_is_still_in_flight(policy, when):
    def program(rank):
        flat = torch.ones(10)
        in_flight_on(rank, flat, flat[6:], when=when)

    codes, _ = hazards(program, 4, policy=policy)
    assert codes == [("hazard.tensor_in_flight", (1,))]


def test_a_part_that_is_sent_is_watched_whoever_comes_first():
    def program(rank, changes=True, order=(0, 1)):
        flat = torch.ones(10)
        if rank == order[0]:
            work = dist.isend(flat[:5], order[1])
            flat[slice(0, 2) if changes else slice(5, 7)] = 3
            work.wait()
        else:
            dist.recv(torch.ones(5), order[0])

    for order in [(0, 1), (1, 0)]:
        assert hazards(lambda rank, o=order: program(rank, True, o))[0] == [("hazard.tensor_in_flight", (order[0],))]
        assert hazards(lambda rank, o=order: program(rank, False, o))[0] == []


def test_a_large_part_is_not_compared():
    def program(rank):
        flat = torch.ones(1 << 20)
        in_flight_on(rank, flat, flat[:5])
        in_flight_on(rank, flat, flat[-5:])

    assert hazards(program)[0] == []


def test_a_whole_buffer_is_watched_by_its_views():
    def program(rank):
        flat = torch.ones(10)
        work = dist.all_reduce(flat.view(2, 5), async_op=True)
        flat[0] += 1
        work.wait()

    assert hazards(program)[0] == [("hazard.tensor_in_flight", (0, 1))]


def test_call_site_once_per_pair_of_lines():
    def program(rank):
        for _ in range(3):
            if rank == 2:
                dist.barrier()
            else:
                dist.barrier()

    codes, result = hazards(program, 3)
    assert codes == [("hazard.call_site", (2,))]
    assert len(result.findings[0].sites) == 2


def test_a_root_may_have_a_line_of_its_own():
    def program(rank):
        mine = torch.ones(1)
        if rank == 0:
            dist.gather(mine, [torch.zeros(1) for _ in range(dist.get_world_size())])
        elif rank == 1:
            dist.gather(mine)
        else:
            dist.gather(mine)

    assert hazards(program, 2)[0] == []
    codes, _ = hazards(program, 4)
    assert codes == [("hazard.call_site", (0, 1))]


def in_a_sum(buffer):
    return torch.zeros(4) + buffer


def in_a_module(buffer):
    return torch.nn.functional.linear(buffer.view(2, 2), torch.ones(2, 2))


@rows(
    "read",
    [
        *[in_a_sum, in_a_module, lambda buffer: buffer[1].item(), Tensor.tolist],
        *[lambda buffer: torch.cat([buffer, buffer]), lambda buffer: buffer.view(2, 2).t() + 1],
        *[lambda buffer: buffer.view(2, 2).transpose(0, 1).contiguous(), lambda buffer: buffer.view(2, 2)[:, 0].sum()],
    ],
)
@pytest.mark.parametrize("operation", ["recv", "all_reduce", "broadcast", "all_gather"])
def test_an_output_that_is_read_before_the_wait(read, operation):
    def program(rank, waits_first=False):
        buffer = torch.ones(4)
        works = {
            "recv": lambda: dist.isend(buffer, 0) if rank else dist.irecv(buffer, 1),
            "all_reduce": lambda: dist.all_reduce(buffer, async_op=True),
            "broadcast": lambda: dist.broadcast(buffer, 1, async_op=True),
            "all_gather": lambda: dist.all_gather([buffer, torch.zeros(4)], torch.ones(4), async_op=True),
        }
        work = works[operation]()
        if waits_first:
            work.wait()
        if rank == 0 or operation in ("recv", "broadcast"):  # rank 1 reads what it sends
            read(buffer)
        work.wait()
        assert type(buffer) is Tensor

    codes, result = hazards(program, isolation="process" if operation == "recv" and read is in_a_sum else "thread")
    assert codes == [("hazard.tensor_in_flight", (0,))]
    assert f"a tensor of {operation} #0 was read by its owner before the wait" in result.findings[0].summary
    assert "either value may be read at test_hazards.py:" in str(result)
    assert hazards(functools.partial(program, waits_first=True))[0] == []


def test_what_reads_nothing_of_an_output_in_flight():
    def program(rank):
        flat = torch.ones(8)
        buffer, other = flat[:4], flat[4:]
        work = dist.isend(buffer, 0) if rank else dist.irecv(buffer, 1)
        shapes = (
            buffer.shape,
            len(buffer),
            buffer.dtype,
            buffer.numel(),
            buffer.is_contiguous(),
            type(buffer.view(2, 2)),
        )
        torch.zeros_like(buffer), buffer.new_empty(3), buffer.data_ptr(), repr(buffer.shape), other.sum(), shapes
        buffer.view(2, 2).t().shape, other.view(2, 2).t().sum(), flat[::5].sum()
        shapes = buffer.is_pinned(), buffer.is_same_size(other), torch.nn.Parameter(buffer, requires_grad=False)
        work.wait()
        buffer.sum()
        works = [dist.all_reduce(buffer, async_op=True)]
        dist.barrier()
        buffer.sum()
        works[0].wait()

    assert hazards(program)[0] == []


@pytest.mark.parametrize("operation", ["gather", "all_gather", "all_to_all"])
def test_outputs_of_one_call_that_share_memory(operation):
    def program(rank, make_outputs=lambda: [torch.zeros(2)] * 2):
        outputs, mine = make_outputs(), torch.full((2,), float(rank))
        if operation == "gather":
            dist.gather(mine, outputs if rank == 0 else None)
        elif operation == "all_gather":
            dist.all_gather(outputs, mine)
        else:
            dist.all_to_all(outputs, [mine, mine])

    codes, result = hazards(program)
    assert codes == [("hazard.tensor_in_flight", (0,) if operation == "gather" else (0, 1))]
    assert f"outputs of {'' if operation == 'gather' else '2 calls of '}{operation}" in result.findings[0].summary
    whole = torch.zeros(2, 2)
    for make_outputs in (lambda: list(torch.zeros(2, 2)), lambda: list(torch.zeros(4).chunk(2)), whole.t().unbind):
        assert hazards(functools.partial(program, make_outputs=lambda m=make_outputs: list(m())))[0] == []


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_note_names_the_line_where_gloo_moves_raw_memory(isolation):
    def program(rank, columns_at_once=False):
        table = torch.full((3, 2), float(rank))
        if columns_at_once:
            dist.broadcast(table.t(), 1)  # the memory of all its elements
        else:
            dist.broadcast(table[:, 0], 1)
        return table.flatten().tolist()

    _, result = hazards(program, isolation=isolation)
    assert [*result.returns] == [[1, 1, 1, 0, 0, 0], [1] * 6]
    (note,) = result.notes
    assert note.startswith("wrong elements: broadcast (test_hazards.py:")
    _, result = hazards(functools.partial(program, columns_at_once=True), isolation=isolation)
    assert (result.notes, [*result.returns]) == ((), [[1] * 6] * 2)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_note_names_the_line_where_ranks_lay_out_a_tensor_in_unlike_orders(isolation):
    def program(rank, transposing=(1,)):
        table = torch.arange(6.0).view(2, 3) if rank not in transposing else torch.arange(6.0).view(3, 2).t()
        dist.all_reduce(table)
        return table.tolist()

    _, result = hazards(program, isolation=isolation)
    assert [*result.returns] == [[[0, 2, 4], [6, 8, 10]], [[0, 4, 8], [2, 6, 10]]]  # as on gloo
    (note,) = result.notes
    assert note.startswith("wrong elements: the tensor of all_reduce #0 (test_hazards.py:")
    assert note.endswith("lies in memory in unlike orders on the ranks: pass tensor.contiguous(), and copy it back")
    _, result = hazards(functools.partial(program, transposing=(0, 1)), isolation=isolation)
    assert (result.notes, [*result.returns]) == ((), [[[0, 4, 8], [2, 6, 10]]] * 2)


def test_a_note_names_the_line_where_what_gloo_scatters_is_laid_out_otherwise_than_what_takes_it():
    # The backward of torch.distributed.nn.functional.all_gather on gloo does it with a transposed gradient.
    def program(rank, *, like):
        parts = [torch.arange(6.0).view(2, 3), torch.arange(6.0, 12.0).view(2, 3)]
        taken = torch.zeros(3, 2).t() if not like else torch.zeros(2, 3)
        dist.scatter(taken, parts if rank == 0 else None, 0)
        return taken.flatten().tolist()

    _, result = hazards(functools.partial(program, like=False))
    assert [*result.returns] == [[0, 2, 4, 1, 3, 5], [6, 8, 10, 7, 9, 11]]  # as on gloo
    (note,) = result.notes
    assert note.startswith("wrong elements: scatter (test_hazards.py:")
    assert "in memory order, which differs" in note
    _, result = hazards(functools.partial(program, like=True))
    assert (result.notes, result.returns[0]) == ((), [0, 1, 2, 3, 4, 5])


def waiting_in_every_way(rank):
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    while not work.is_completed():
        pass
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    future.then(lambda done: done.value()[0].div_(2)).wait()
    other = 1 - rank
    works = [dist.isend(torch.ones(1), other), dist.irecv(torch.ones(1), other)]
    for work in works:
        work.wait()
    dist.monitored_barrier()
    dist.all_gather_object([None, None], rank)
    with torch.inference_mode():
        dist.all_reduce(torch.ones(1))


def training_with_ddp(rank):
    model = wrapped(normalised=True, find_unused_parameters=True)
    with model.join():
        train(model, sgd(model), rank, 1 + rank)
    with model.no_sync():
        backward(model, rank)
    backward(model, rank)


@pytest.mark.parametrize("program", [waiting_in_every_way, training_with_ddp])
@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_no_false_alarm(program, policy):
    assert hazards(program, policy=policy)[0] == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.booleans(), st.booleans()), max_size=30))
def test_calls_that_share_memory_are_those_that_a_look_at_each_finds(calls):
    """Parts of memory of up to 9 * 8 bytes at 60 * 8: a call reads or writes one; some are settled in between."""
    memory, operation = torch.zeros(80, dtype=torch.int64), SimpleNamespace(operation="all_reduce")
    in_flight = _CallsOfRank()
    for handle, (start, length, writes, settles) in enumerate(calls):
        part = (memory[start : start + length],)
        pending = SimpleNamespace(
            handle=handle, poisoned=None, call=SimpleNamespace(peer=None, rank=0, signature=operation)
        )
        call = _CallInFlight(pending, (), Payload(() if writes else part, part if writes else ()))
        by_look = [each for each in in_flight.values() if call.shares_memory_with(each)]
        found = in_flight.sharing_with(call)
        assert {id(each) for each in found} == {id(each) for each in by_look}
        in_flight.add(call)
        if settles:
            in_flight.settle(handle // 2)
        cells = [cell for of_size in in_flight._cells.values() for cell in of_size.values()]
        assert {each for cell in cells for each in cell} <= in_flight.keys()  # a settled call is not kept alive
