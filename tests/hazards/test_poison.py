"""`poison`: what a call in flight is to write holds what shows, so that nobody reads too early and is right by luck."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Verdict, explore, simulate
from ddpsim.simulator.hazards.poison_marks import MOST, call_numbers_in, fill_with_mark, remove_marks
from tests.kit.results import codes


def early(rank, *, dtype=torch.float32):
    """The other rank is here already, so the sum is there before the wait."""
    tensor = torch.ones(1, dtype=dtype)
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    dist.barrier()
    seen = tensor.item()
    work.wait()
    return seen, tensor.item()


def gathered_early(rank):
    own, parts = torch.tensor([rank + 1]), [torch.zeros(1, dtype=torch.long) for _ in range(2)]
    work = dist.all_gather(parts, own, async_op=True)
    seen = [int(part) for part in parts]
    work.wait()
    return seen, [int(part) for part in parts], int(own)


def gathered_in_place(rank):
    """A rank's own part is no result."""
    whole = torch.zeros(2)
    own = whole[rank : rank + 1].fill_(rank + 1)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.11 has the older name alone
    work = gather(whole, own, async_op=True)
    seen = own.item()
    work.wait()
    return seen, whole.tolist()


def at_the_root(rank):
    """It reads what it sends."""
    tensor = torch.full((1,), float(rank + 5))
    work = dist.broadcast(tensor, 0, async_op=True)
    seen = tensor.item()
    work.wait()
    return seen, tensor.item()


def by_future(rank):
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].item()).wait()


def polls(rank):
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    return tensor.item()


def exchanges(rank):
    mine, theirs = torch.full((1,), float(rank)), torch.zeros(1)
    operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return theirs.item()


def trains(rank, **options):
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1e-5, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 3), rank + 1.0)).sum().backward()
        optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


def writes_through_numpy(rank, *, waits_first=False, sends=False):
    tensor = torch.ones(2)
    view = tensor.numpy()
    if sends and rank == 1:
        dist.recv(tensor, 0)
        return
    work = dist.isend(tensor, 1) if sends else dist.all_reduce(tensor, async_op=True)
    if waits_first:
        work.wait()
    view[0] = 5.0
    work.wait()


def scales_in_flight(rank, *, waits_first=False):
    """Twice NaN is NaN."""
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    if waits_first:
        work.wait()
    tensor.mul_(2)
    work.wait()


def scales_another_part(rank):
    """The parts of a storage share its version."""
    whole = torch.ones(4)
    work = dist.all_reduce(whole[:2], async_op=True)
    whole[2:].mul_(2)
    work.wait()


def shares_memory(rank, *, until):
    whole = torch.ones(4)
    works = [dist.all_reduce(whole[:until], async_op=True), dist.all_reduce(whole[2:], async_op=True)]
    for work in works:
        work.wait()


def sends_twice(rank):
    """Both are read only."""
    tensor = torch.ones(2)
    if rank == 0:
        for work in [dist.isend(tensor, 1), dist.isend(tensor, 1)]:
            work.wait()
    else:
        dist.recv(tensor, 0)
        dist.recv(tensor, 0)


def tells_twice(rank):
    """The root's tensor is read only; the others have one for each call."""
    tensors = [torch.ones(2)] * 2 if rank == 0 else [torch.zeros(2), torch.zeros(2)]
    for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]:
        work.wait()


def hears_twice_in_one(rank):
    tensor = torch.ones(2)
    for work in [dist.broadcast(tensor, 0, async_op=True) for _ in range(2)]:
        work.wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_who_reads_early_does_not_see_the_result(dtype):
    lucky = simulate(early, 2, args=(), name="early").returns
    assert lucky == ((1.0, 1.0),) * 2
    for seen, at_last in simulate(partial(early, dtype=dtype), 2, poison=True).returns:
        assert at_last == 1
        assert seen != at_last or dtype is torch.bool  # whose largest is True


def test_what_a_rank_reads_is_as_it_was():
    result = simulate(gathered_early, 2, poison=True)
    assert [rest for _, *rest in result.returns] == [[[1, 2], 1], [[1, 2], 2]]
    assert all(seen > 2**62 for seen, *_ in result.returns for seen in seen)
    assert codes(result) == [("hazard.tensor_in_flight", (0, 1))]
    assert simulate(gathered_in_place, 2, poison=True).returns == ((1.0, [1.0, 2.0]), (2.0, [1.0, 2.0]))
    (seen_by_root, _), (seen, got) = simulate(at_the_root, 2, poison=True).returns
    assert (seen_by_root, got) == (5.0, 5.0)
    assert seen != seen


