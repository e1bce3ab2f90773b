"""Cases of what an asynchronous call hands out: completion, result, future, and errors that wait until the wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from tests.semantics.case import Case
from tests.semantics.movement import all_gather_single
from tests.semantics.reductions import reduce_scatter_single
from tests.semantics.sweep import Setting, blank, reduced, sample

WORLD_SIZE = 2
SETTING = Setting(shape=(4,))


def cases() -> Iterator[Case]:
    yield from _after_the_wait()
    yield from _without_result()
    yield from _coalesced_futures()
    yield _before_the_last_rank()
    yield _polled()
    yield _result_before_the_wait()
    yield _result_is_the_tensor()
    yield _chain_of_callbacks()
    yield from _late_errors()


def _inputs(count: int = WORLD_SIZE) -> list[torch.Tensor]:
    return [sample(SETTING, rank=rank) for rank in range(count)]


def _quarters(rank: int) -> torch.Tensor:
    return sample(Setting(shape=(2 * WORLD_SIZE,)), rank=rank)


def _total(rank: int) -> list[torch.Tensor]:
    return [reduced("SUM", _inputs())]


def _everything(rank: int) -> list[torch.Tensor]:
    return _inputs()


def _after_the_wait() -> Iterator[Case]:
    """For each call: how to issue it, and the tensors its work and its future then hold."""
    calls: dict[str, tuple[Callable[[int], dist.Work], Callable[[int], list[torch.Tensor]]]] = {
        "all_reduce": (lambda rank: dist.all_reduce(sample(SETTING, rank=rank), async_op=True), _total),
        "all_reduce-complex": (
            # The work holds the view that torch's Python layer made.
            lambda rank: dist.all_reduce(sample(SETTING, rank=rank).to(torch.complex64), async_op=True),
            lambda rank: [torch.view_as_real(reduced("SUM", _inputs()).to(torch.complex64))],
        ),
        "broadcast": (
            lambda rank: dist.broadcast(sample(SETTING, rank=rank), 1, async_op=True),
            lambda rank: [sample(SETTING, rank=1)],
        ),
        "all_gather": (
            lambda rank: dist.all_gather([blank(SETTING), blank(SETTING)], sample(SETTING, rank=rank), async_op=True),
            _everything,
        ),
        "gather": (
            lambda rank: dist.gather(
                sample(SETTING, rank=rank), [blank(SETTING), blank(SETTING)] if rank == 1 else None, 1, async_op=True
            ),
            lambda rank: _inputs() if rank == 1 else [],
        ),
        "scatter": (
            lambda rank: dist.scatter(blank(SETTING), _inputs() if rank == 1 else None, 1, async_op=True),
            lambda rank: [sample(SETTING, rank=rank)],
        ),
        "all_to_all": (
            lambda rank: dist.all_to_all(
                [blank(SETTING), blank(SETTING)], [sample(SETTING, rank=rank)] * 2, async_op=True
            ),
            _everything,
        ),
        "all_to_all_single": (
            lambda rank: dist.all_to_all_single(blank(SETTING), sample(SETTING, rank=rank), async_op=True),
            lambda rank: [torch.cat([each.chunk(WORLD_SIZE)[rank] for each in _inputs()])],
        ),
        "barrier": (lambda rank: dist.barrier(async_op=True), lambda rank: []),
    }
    for name, (issue, tensors) in calls.items():

        def program(rank: int, issue: Callable[[int], dist.Work] = issue) -> dict[str, object]:
            work = issue(rank)
            answers: dict[str, object] = {"wait": work.wait()}
            future = work.get_future()
            return answers | {
                "wait again": work.wait(),
                "completed": work.is_completed(),
                "result": work.result(),
                "future": future.wait(),
                "future done": future.done(),
                "then": future.then(lambda done: ["then", done.value()]).wait(),
            }

        def expected(rank: int, tensors: Callable[[int], list[torch.Tensor]] = tensors) -> dict[str, object]:
            return {
                "wait": True,
                "wait again": True,
                "completed": True,
                "result": tensors(rank),
                "future": tensors(rank),
                "future done": True,
                "then": ["then", tensors(rank)],
            }

        yield Case(f"work-{name}", WORLD_SIZE, program, expected)


def _without_result() -> Iterator[Case]:
    """Works that on gloo have neither a result nor a future, and whose wait is all there is."""

    def sent_and_received(rank: int) -> object:
        tensor = sample(SETTING, rank=rank)
        work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
        return [work.wait(), work.is_completed(), tensor]

    yield Case("work-send-recv", WORLD_SIZE, sent_and_received, lambda rank: [True, True, sample(SETTING, rank=0)])

    def scattered_list(rank: int) -> object:
        output = blank(SETTING)
        work = dist.reduce_scatter(output, [sample(SETTING, rank=rank)] * 2, async_op=True)
        return [work.wait(), work.wait(), output]

    total = reduced("SUM", _inputs())
    yield Case("work-reduce_scatter", WORLD_SIZE, scattered_list, lambda rank: [True, True, total])

    def scattered(rank: int) -> object:
        output = torch.empty(2)
        work = reduce_scatter_single(output, _quarters(rank), async_op=True)
        return [work.wait(), work.wait(), output]

    quarters = reduced("SUM", [_quarters(rank) for rank in range(WORLD_SIZE)]).chunk(WORLD_SIZE)
    yield Case("work-reduce_scatter_single", WORLD_SIZE, scattered, lambda rank: [True, True, quarters[rank]])

    def without_future(rank: int) -> object:
        tensor = sample(SETTING, rank=rank)
        works = [
            dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0),
            dist.reduce_scatter(blank(SETTING), [sample(SETTING, rank=rank)] * 2, async_op=True),
            reduce_scatter_single(torch.empty(2), _quarters(rank), async_op=True),
        ]
        seen = [(work.is_completed(), work.wait(), work.is_completed()) for work in works]
        return [(*each, _raised(work.get_future), _raised(work.result)) for each, work in zip(seen, works, strict=True)]

    lacking = (
        ["RuntimeError", "Work::getFuture not implemented."],
        ["RuntimeError", "result() not implemented."],
    )
    yield Case(
        "work-without-future",
        WORLD_SIZE,
        without_future,
        lambda rank: [(False, True, True, *lacking), *[(False, True, False, *lacking)] * 2],
    )

    def gathered_single(rank: int) -> object:
        # What the work holds differs from backend to backend: gloo has the output's pieces, NCCL the output.
        output = torch.empty(8)
        work = all_gather_single(output, sample(SETTING, rank=rank), async_op=True)
        return [work.wait(), work.is_completed(), torch.cat(work.result()), output]

    everything = torch.cat(_inputs())
    yield Case("work-all_gather_single", WORLD_SIZE, gathered_single, lambda rank: [True, True, everything, everything])


def _coalesced_futures() -> Iterator[Case]:
    def reduced_together(rank: int) -> object:
        return dist.all_reduce_coalesced([sample(SETTING, rank=rank)], async_op=True).wait()

    yield Case("future-all_reduce_coalesced", WORLD_SIZE, reduced_together, lambda rank: [reduced("SUM", _inputs())])

    def gathered_together(rank: int) -> object:
        outputs = [[blank(SETTING), torch.empty(2)] for _ in range(WORLD_SIZE)]
        return dist.all_gather_coalesced(outputs, [sample(SETTING, rank=rank), torch.ones(2)], async_op=True).wait()

    yield Case(
        "future-all_gather_coalesced",
        WORLD_SIZE,
        gathered_together,
        lambda rank: [[each, torch.ones(2)] for each in _inputs()],
    )


def _before_the_last_rank() -> Case:
    # Rank 1 issues its call only after rank 0 has looked.
    def program(rank: int) -> object:
        token, tensor = torch.zeros(1), sample(SETTING, rank=rank)
        early = []
        if rank == 1:
            dist.recv(token, 0)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            early = [work.is_completed(), work.get_future().done(), torch.equal(tensor, sample(SETTING, rank=0))]
            dist.send(token, 1)
        work.wait()
        return [early, work.is_completed(), tensor]

    return Case(
        "work-incomplete-until-all-have-issued",
        WORLD_SIZE,
        program,
        lambda rank: [[False, False, True] if rank == 0 else [], True, reduced("SUM", _inputs())],
    )


def _polled() -> Case:
    def program(rank: int) -> object:
        tensor = sample(SETTING, rank=rank)
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        return [work.wait(), tensor]

    return Case("work-polled", WORLD_SIZE, program, lambda rank: [True, reduced("SUM", _inputs())])


def _result_before_the_wait() -> Case:
    def program(rank: int) -> object:
        token = torch.zeros(1)
        error = None
        if rank == 1:
            dist.recv(token, 0)
        work = dist.all_reduce(sample(SETTING, rank=rank), async_op=True)
        if rank == 0:
            error = _raised(work.result)
            dist.send(token, 1)
        work.wait()
        return error

    text = "Work needs to be completed before calling result(). Should call wait() before result()."
    return Case(
        "work-result-too-early", WORLD_SIZE, program, lambda rank: ["RuntimeError", text] if rank == 0 else None
    )


def _result_is_the_tensor() -> Case:
    def program(rank: int) -> object:
        tensor = sample(SETTING, rank=rank)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        (held,) = work.result()
        held.add_(1)
        return tensor

    return Case("work-result-is-the-tensor", WORLD_SIZE, program, lambda rank: reduced("SUM", _inputs()) + 1)


def _chain_of_callbacks() -> Case:
    # As communication hooks do: the callback of one collective issues the next, as the same rank.
    def program(rank: int) -> object:
        seen = []

        def halve(future: torch.futures.Future) -> torch.Tensor:
            seen.append(dist.get_rank())
            return future.value()[0] / 2

        def again(future: torch.futures.Future) -> torch.Tensor:
            tensor = future.value()
            return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

        work = dist.all_reduce(sample(SETTING, rank=rank), async_op=True)
        work.wait()
        result = work.get_future().then(halve).then(again).wait()
        return [result, seen]

    return Case("work-chain-of-callbacks", WORLD_SIZE, program, lambda rank: [reduced("SUM", _inputs()), [rank]])


def _late_errors() -> Iterator[Case]:
    """Errors that gloo finds in its worker: the call itself goes through, the wait raises, again and again."""
    calls: dict[str, tuple[Callable[[int], dist.Work], str]] = {
        "dtype": (
            lambda rank: dist.all_reduce(torch.zeros(2, dtype=torch.int16), async_op=True),
            "Invalid scalar type",
        ),
        "reduction": (
            lambda rank: dist.all_reduce(torch.zeros(2), dist.ReduceOp.BAND, async_op=True),
            "Cannot use ReduceOp.BAND with non-integral dtype",
        ),
        "splits": (
            lambda rank: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [2, 2], [2, 1], async_op=True),
            "Split sizes doesn't match total dim 0 size",
        ),
    }
    for name, (issue, text) in calls.items():

        def program(rank: int, issue: Callable[[int], dist.Work] = issue) -> object:
            try:
                work = issue(rank)
            except RuntimeError as error:  # the gloo of torch 2.15 finds wrong splits at once
                return [["RuntimeError", str(error)]] * 3 + [True]
            errors = [_raised(work.wait), _raised(work.wait), _raised(work.get_future().wait)]
            return [*errors, work.is_completed()]

        def expected(rank: int, text: str = text) -> object:
            return [["RuntimeError", text]] * 3 + [True]

        yield Case(f"work-late-error-{name}", WORLD_SIZE, program, expected)


def _raised(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []
