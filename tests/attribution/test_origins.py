"""What calls belong to: read from what torch's own DDP does, unmodified; and that meeting the wrong one is found."""

import contextlib
import copy
import importlib.util

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddpsim import simulate
from ddpsim.simulator.attribution import phases
from ddpsim.simulator.calls import Phase
from ddpsim.simulator.events import EventKind
from tests.kit.results import codes
from tests.kit.running import run
from tests.kit.small_training import backward, inputs, network, sgd, train, wrapped


def origins(result, rank=0):
    return [e.call.origin for e in result.trace if e.kind is EventKind.ISSUE and e.rank == rank]


def described(result, rank=0):
    return [
        (o.phase.value, o.bucket, o.step, *(["shadow"] if o.shadow else []))
        for o in origins(result, rank)
        if o.phase not in (Phase.PARAMETER_CHECK, Phase.STATE_BROADCAST)
    ]


def found(program, world_size=2, **options):
    result = simulate(program, world_size, **options)
    return codes(result), result


# --- what each phase of DDP is called ---------------------------------------------------------------------------------


def test_buckets_and_their_parameters_before_and_after_the_rebuild():
    def program(rank):
        model = wrapped(bucket_cap_mb=1e-5)
        for _ in range(3):
            backward(model, rank)

    result = run(program, 2)
    first, *later = [origin for origin in origins(result) if origin.phase is Phase.BUCKET]
    assert (first.bucket, first.step, first.parameters) == (0, 1, ("0.weight", "0.bias", "1.weight", "1.bias"))
    assert [(origin.bucket, origin.step) for origin in later] == [(0, 2), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3)]
    assert [origin.parameters for origin in later[:3]] == [("1.bias", "1.weight"), ("0.bias",), ("0.weight",)]
    assert [origin.phase for origin in origins(result)].count(Phase.REBUILD) == 2


def test_buffers_belong_to_the_forward_that_they_precede():
    def program(rank):
        model = wrapped(normalised=True, find_unused_parameters=True)
        for _ in range(2):
            backward(model, rank)

    buffers = [("buffers", None), ("buffers", None)]
    step = [*buffers, ("bucket", 0), ("used map", None)]
    assert described(run(program, 2)) == [(*phase, number) for number in (1, 2) for phase in step]


def test_the_user_s_own_calls_in_forward_and_backward_are_the_user_s():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()
            self.inner[0].weight.register_hook(lambda gradient: dist.all_reduce(torch.ones(7)))

        def forward(self, x):
            dist.all_reduce(torch.ones(3))
            return self.inner(x)

    def program(rank):
        backward(DistributedDataParallel(Model()), rank)

    result = run(program, 2)
    users = [e.call for e in result.trace if e.kind is EventKind.ISSUE and e.call.origin.phase is Phase.USER]
    assert sorted(call.signature.shapes for call in users if call.rank == 0) == [((3,),), ((7,),)]


def test_join_control_and_shadows():
    def program(rank):
        model = wrapped(normalised=True, find_unused_parameters=True)
        with model.join():
            for _ in range(rank):
                backward(model, rank)

    result = run(program, 2)
    control, buffers = ("join control", None), ("buffers", None)
    step = [control, control, buffers, buffers, control, ("bucket", 0), ("used map", None)]
    shadow, last = [(*phase, None, "shadow") for phase in step], ("join control", None, None, "shadow")
    final = ("join control", None, 1)
    assert described(result, 0) == [*shadow, last, final]
    assert described(result, 1) == [*((*phase, 1) for phase in step), last, final]
    notes = [(event.rank, event.text) for event in result.trace if event.kind is EventKind.NOTE]
    assert notes == [(0, "joined at step 0"), (1, "joined at step 1")]


@pytest.mark.parametrize("hook", [default_hooks.fp16_compress_hook, default_hooks.allreduce_hook])
def test_calls_of_a_communication_hook_are_its_bucket_s(hook):
    def program(rank):
        model = wrapped(bucket_cap_mb=1e-5)
        model.register_comm_hook(None, hook)
        with model.join():
            for _ in range(1 + 2 * rank):
                backward(model, rank)

    result = run(program, 2)
    buckets = [(o.bucket, o.step) for o in origins(result, 1) if o.phase is Phase.BUCKET]
    assert buckets == [(0, 1), (0, 2), (1, 2), (2, 2), (0, 3), (1, 3), (2, 3)]
    assert [o.bucket for o in origins(result, 0) if o.phase is Phase.BUCKET and o.shadow] == [0, 1, 2, 0, 1, 2]
    assert not any(origin.phase is Phase.USER for origin in origins(result, 1))


def test_chained_calls_of_powersgd_are_the_bucket_s():
    def program(rank):
        model = wrapped()
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(3):
            backward(model, rank)

    result = run(program, 2)
    buckets = [(o.phase, o.bucket, o.step) for o in origins(result) if o.step == 3]
    assert buckets == [(Phase.BUCKET, 0, 3)] * 3


def test_a_buffer_hook_s_calls_are_buffers():
    from torch.nn.parallel.distributed import _BufferCommHookLocation

    def average(state, buffers):
        for buffer in buffers.values():
            dist.all_reduce(buffer)

    def program(rank):
        model = wrapped(normalised=True)
        model._register_buffer_comm_hook(None, average, _BufferCommHookLocation.POST_FORWARD)
        backward(model, rank)

    assert described(run(program, 2)) == [("buffers", None, 1)] * 3 + [("bucket", 0, 1)]


