"""Ranks that leave a join by an exception, disagree, or call what cannot be shadowed: all raise, and nothing hangs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join as TorchJoin
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel, Join, JoinError
from ddpsim.ddp.errors import UsageError
from tests.kit.rows import rows
from tests.kit.running import failing, linear, row, run
from tests.kit.training import TINY
from tests.tiers import sweep


class Boom(Exception):
    pass


class Fragile(nn.Module):
    """Two layers and a buffer; raises where it is told to."""

    def __init__(self):
        super().__init__()
        self.first, self.last = linear(2, 3), linear(3)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
        self.breaks = ""

    def forward(self, batch):
        self.reach("in forward")
        self.seen += 1
        return self.last(Breaking.apply(self.first(batch).tanh(), self))

    def reach(self, place):
        if self.breaks == place:
            raise Boom("no more")


class Breaking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, module):
        ctx.module = module
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.module.reach("in backward")
        return gradient, None


PLACES = ("before forward", "in forward", "between forward and backward", "in backward", "after backward")


AT = pytest.mark.parametrize("at", sweep([0, 1, 2], lambda at: at == 1), ids=["first-iteration", "second", "third"])
EACH_PLACE = pytest.mark.parametrize("place", PLACES)


def train(model, rank, count, place="", at=-1, after=lambda model, loss: None):
    """Raise at a place in the iteration `at`."""
    for iteration in range(count):
        model.module.breaks = place if iteration == at else ""
        model.module.reach("before forward")
        loss = model(row(rank, iteration)).sum()
        model.module.reach("between forward and backward")
        loss.backward()
        model.module.reach("after backward")
        after(model, loss)


def check_leaving(leaver, size, program: Callable[..., object], *args):
    texts = failing(program, size, *args)
    assert texts.pop(leaver) == "Boom: no more"
    assert set(texts.values()) == {f"JoinError: the join is over: rank {leaver} left it by Boom: no more"}


LEAVING = {
    "two": (0, (4, 4), {}),
    "three": (1, (4, 4, 4), {}),
    "one-joined": (0, (4, 1, 4), {}),
    "one-joined-at-once": (2, (0, 4, 4, 2), {}),
    "others-join-meanwhile": (1, (1, 3), {}),
    "the-only-one-with-input": (1, (0, 3), {}),
    "searched": (0, (4, 4), {"find_unused_parameters": True}),
    "static": (0, (4, 4), {"static_graph": True}),
}


@EACH_PLACE
@pytest.mark.parametrize(
    ("case", "at"),
    sweep(product(LEAVING, range(3)), lambda each: each[1] == 1 or each[0] in ("three", "the-only-one-with-input")),
)
def test_a_rank_that_leaves_by_an_exception(case, place, at):
    leaver, counts, options = LEAVING[case]

    def program(rank):
        model = DistributedDataParallel(Fragile(), bucket_cap_mb=TINY, **options)
        with model.join():
            train(model, rank, counts[rank], place if rank == leaver else "", at)

    check_leaving(leaver, len(counts), program)


BUFFERS, COLLECTIVES = "buffers after the forward", "collectives after the backward"


@EACH_PLACE
@pytest.mark.parametrize(
    ("what", "at"),
    # In the first iteration nobody knows of the loop's own collectives.
    [*((BUFFERS, at) for at in range(3)), *((COLLECTIVES, at) for at in (1, 2))],
)
def test_leaving_a_loop_that_communicates_more(what, at, place):
    def program(rank):
        model = DistributedDataParallel(Fragile(), bucket_cap_mb=TINY)
        if what == BUFFERS:
            model.register_buffer_comm_hook("seen", "sum", when="after")
        own = {} if what == BUFFERS else {"after": communicate}
        with model.join():
            train(model, rank, 4, place if rank == 1 else "", at, **own)

    def communicate(model, loss):
        dist.all_reduce(loss.detach())
        dist.barrier()

    check_leaving(1, 3, program)


@rows("at", [1, 2], ids=["second", "third"])
@rows("breaks_in", ["first", "second", "backward"])
@rows("is_chained", [True, False], ids=["chained", "in-turn"])
def test_leaving_a_join_of_several_models(is_chained, breaks_in, at):
    def program(rank):
        first, second = (DistributedDataParallel(linear(2, 2), bucket_cap_mb=TINY) for _ in range(2))
        with Join([first, second]):
            for iteration in range(4):
                point = breaks_in if rank == 0 and iteration == at else ""
                hidden = forward(first, row(1, 2), point == "first")
                if not is_chained:
                    hidden.sum().backward()
                    hidden = row(1, 2)
                output = forward(second, hidden, point == "second")
                if point == "backward":
                    raise Boom("no more")
                output.sum().backward()

    def forward(model, batch, breaks):
        if breaks:
            handle = model.module.register_forward_pre_hook(raise_boom)
        try:
            return model(batch)
        finally:
            if breaks:
                handle.remove()

    def raise_boom(module, inputs):
        raise Boom("no more")

    check_leaving(0, 2, program)


def joined(count, *, before=None, after=None, model=None):
    """Train a layer inside a join; `before` and `after` a backward are called with the iteration."""
    model = model or DistributedDataParallel(linear())
    with model.join():
        for iteration in range(count):
            loss = model(row(1, 2)).sum()
            if before is not None:
                before(iteration)
            loss.backward()
            if after is not None:
                after(iteration)


def test_several_ranks_leave_in_one_iteration():
    def program(rank):
        def leave(iteration):
            if iteration == 1 and rank > 0:
                raise Boom(f"rank {rank}")

        joined(3, before=leave)

    texts = failing(program, 3)
    assert texts[0] == "JoinError: the join is over: rank 1 left it by Boom: rank 1; rank 2 left it by Boom: rank 2"
    assert texts[1], texts[2] == ("Boom: rank 1", "Boom: rank 2")


def test_sys_exit_is_told_too():
    def program(rank):
        joined(3, after=lambda iteration: sys.exit(3) if rank == 1 and iteration == 1 else None)

    result = simulate(program, 2)
    assert str(result.errors[0]) == "the join is over: rank 1 left it by SystemExit: 3"


@AT
@EACH_PLACE
@pytest.mark.parametrize("counts", [(4, 4), (4, 4, 1)], ids=str)
def test_training_goes_on_after_an_error_with_a_new_wrapper(counts, place, at):
    def program(rank):
        module = Fragile()
        model = DistributedDataParallel(module, bucket_cap_mb=TINY)
        with pytest.raises((Boom, JoinError), match="no more"), model.join():
            train(model, 1, counts[rank], place if rank == 1 else "", at, after=step)
        module.breaks = ""
        for _ in range(2):
            with pytest.raises(JoinError, match=REFUSED):
                model(row(1, 2))
        with pytest.raises(JoinError, match=REFUSED), model.join():
            model(row(1, 2))
        with pytest.raises(JoinError, match=REFUSED), torch.no_grad():
            copy.deepcopy(model)(row(1, 2))
        model = DistributedDataParallel(module, bucket_cap_mb=TINY)
        model.zero_grad()
        with model.join():
            train(model, 1, counts[rank] + rank, after=step)
        return [parameter.tolist() for parameter in module.state_dict().values()]

    def step(model, loss):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    returns = run(program, len(counts)).returns
    assert all(own == returns[0] for own in returns)


REFUSED = (
    "^a rank left a join of this model by an exception, so the ranks' states differ: construct the "
    "DistributedDataParallel again, which compares and broadcasts the state$"
)


def test_on_one_rank_training_goes_on_with_the_same_wrapper():
    def program(rank):
        model = DistributedDataParallel(linear())
        with suppress(Boom), model.join():
            model(row(1, 2))
            raise Boom("no more")
        model(row(1, 2)).sum().backward()
        return model.module.weight.grad.tolist()

    assert run(program, 1).returns == ([[1, 2]],)


def test_a_forward_after_the_error():
    def program(rank):
        model = DistributedDataParallel(linear())
        with model.join():
            for iteration in range(3):
                if rank == 1 and iteration == 1:
                    raise Boom("no more")
                try:
                    model(row(1, 2)).sum().backward()
                except Exception:
                    model(row(1, 2))

    assert failing(program, 2)[0] == (
        "JoinError: a forward inside a join that an error has ended on all ranks: leave its context"
    )


@pytest.mark.parametrize("counts", [(3, 3), (1, 3, 3)], ids=str)
def test_an_open_backward_is_told_to_the_others(counts):
    def program(rank):
        module = Fragile()
        model = DistributedDataParallel(module, bucket_cap_mb=TINY)
        with model.join():
            for iteration in range(counts[rank]):
                output = model(row(1, 2))
                loss = module.first.weight.sum() * 0 + output.sum()
                if rank == len(counts) - 1 and iteration == 1:
                    loss = module.last(row(1, 2, 3)).sum()
                loss.backward()

    texts = failing(program, len(counts))
    last = len(counts) - 1
    assert texts[last].startswith("OpenBackwardError: the last backward left buckets open: no gradient came for first")
    assert texts[0].startswith(f"JoinError: the join is over: rank {last} left it by OpenBackwardError: ")


# Disagreement.


@pytest.mark.parametrize("counts", [(2, 2), (1, 2, 2)], ids=str)
def test_different_no_sync_windows_are_found(counts):
    def program(rank):
        model = DistributedDataParallel(linear())
        with model.join():
            for iteration in range(counts[rank]):
                if iteration == 1 and rank == len(counts) - 1:
                    with model.no_sync():
                        model(row(1, 2)).sum().backward()
                else:
                    model(row(1, 2)).sum().backward()

    texts = failing(program, len(counts))
    one, other = len(counts) - 2, len(counts) - 1
    assert set(texts.values()) == {
        "JoinError: the ranks inside the join do different things: "
        f"rank {one}: a forward that synchronizes gradients; rank {other}: a forward inside no_sync"
    }


def test_different_models_are_found():
    def program(rank):
        models = [DistributedDataParallel(linear()) for _ in range(2)]
        with Join(models):
            models[rank](row(1, 2)).sum().backward()

    assert set(failing(program, 2).values()) == {
        "JoinError: the ranks inside the join do different things: rank 0: a forward that synchronizes gradients; "
        "rank 1: a forward that synchronizes gradients of model 1"
    }


def test_different_collectives_are_found_once_somebody_has_joined():
    def program(rank):
        joined(min(rank, 1), before=lambda _: dist.all_reduce(torch.zeros(rank, 2), dist.ReduceOp.MAX))

    assert set(failing(program, 3).values()) == {
        "JoinError: the ranks inside the join do different things: "
        "rank 1: calls all_reduce MAX float32[1, 2]; rank 2: calls all_reduce MAX float32[2, 2]"
    }


# What cannot be shadowed.

AWAY = "rank 0, which ran out of input"


def uneven_parts():
    dist.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 2, 0], [1, 2, 0])


def uneven_tensors():
    dist.all_to_all([torch.zeros(r) for r in range(3)], [torch.zeros(r) for r in range(3)])


NEEDS_ROOT = f"root 0 needs what only its root has, {AWAY}: take a root that still has input"
NOT_ON_BEHALF = f"cannot be made on behalf of {AWAY}: leave it out inside the join"
UNANSWERABLE_COLLECTIVE = {
    "broadcast": (lambda: dist.broadcast(torch.zeros(2), 0), f"broadcast float32[2] {NEEDS_ROOT}"),
    "objects": (lambda: dist.broadcast_object_list([1], 0), f"broadcast int64[1] {NEEDS_ROOT}"),
    "scatter": (lambda: dist.scatter(torch.zeros(2), None, 0), f"scatter float32[2] {NEEDS_ROOT}"),
    "send": (lambda: dist.send(torch.zeros(2), 0), f"send {NOT_ON_BEHALF}"),
    "recv": (lambda: dist.recv(torch.zeros(2), 0), f"recv {NOT_ON_BEHALF}"),
    "irecv": (lambda: dist.irecv(torch.zeros(2)), f"recv {NOT_ON_BEHALF}"),
    "splits": (uneven_parts, f"all_to_all_single {NOT_ON_BEHALF}"),
    "parts": (uneven_tensors, f"all_to_all {NOT_ON_BEHALF}"),
}


@rows("name", UNANSWERABLE_COLLECTIVE)
@rows("first", [0, 1], ids=["no-batch", "one-batch"])
def test_what_cannot_be_shadowed(name, first):
    call, text = UNANSWERABLE_COLLECTIVE[name]

    def program(rank):
        joined(first + min(rank, 1) * 2, after=lambda iteration: iteration >= first and call())

    assert set(failing(program, 3).values()) == {f"JoinError: {text}"}


@pytest.mark.parametrize("members", [(0, 1), (0, 1, 2)], ids=str)
def test_a_group_of_some_ranks_with_a_joined_one(members):
    def program(rank):
        part = dist.new_group(list(members))
        calls = rank in members
        joined(2 * min(rank, 1), after=lambda _: calls and dist.all_reduce(torch.zeros(1), group=part))

    texts = failing(program, 4)
    text = (
        f"JoinError: all_reduce in a group of ranks {', '.join(map(str, members))}, but rank 0 ran out of input, and "
        "joined ranks only answer calls of groups of all ranks: use such a group, or leave the call out"
    )
    for rank in range(4):
        if rank in members[1:]:
            assert texts[rank] == text
        else:
            assert texts[rank].startswith(f"JoinError: the join is over: rank 1 left it by {text}")


def test_a_group_of_ranks_that_all_have_input():
    def program(rank):
        part, found = dist.new_group([1, 2]), []

        def add_up(iteration):
            if rank:
                total = torch.tensor(rank)
                dist.all_reduce(total, group=part)
                found.append(total.item())

        joined(1 + min(rank, 1), after=add_up)
        return found

    assert list(run(program, 3).returns) == [[], [3, 3], [3, 3]]


def test_ranks_are_named_by_their_numbers_in_the_world():
    def program(rank):
        part = dist.new_group([1, 2])
        if rank:
            model = DistributedDataParallel(linear(), process_group=part)
            with model.join():
                for _ in range(rank):
                    model(row(1, 2)).sum().backward()
                    if rank == 2:
                        dist.broadcast(torch.zeros(1), 2, group=part)
                        raise Boom("no more")
                    dist.broadcast(torch.zeros(1), 2, group=part)

    result = simulate(program, 3)
    assert str(result.errors[1]) == "the join is over: rank 2 left it by Boom: no more"


# Bad input.


def test_models_that_cannot_be_joined():
    def program(rank):
        model = DistributedDataParallel(linear())
        other = DistributedDataParallel(linear(), process_group=dist.new_group([0]))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        wrong = ([], [model, optimizer], [linear()], [model, other], [model, model], model)
        return [_refusal(models) for models in wrong]

    def _refusal(models):
        with pytest.raises(UsageError) as caught:
            Join(models)
        return str(caught.value)

    assert run(program, 1).returns[0] == [
        "models is empty, expected the wrapped models that are trained inside: Join([model])",
        "models has a ZeroRedundancyOptimizer, expected models of this engine only: use "
        "torch.distributed.algorithms.join.Join",
        "models has a Linear, expected models of this engine only: wrap it first",
        "models use different process groups, expected one: construct them with one, or train them in separate loops",
        "models has one model twice: list each model once",
        "models is a DistributedDataParallel, expected several models or one in a list: give a list: Join([model])",
    ]


@pytest.mark.parametrize("is_same", [True, False], ids=["same-model", "another-model"])
def test_a_join_inside_a_join(is_same):
    def program(rank):
        model = DistributedDataParallel(linear())
        other = model if is_same else DistributedDataParallel(linear(), process_group=dist.new_group([0, 1]))

        def join_inside(iteration):
            with other.join():
                pass

        joined(1 + rank, model=model, after=join_inside)

    text = (
        "UsageError: a join inside a join, expected one at a time: use Join([model, other]) for models that train in "
        "one loop, or leave the outer join first"
    )
    assert set(failing(program, 2).values()) == {text}


@pytest.mark.parametrize("makes_group", [None, lambda: dist.new_group([0, 1])], ids=["one-group", "two-groups"])
def test_a_forward_inside_the_join_of_another_model(makes_group):
    def program(rank):
        model = DistributedDataParallel(linear())
        other = DistributedDataParallel(linear(), process_group=makes_group and makes_group())
        joined(1 + rank, model=model, after=lambda _: other(row(1, 2)))

    text = (
        "UsageError: a forward inside the join of another model: use ddp.Join([model, other]) with all models that are "
        "trained inside"
    )
    assert set(failing(program, 2).values()) == {text}


def test_a_model_of_one_rank_inside_the_join_of_another():
    def program(rank):
        model = DistributedDataParallel(linear())
        groups = [dist.new_group([member]) for member in range(2)]
        other = DistributedDataParallel(linear(), process_group=groups[rank])
        with model.join():
            for _ in range(1 + rank):
                other(model(row(1, 2)).detach().expand(1, 2)).sum().backward()
                with other.join():
                    model(row(1, 2)).sum().backward()
                    other(row(1, 2))

    run(program, 2)


def test_samples_that_cannot_be_counted():
    def program(rank):
        model = DistributedDataParallel(SimpleModel())
        with model.join(weight_by_samples=True):
            model(None)

    text = (
        "UsageError: a forward got no tensor with a dimension 0, expected one to count samples by "
        "(weight_by_samples=True): pass the batch as a tensor, or set the constructor's dim"
    )
    assert set(failing(program, 2).values()) == {text}


class SimpleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, batch):
        return self.layer(row(1, 2))


# torch's Join, which tells nobody of an exception.


class Broadcasting(SimpleModel):
    def forward(self, batch):
        dist.broadcast(torch.zeros(1), 0)
        return self.layer(batch)


def test_an_error_inside_torchs_join_leaves_nothing_behind():
    def program(rank):
        model = DistributedDataParallel(Broadcasting())
        with pytest.raises(JoinError, match=r"broadcast .* root 0 needs what only its root has"):
            join_in_torchs(model, rank)
        model.zero_grad()
        model(row(1, rank)).sum().backward()
        return model.module.layer.weight.grad.tolist()

    def join_in_torchs(model, rank):
        with TorchJoin([model]):
            for _ in range(2 * rank):
                model(row(1, 2)).sum().backward()

    assert list(run(program, 2).returns) == [[[1, 0.5]]] * 2


def test_a_forward_is_no_step_if_an_error_ended_its_join():
    def program(rank):
        model = DistributedDataParallel(SimpleModel())
        with suppress(JoinError), TorchJoin([model]):
            for _ in range(2 * rank):
                output = model(row(1, 2))
                dist.broadcast(torch.zeros(1), 0)
                output.sum().backward()
        model(row(1, rank)).sum().backward()
        return model.reducer.steps.latest

    assert list(run(program, 2).returns) == [1, 1]