PATIENT = [
    by_future,
    polls,
    exchanges,
    sends_twice,
    tells_twice,
    trains,
    partial(trains, gradient_as_bucket_view=True),
    partial(trains, static_graph=True),
    partial(writes_through_numpy, waits_first=True),
    partial(shares_memory, until=2),
]


@pytest.mark.parametrize("program", PATIENT)
def test_who_waits_gets_the_same(program):
    plain, poisoned = (simulate(program, 2, poison=poison, name="it") for poison in (False, True))
    assert poisoned.returns == plain.returns
    assert poisoned.trace.digest() == plain.trace.digest()
    assert codes(poisoned) == codes(plain) == []


@pytest.mark.parametrize("sends", [False, True])
def test_writes_through_numpy_are_found(sends):
    program = partial(writes_through_numpy, sends=sends)
    (finding,) = simulate(program, 2, poison=True).findings
    assert finding.code == "hazard.tensor_in_flight"
    assert finding.ranks == ((0,) if sends else (0, 1))


@pytest.mark.parametrize("poison", [False, True])
def test_what_leaves_the_poison_as_it_is_is_found_by_its_version(poison):
    (finding,) = simulate(scales_in_flight, 2, poison=poison).findings
    assert (finding.code, finding.ranks) == ("hazard.tensor_in_flight", (0, 1))
    assert not simulate(partial(scales_in_flight, waits_first=True), 2, poison=poison).findings
    assert not simulate(scales_another_part, 2, poison=poison).findings


@pytest.mark.parametrize("poison", [False, True])
def test_two_calls_in_flight_that_share_memory(poison):
    (finding,) = simulate(partial(shares_memory, until=3), 2, poison=poison).findings
    assert (finding.code, finding.ranks) == ("hazard.tensor_in_flight", (0, 1))
    assert "share memory" in finding.summary


def test_a_broadcast_writes_everywhere_but_at_its_root():
    (finding,) = simulate(hears_twice_in_one, 2).findings
    assert (finding.code, finding.ranks) == ("hazard.tensor_in_flight", (1,))


def test_an_exploration_poisons_unless_told_otherwise():
    assert "nan" in str(explore(early, 2).first_pass.returns)
    assert "nan" not in str(explore(early, 2, poison=False).first_pass.returns)
    assert "poison=True" in explore(early, 2).first_pass.replay
    assert "poison" not in explore(lambda rank: dist.barrier(), 2).first_pass.replay


def stumbles(rank):
    """What it looks at is there, but for the poison."""
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    assert tensor.item() > 0
    work.wait()


def stumbles_later(rank):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    raise ValueError("no")


def test_who_stumbles_over_the_poison_is_told_what_was_not_waited_for():
    (finding,) = simulate(stumbles, 2, poison=True).findings
    line = stumbles.__code__.co_firstlineno + 3
    assert (finding.code, finding.ranks) == ("rank_error", (0, 1))
    assert f"before the wait for all_reduce #0 (test_poison.py:{line})" in finding.text
    assert [site.line for site in finding.sites] == [line + 2, line]


def test_an_error_after_the_wait_is_none_of_the_poisons():
    (finding,) = simulate(stumbles_later, 2, poison=True).findings
    assert "poisoned" not in finding.text
    assert simulate(stumbles, 2).verdict is Verdict.PASS


@pytest.mark.tier("ci")
def test_ranks_as_processes():
    for program in (early, gathered_early, stumbles, partial(shares_memory, until=3)):
        threads, processes = (simulate(program, 2, poison=True, isolation=each) for each in ("thread", "process"))
        assert str(processes.returns) == str(threads.returns)
        assert [str(each.summary) for each in processes.findings] == [str(each.summary) for each in threads.findings]
        assert processes.has_poisoned


class Kept(NamedTuple):
    of: dict