@pytest.mark.parametrize("count", [1, 2])
def test_static_graph(count):
    def program(rank):
        models = [wrapped(seed=seed, static_graph=True) for seed in range(count)]
        for _ in range(3):
            sum(model(inputs(rank)).sum() for model in models).backward()

    buckets = [(o.wrapper, o.step) for o in origins(run(program, 2)) if o.phase is Phase.BUCKET]
    assert sorted(buckets) == [(wrapper, step) for wrapper in range(count) for step in (1, 2, 3)]


def test_wrappers_are_numbered_within_their_group():
    def program(rank):
        alone = dist.new_group([0])
        if rank == 0:
            backward(wrapped(process_group=alone), rank)
        first, second = wrapped(), wrapped(seed=1)
        backward(second, rank)
        backward(first, rank)

    result = run(program, 2)
    for rank in (0, 1):
        calls = [e.call for e in result.trace if e.kind is EventKind.ISSUE and e.rank == rank]
        buckets = [c.origin.wrapper for c in calls if c.origin.phase is Phase.BUCKET and c.group == "default"]
        assert buckets == [1, 0]


def test_nothing_stays_behind():
    replaced = (
        (DistributedDataParallel, "_ddp_init_helper"),
        (dist.Reducer, "prepare_for_forward"),
        (dist.Reducer, "prepare_for_backward"),
        (dist, "_register_comm_hook"),
    )
    before = [getattr(owner, name) for owner, name in replaced]

    def program(rank):
        models = [wrapped(), wrapped(seed=1)]
        for model in models:
            backward(model, rank)
        return [parameter for model in models for parameter in model.module.parameters()]

    result = run(program, 2, check="replicas")
    assert [getattr(owner, name) for owner, name in replaced] == before
    parameters = [parameter for parameters in result.returns for parameter in parameters]
    assert not any(parameter._post_accumulate_grad_hooks for parameter in parameters)


def test_another_engine_declares_its_phases():
    source = """
import torch, torch.distributed as dist
__ddp_phases__ = {"_launch": "bucket"}
class Engine:
    def __init__(self):
        self.process_group = dist.group.WORLD
    def __ddp_call__(self):
        return {"bucket": 2, "step": 5, "parameters": ["w"]}
    def _launch(self):
        dist.all_reduce(torch.ones(1))
"""

    def program(rank):
        module = {}
        exec(source, module)
        engine = module["Engine"]()
        engine._launch()
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()

    (origin,) = origins(
        run(program, 2, check="replicas-if-any")
    )  # which leaves a wrapper alone that has no inner module
    assert (origin.phase, origin.wrapper, origin.bucket, origin.step) == (Phase.BUCKET, 0, 2, 5)
    assert origin.parameters == ("w",)


# --- programs that are wrong, and that no backend notices -------------------------------------------------------------


def test_an_extra_forward_looks_the_same_until_then_and_the_text_says_so():
    def program(rank, guard=contextlib.nullcontext):
        model = wrapped()
        for step in range(4):
            if rank == 0 and step == 2:
                with guard():
                    model(inputs(rank))
            backward(model, rank)

    codes, result = found(program)
    assert codes == [("mismatch.origin", (0, 1))]
    assert "rank 0 ran more synchronising forwards" in str(result)
    assert "or its loss did not reach the parameters" in str(result)
    assert "a forward needed no backward, which does no harm" in str(result)
    assert "an extra forward under torch.no_grad()" in str(result)
    run(lambda rank: program(rank, torch.no_grad), 2)


def test_a_surplus_bucket_meets_a_metric():
    def program(rank):
        model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        for _ in range(3 if rank == 0 else 2):
            backward(model, rank)
        if rank != 0:
            dist.all_reduce(torch.ones(4))

    codes, result = found(program, 4)
    assert codes == [("mismatch.origin", (0,))]
    assert "DDP #0 bucket 0 of step 3 (weight)" in str(result)
    assert "the user's program" in str(result)
    assert "more synchronising forwards" not in str(result)


# --- programs that are right ------------------------------------------------------------------------------------------


def join_with_evaluation(rank):
    model = wrapped(normalised=True)
    with model.join():
        for _ in range(2 * rank):
            backward(model, rank)
            if rank == 1:
                with torch.no_grad():
                    model.module(inputs(rank))


def no_sync_as_often_as_each_likes(rank):
    model = wrapped()
    for step in range(3):
        with model.no_sync():
            for _ in range(rank + step):
                backward(model, rank)
        backward(model, rank)


def a_subclass_with_bucket_views(rank):
    class Subclass(DistributedDataParallel):
        pass

    model = Subclass(network(normalised=True), gradient_as_bucket_view=True)
    for _ in range(3):
        backward(model, rank)


def a_copy(rank):
    model = wrapped()
    other = copy.deepcopy(model)
    backward(model, rank)
    backward(other, rank)


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize(
    "program",
    [
        join_with_evaluation,
        no_sync_as_often_as_each_likes,
        a_subclass_with_bucket_views,
        a_copy,
    ],
)
def test_no_false_alarm(program, policy):
    run(program, 3, policy=policy)


def test_iterations_of_the_rank_that_ran_out():
    def program(rank):
        model = wrapped()
        train(model, sgd(model), rank, 3 - rank)

    codes, result = found(program)
    assert codes == [("deadlock.missing_rank", (1,))]
    assert "returned after all_reduce #6 (2 iterations)" in str(result)
    assert "DDP #0 bucket 0 of step 3 (1.bias, 1.weight, 0.bias, 0.weight)" in str(result)
    assert "with model.join():" in str(result)
    steps = [(event.rank, event.text) for event in result.trace if event.kind is EventKind.STEP]
    assert sorted(steps) == [(0, "1"), (0, "2"), (1, "1"), (1, "2")]


def test_the_modules_whose_frames_issue_calls_exist():
    assert all(importlib.util.find_spec(name) is not None for name in phases._ISSUING)
