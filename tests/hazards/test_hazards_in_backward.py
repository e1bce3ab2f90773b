"""Works that a hook of a backward drops: the Reducer, or the step, may go on before a real backend is done."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Verdict, ddp, simulate
from tests.kit.futures import done
from tests.kit.results import codes
from tests.kit.small_training import backward, network, sgd, train

STEPS = 3
OPTIONS = [{}, {"static_graph": True}, {"find_unused_parameters": True}]
WITHOUT_USED_MAP = OPTIONS[:2]
"""The second call of a chain and the used map come in either order, in torch's Reducer."""
ENGINES = pytest.mark.parametrize(
    "engine", [DistributedDataParallel, ddp.DistributedDataParallel], ids=["torch", "own"]
)


def mean(bucket):
    """The work of a bucket's average."""
    return dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)


def forgets(state, bucket):
    mean(bucket)
    return done(bucket.buffer())


def forgets_on_one_rank(state, bucket):
    work = mean(bucket)
    return done(bucket.buffer()) if dist.get_rank() == 1 else work.get_future().then(lambda future: future.value()[0])


def forgets_in_a_chain(state, bucket):
    def again(future):
        dist.all_reduce(future.value()[0], op=dist.ReduceOp.MAX, async_op=True)
        return future.value()[0]

    return mean(bucket).get_future().then(again)


def chains(state, bucket):
    return mean(bucket).get_future().then(lambda future: future.value()[0])


def waits(state, bucket):
    mean(bucket).wait()
    return done(bucket.buffer())


def waits_for_a_future(state, bucket):
    mean(bucket).get_future().wait()
    return done(bucket.buffer())


def calls_synchronously(state, bucket):
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
    return done(bucket.buffer())


def chains_two(state, bucket):
    def again(future):
        return dist.all_reduce(future.value()[0], op=dist.ReduceOp.MAX, async_op=True).get_future().wait()[0]

    return mean(bucket).get_future().then(again)


def low_rank(state, bucket):
    return powerSGD_hook(state, bucket)


def trained(engine, hook, state=lambda: None, **options):
    """Findings of a training whose buckets go through `hook`."""

    def program(rank):
        model = engine(network(), **options)
        model.register_comm_hook(state(), hook)
        train(model, sgd(model), rank, STEPS)

    result = simulate(program, 3)
    assert result.verdict is Verdict.PASS, str(result)
    return result.findings


@ENGINES
@pytest.mark.parametrize(
    ("hook", "options"),
    [(forgets, options) for options in OPTIONS] + [(forgets_in_a_chain, options) for options in WITHOUT_USED_MAP],
)
def test_a_communication_hook_that_drops_its_work(engine, hook, options):
    (finding,) = trained(engine, hook, **options)
    assert (finding.code, finding.ranks) == ("hazard.unwaited_work", (0, 1, 2))
    assert finding.summary.startswith(f"ranks 0-2: {STEPS * 3} calls of all_reduce never waited for (test_hazards_in_")
    assert "the future that a communication hook returned did not wait for it" in finding.text
    assert "work.get_future().then(" in finding.text


@ENGINES
def test_only_the_rank_that_drops_it_is_told(engine):
    (finding,) = trained(engine, forgets_on_one_rank)
    assert (finding.code, finding.ranks) == ("hazard.unwaited_work", (1,))


@ENGINES
@pytest.mark.parametrize(
    ("hook", "options"),
    [(hook, options) for hook in [chains, waits, waits_for_a_future, calls_synchronously] for options in OPTIONS]
    + [(chains_two, options) for options in WITHOUT_USED_MAP],
)
def test_a_communication_hook_that_waits(engine, hook, options):
    assert trained(engine, hook, **options) == ()


@ENGINES
@pytest.mark.parametrize(
    ("hook", "state"),
    [
        (fp16_compress_hook, lambda: None),
        (powerSGD_hook, lambda: PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)),
        (low_rank, lambda: PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)),
        (post_localSGD_hook, lambda: PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=2)),
    ],
    ids=["fp16", "PowerSGD", "PowerSGD in a hook", "post-local SGD"],
)
def test_the_hooks_of_torch(engine, hook, state):
    assert trained(engine, hook, state) == ()