DERIVED = {
    "itself": lambda read: read.clone(),
    "an item": lambda read: read[0].item(),
    "arithmetic": lambda read: [2 * read[1].item() + 1],
    "a mean": lambda read: {"loss": read.mean().item()},
    "a product": lambda read: (torch.ones(3, 3, dtype=read.dtype) @ read).sum(),
    "a loss": lambda read: torch.nn.functional.cross_entropy(read[None], torch.tensor([1])),
    "an array": lambda read: Kept({"seen": read.numpy().copy()}),
    "in more bits": lambda read: read.double() / 3,
}


READ = [(derived, dtype) for derived in DERIVED for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("derived", "dtype"), [*READ, ("itself", torch.complex64)])
def test_what_was_read_early_is_told_when_it_is_returned(derived, dtype):
    def program(rank, waits_first):
        tensor = torch.ones(3, dtype=dtype)
        work = dist.all_reduce(tensor, async_op=True)
        if waits_first:
            work.wait()
        seen = DERIVED[derived](tensor)
        work.wait()
        return seen

    result = simulate(program, 2, args=(False,), poison=True)
    assert result.verdict is Verdict.PASS
    (finding,) = result.findings
    line = program.__code__.co_firstlineno + 2
    assert (finding.code, finding.ranks) == ("hazard.tensor_in_flight", (0, 1))
    assert finding.summary.endswith(f"was read by its owner before the wait (test_poison.py:{line})")
    assert "that value appears in what the program returned" in finding.text
    assert codes(simulate(program, 2, args=(True,), poison=True)) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_of_short_floats_the_latest_call_is_told(dtype):
    def program(rank):
        tensors = [torch.ones(2, dtype=each) for each in (torch.float32, dtype, torch.float64)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        seen = tensors[1].clone()
        for work in works:
            work.wait()
        return seen

    (finding,) = simulate(program, 1, poison=True).findings
    assert [call.sequence for call in finding.calls] == [1]


def test_the_nan_of_a_program_is_its_own():
    def program(rank):
        tensor = torch.full((3,), float("nan"))
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        return (
            tensor,
            float("nan"),
            -tensor,
            torch.zeros(2) / 0,
            torch.tensor([-1.0]).sqrt(),
            tensor.half(),
            tensor[0].item(),
        )

    assert codes(simulate(program, 2, poison=True)) == []


def test_what_was_read_early_is_told_when_it_goes_into_another_call():
    def program(rank, waits_first):
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True)
        if waits_first:
            work.wait()
        twice = 2 * tensor
        if rank == 1:
            dist.send(twice, 0)
        else:
            dist.recv(twice, 1)
        work.wait()

    (finding,) = simulate(program, 2, args=(False,), poison=True).findings
    assert (finding.code, finding.ranks) == ("hazard.tensor_in_flight", (0, 1))
    assert "either value may be read at test_poison.py:" in finding.text
    assert codes(simulate(program, 2, args=(True,), poison=True)) == []


def steps_early(rank, waits_first=False):
    model = torch.nn.Linear(3, 1)
    model(torch.ones(2, 3)).sum().backward()
    works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    if waits_first:
        works.pop().wait()
        works.pop().wait()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    for work in works:
        work.wait()


def test_what_was_read_early_is_told_when_replicas_are_compared():
    result = simulate(steps_early, 2, poison=True, check="replicas")
    assert codes(result) == [("hazard.tensor_in_flight", (0, 1))]
    assert "that value appears in replicas compared" in result.findings[0].text
    assert codes(simulate(steps_early, 2, args=(True,), poison=True, check="replicas")) == []


@pytest.mark.parametrize("keeps_work", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32])
def test_what_is_never_waited_for_is_told_as_that_and_leaves_no_number_in_memory(dtype, keeps_work):
    def program(rank):
        tensor = torch.ones(3, dtype=dtype)
        work = dist.all_reduce(tensor, async_op=True)
        return tensor, work if keeps_work else None

    result = simulate(program, 2, poison=True)
    assert codes(result) == [("hazard.unwaited_work", (0, 1))]
    assert [call_numbers_in(tensor) for tensor, _ in result.returns] == [set(), set()]


@pytest.mark.parametrize("number", [1, 40_000, MOST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_a_number_is_read_as_it_was_filled_in(dtype, number):
    tensor = torch.zeros(4, 3, dtype=dtype)
    fill_with_mark(tensor[:, 1], number)
    assert call_numbers_in({"a": [(tensor,)]}) == {number}
    assert call_numbers_in(torch.zeros(4, 3, dtype=dtype)) == set()
    assert bool((tensor[:, 1] != tensor[:, 1]).all())
    assert bool((tensor[:, ::2] == 0).all())


@pytest.mark.parametrize("number", [1, MOST])
def test_integers_of_64_bits_have_a_number_too(number):
    tensor = torch.zeros(2, 3, dtype=torch.long)
    fill_with_mark(tensor[1], number)
    for each in (tensor, tensor.numpy(), tensor[1, 1].item(), {"count": tensor.tolist()}):
        assert call_numbers_in(each) == {number}
    remove_marks(tensor)
    assert tensor[1].tolist() == [torch.iinfo(torch.long).max] * 3
    assert call_numbers_in([tensor, True, -1, 2**100, torch.iinfo(torch.long).min, torch.arange(9)]) == set()


def reduces(rank, *, then, dtype=torch.float32, async_op=False):
    tensor = torch.full((2,), rank + 1, dtype=dtype)
    work = dist.reduce(tensor, 1, async_op=async_op)
    if async_op:
        work.wait()
    return then(tensor, rank)


def to_all(tensor, rank):
    dist.all_reduce(tensor)


def again(tensor, rank):
    dist.reduce(tensor, 0)


def anew(tensor, rank):
    """The sum of the first, on its destination; then it is filled again."""
    mine = tensor.tolist() if rank == 1 else None
    tensor.fill_(1)
    dist.all_reduce(tensor)
    return mine, tensor.tolist()


def refuses(tensor, rank):
    if tensor[0] != tensor[0]:
        raise ValueError("the loss is not finite")


@pytest.mark.parametrize(
    "then", [lambda tensor, rank: tensor.mean().item(), lambda tensor, rank: tensor, to_all, again]
)
@pytest.mark.parametrize("async_op", [False, True])
def test_who_uses_what_a_reduce_left_is_told(then, async_op):
    program = partial(reduces, then=then, async_op=async_op)
    result = simulate(program, 3, poison=True, name="it")
    (finding,) = result.findings
    assert (finding.code, finding.ranks, result.verdict) == ("hazard.undefined_result", (0, 2), Verdict.PASS)
    assert finding.sites[0].line == reduces.__code__.co_firstlineno + 2
    assert codes(simulate(program, 3, name="it")) == []


def test_integers_that_a_reduce_left_are_told_where_that_is_sure():
    for dtype, found in ((torch.long, [("hazard.undefined_result", (0, 2))]), (torch.int32, [])):
        result = simulate(partial(reduces, then=lambda tensor, rank: tensor, dtype=dtype), 3, poison=True)
        assert codes(result) == found


@pytest.mark.parametrize("async_op", [False, True])
def test_who_never_looks_at_it_gets_the_same(async_op):
    program = partial(reduces, then=anew, async_op=async_op)
    plain, poisoned = (simulate(program, 3, poison=poison, name="it") for poison in (False, True))
    assert poisoned.returns == plain.returns == ((None, [3.0] * 2), ([6.0] * 2, [3.0] * 2), (None, [3.0] * 2))
    assert codes(poisoned) == codes(plain) == []


def test_who_stumbles_over_what_a_reduce_left_is_told_of_it():
    (finding,) = simulate(partial(reduces, then=refuses), 2, poison=True).findings
    assert (finding.code, finding.ranks) == ("rank_error", (0,))
    assert "where a tensor of reduce #0 (test_poison.py:" in finding.text


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.complex64, torch.int64, torch.bool]
)
def test_tensors_of_any_shape_are_poisoned(dtype, shape):
    def program(rank):
        tensor = torch.ones(shape, dtype=dtype)
        work = dist.all_reduce(tensor, dist.ReduceOp.SUM, async_op=True)
        seen = tensor.clone()
        work.wait()
        return seen, tensor

    result = simulate(program, 2, poison=True)
    assert result.verdict is Verdict.PASS, str(result)
    shows = dtype.is_floating_point or dtype.is_complex
    assert len(result.findings) == (0 not in shape)
    for seen, tensor in result.returns:
        assert torch.equal(tensor, torch.full(shape, 2, dtype=dtype))
        assert bool((seen != seen).all()) if shows else seen.shape == tensor.shape