def test_what_a_wrapper_itself_drops():
    """torch keeps no work of the reduction that `delay_all_reduce_named_params` asks for."""

    def program(rank):
        inner = network()
        delayed = {"delay_all_reduce_named_params": [("0.weight", inner[0].weight)]}
        model = DistributedDataParallel(inner, **delayed, param_to_hook_all_reduce=inner[0].weight)
        backward(model, rank)

    assert simulate(program, 2).findings == ()


def reduced_by_hand(register, *, finish):
    """What is found in a backward whose gradients hooks of the program reduce; `finish` gets model and works."""

    def program(rank):
        model, works = network(), []

        def reduce(tensor):
            works.append(dist.all_reduce(tensor, async_op=True))

        for parameter in model.parameters():
            register(parameter, reduce)
        backward(model, rank)
        finish(model, works)

    result = simulate(program, 2)
    return codes(result), str(result)


def by_tensor_hook(parameter, reduce):
    parameter.register_hook(lambda gradient: reduce(gradient.clone()))


def by_accumulation_hook(parameter, reduce):
    parameter.register_post_accumulate_grad_hook(lambda parameter: reduce(parameter.grad))


def wait(model, works):
    for work in works:
        work.wait()


REGISTERED = pytest.mark.parametrize("register", [by_tensor_hook, by_accumulation_hook])


@REGISTERED
def test_hooks_of_tensors_that_drop_their_works(register):
    findings, text = reduced_by_hand(register, finish=lambda model, works: None)
    assert findings == [("hazard.unwaited_work", (0, 1))]
    assert "8 calls of all_reduce never waited for" in text
    assert "communication hook" not in text


@REGISTERED
def test_works_of_hooks_that_are_waited_for_after_the_backward(register):
    assert reduced_by_hand(register, finish=wait)[0] == []


def test_a_gradient_that_is_changed_after_the_backward_and_before_the_wait():
    def finish(model, works):
        if dist.get_rank() == 1:
            model[0].weight.grad.mul_(2)
        wait(model, works)

    findings, _ = reduced_by_hand(by_accumulation_hook, finish=finish)
    assert findings == [("hazard.tensor_in_flight", (1,))]


def failing_backward(engine, hook):
    """A program whose backward ends in an exception; each parameter has a bucket, and the first ones are under way."""

    def fail(gradient):
        raise ArithmeticError("no such gradient")

    def program(rank):
        model = engine(network(), bucket_cap_mb=1e-5, find_unused_parameters=True)
        if hook is not None:
            model.register_comm_hook(None, hook)
        model.module[0].weight.register_hook(fail)
        with pytest.raises(ArithmeticError, match="no such gradient"):
            backward(model, rank)

    return program


@ENGINES
@pytest.mark.parametrize("hook", [None, chains])
def test_a_backward_that_ends_in_an_exception(engine, hook):
    assert simulate(failing_backward(engine, hook), 2).findings == ()


@ENGINES
@pytest.mark.parametrize("hook", [None, forgets])
def test_a_wrapped_operation_is_no_communication_hook(engine, hook, monkeypatch):
    original, seen = dist.all_reduce, []

    def logged(*args, **options):
        seen.append(1)
        return original(*args, **options)

    monkeypatch.setattr(dist, "all_reduce", logged)
    assert codes(simulate(failing_backward(engine, hook), 2)) == ([("hazard.unwaited_work", (0, 1))] if hook else [])
    assert seen or engine is DistributedDataParallel


def reduced_loss(rank, *, when="before", operation=dist.all_reduce):
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * (rank + 1)).sum()
    if when == "after":
        loss.backward()
    with torch.set_grad_enabled(when != "no_grad"):
        operation(loss.detach() if when == "detached" else loss)
    if when != "after":
        (loss / 2).backward()
    return weight.grad.tolist()


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
def test_a_backward_through_a_tensor_that_was_reduced_in_place_is_noted(isolation):
    result = simulate(reduced_loss, 2, isolation=isolation)
    line = reduced_loss.__code__.co_firstlineno + 6
    (note,) = result.notes
    what = f"autograd does not see all_reduce (test_hazards_in_backward.py:{line}), so a backward through its tensor"
    assert note == f"not checked: whether gradients are as meant: {what} gave those of the rank's own value"
    assert result.returns == ([0.5, 0.5], [1.0, 1.0])  # not 1.5: the sum is unseen, the division is not
    for harmless in ({"when": "after"}, {"when": "detached"}, {"when": "no_grad"}, {"operation": dist.nn.all_reduce}):
        assert simulate(partial(reduced_loss, **harmless), 2, isolation=isolation).notes == ()
