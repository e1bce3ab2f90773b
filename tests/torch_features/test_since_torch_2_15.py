"""What torch 2.14 and 2.15 brought: functions, hooks, and options of DDP, FSDP2 and pipelining. Skipped before.

On real gloo, which has to say the same:

    torchrun --nproc-per-node 2 -m tests.torch_features.test_since_torch_2_15
"""

from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

from ddpsim import simulate
from tests.kit.results import returned

IS_THERE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)

pytestmark = pytest.mark.skipif(not IS_THERE, reason=f"torch is {torch.__version__}, expected 2.15")

WORLD_SIZE = 2
PER_EDGE = "pipeline_per_edge_p2p"


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def inputs(rank):
    return torch.arange(8.0).reshape(2, 4) * (rank + 1) / 8


def mean_gradients():
    model = network()
    (sum(model(inputs(rank)).square().sum() for rank in range(WORLD_SIZE)) / WORLD_SIZE).backward()
    return [each.grad for each in model.parameters()]


def told(gradients):
    return [
        round(float(each.full_tensor().sum() if hasattr(each, "full_tensor") else each.sum()), 4) for each in gradients
    ]


def lazy_buckets(rank):
    model = DistributedDataParallel(network(), lazy_bucket_allocation=True)
    for _ in range(2):
        model.zero_grad()
        model(inputs(rank)).square().sum().backward()
    return told(each.grad for each in model.parameters())


def finalized_by_hand(rank):
    model = DistributedDataParallel(network())
    model.require_manual_backward_finalization = True
    for _ in range(2):
        model.zero_grad()
        model(inputs(rank)).square().sum().backward()
        model.finalize_backward()
    return told(each.grad for each in model.parameters())


def sharded(model, **options):
    fully_shard(model[0], **options)
    return fully_shard(model, **options)


def sharded_finalized_by_hand(rank):
    model = sharded(network())
    model.set_manual_backward_finalization(True)
    model(inputs(rank)).square().sum().backward()
    model.finalize_backward(async_op=True).wait()
    return told(each.grad for each in model.parameters())


def sharded_and_kept(rank):
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, param_dtype_override_fn=lambda parameter: None)
    model = sharded(network(), mp_policy=policy)
    model.set_keep_unsharded_storage(True)
    for _ in range(2):
        model.zero_grad()
        model(inputs(rank)).square().sum().backward()
    return told(each.grad for each in model.parameters())


TRAININGS = [lazy_buckets, finalized_by_hand, sharded_finalized_by_hand, sharded_and_kept]


def piped(rank, per_edge=False, **options):
    looped = bool(options)
    with dist.config.patch(**{PER_EDGE: per_edge}):
        torch.manual_seed(0)
        count = 2 * WORLD_SIZE if looped else WORLD_SIZE
        model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(count)])
        numbers = [rank, rank + WORLD_SIZE] if looped else [rank]
        stages = [PipelineStage(model[number], number, count, torch.device("cpu")) for number in numbers]
        kind, given = (ScheduleInterleaved1F1B, stages) if looped else (Schedule1F1B, stages[0])
        schedule = kind(given, 4, loss_fn=lambda output, target: (output - target).square().sum(), **options)
        data, last = torch.ones(8, 3), any(stage.is_last for stage in stages)
        losses = []
        arguments = (data,) if rank == 0 else ()
        schedule.step(*arguments, finalize_gradients=True, **({"target": data, "losses": losses} if last else {}))
        return [round(float(model[number].weight.grad.sum()), 4) for number in numbers], len(losses)


def piped_per_edge(rank):
    return piped(rank, per_edge=True)


def piped_with_options(rank):
    return piped(rank, max_active_stages=1, unshard_lookahead="full", defer_reduce_grad_wait=True)


PIPELINES = [piped, piped_per_edge, piped_with_options]


def error_of(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].partition('. ')[0]}"


class Plain:
    pass


def objects(rank):
    def both(call, good, bad):
        return [error_of(partial(call, value)) for value in (good, bad)]

    def gathered(value):
        found = [None] * WORLD_SIZE
        dist.all_gather_object(found, value, weights_only=True)
        return found

    def gathered_on_0(value):
        found = [None] * WORLD_SIZE if rank == 0 else None
        dist.gather_object(value, found, weights_only=True)
        return found

    def broadcast(value):
        found = [value]
        dist.broadcast_object_list(found, src=1, weights_only=True)
        return found

    def scattered(value):
        found = [None]
        dist.scatter_object_list(found, [value] * WORLD_SIZE if rank == 0 else None, weights_only=True)
        return found

    def sent(value):
        found = [value]
        if rank == 0:
            dist.send_object_list(found, 1)
        else:
            dist.recv_object_list(found, 0, weights_only=True)
        return found if rank == 1 or isinstance(value, dict) else None

    return [both(call, {"a": 1}, Plain()) for call in (gathered, gathered_on_0, broadcast, scattered, sent)]


def hooks(rank):
    group, seen, works = dist.group.WORLD, [], []

    def ahead(told):
        shapes = [[tuple(each.shape) for each in tensors] for tensors in (told.input_tensors, told.output_tensors)]
        seen.append((told.name.name, told.op_id, told.root, told.async_op, *shapes))

    def afterwards(told):
        seen.append((told.name.name, told.op_id, told.async_op))
        works.append(told.work)

    dist.barrier()  # not counted
    group.register_pre_hook(9, lambda told: seen.append(9))
    group.register_pre_hook(3, ahead)
    group.register_post_hook(1, afterwards)
    one, two = torch.ones(1), torch.ones(2)
    dist.all_reduce(one, async_op=True).wait()
    dist.all_gather_into_tensor(two, one)
    dist.all_gather([one.clone(), one.clone()], one)
    dist.reduce(one, 1)
    dist.scatter(one, [one.clone(), one.clone()] if rank == 0 else None)
    dist.all_to_all_single(two.clone(), two)
    dist.send(one, 1) if rank == 0 else dist.recv(one, 0)
    dist.barrier()
    group.unregister_pre_hook(9)
    model = DistributedDataParallel(nn.Linear(1, 1))
    model(one).sum().backward()
    seen.append(error_of(lambda: dist.gather_single(one, two if rank == 0 else None)))
    group.unregister_post_hook(1)
    group.register_pre_hook(3, lambda told: 1 / 0)
    seen.append(error_of(lambda: dist.all_reduce(one)))
    group.unregister_pre_hook(3)
    dist.all_reduce(one)
    return seen, all(work.is_completed() for work in works)


def nan_found(rank):
    nan = torch.tensor([1.0, float("nan")])
    hook = distributed_c10d.NanCheckHook.attach(dist.group.WORLD)
    found = error_of(lambda: dist.all_reduce(nan))
    dist.all_reduce(torch.ones(1))
    hook.remove()
    return found, error_of(lambda: dist.all_reduce(nan))


def functions(rank):
    group, alone = dist.group.WORLD, dist.new_group([1])
    dist.set_timeout(timedelta(seconds=7))
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    half = dist.split_group(split_ranks=[[1]])
    return [
        work.timeout.total_seconds(),
        dist.get_backend_impl().name(),
        isinstance(dist.get_backend_impl("0", torch.device("cpu")), dist.ProcessGroupGloo),
        [error_of(lambda: dist.set_timeout(timedelta(1), alone)), error_of(lambda: dist.get_backend_impl(alone))][
            rank:
        ],
        error_of(lambda: dist.get_backend_impl("nobody")),
        error_of(lambda: dist.get_backend_impl(device=torch.device("meta"))),
        error_of(lambda: dist.shrink_group([1 - rank])),
        error_of(distributed_c10d._new_window),
        error_of(lambda: group.register_abort_hook(1, print)),
        half is dist.GroupMember.NON_GROUP_MEMBER,
    ][: 9 if rank else None]


def reconfigured(rank):
    """The last rank leaves and comes back, under another number; what is wrong is refused in gloo's words."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), enable_reconfigure=True)
    group, store = dist.group.WORLD, dist.PrefixStore("told", dist.group.WORLD.get_group_store())

    def handles(name):
        store.set(f"{name} {rank}", dist._get_reconfigure_handle())
        return [store.get(f"{name} {each}").decode() for each in range(WORLD_SIZE)]

    def become(uuid, handles, **options):
        dist._reconfigure(uuid, handles, **options).wait()
        total = torch.ones(2)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((2,), float(dist.get_world_size())))
        return dist.get_rank(), dist.get_world_size(), group.size()

    seen = [error_of(dist.barrier), dist._supports_reconfigure(), group.get_reconfigure_handle()[:11]]
    first = handles("first")
    for wrong in ([], [first[0]] * 2, ["nobody"], ["gloo:7:-1:7:"]):
        seen.append(error_of(partial(dist._reconfigure, 1, wrong)))
    seen += [become(1, first[::-1]), error_of(partial(dist._reconfigure, 2, first))]
    seen.append(become(3, set(handles("set"))))
    seen.append(become(10 + rank, [dist._get_reconfigure_handle()]))
    seen.append(error_of(partial(dist._reconfigure, 10 + rank, [dist._get_reconfigure_handle()])))
    alone = [dist._get_reconfigure_handle(), "gloo:7:1:7:"]
    missing = error_of(partial(dist._reconfigure, 20 + rank, alone, timeout=timedelta(seconds=1)))
    seen += [missing.split(",")[0], dist.get_world_size()]
    group.abort()
    seen.append(become(4, handles("last")))
    model = DistributedDataParallel(network())  # C++ asks for the size, too
    model(inputs(dist.get_rank())).square().sum().backward()
    return seen, told(each.grad for each in model.parameters())


OTHERS = [objects, hooks, nan_found, functions, reconfigured]


@pytest.mark.parametrize("program", TRAININGS)
def test_trainings_have_the_gradients_of_one_process(program):
    assert returned(program, WORLD_SIZE) == (told(mean_gradients()),) * WORLD_SIZE


@pytest.mark.parametrize("is_finalized", [True, False])
def test_a_step_before_the_gradients_are_final_is_found(is_finalized):
    def program(rank):
        model = DistributedDataParallel(network())
        model.require_manual_backward_finalization = True
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(inputs(rank)).square().sum().backward()
        if is_finalized:
            model.finalize_backward()
        optimizer.step()
        model.finalize_backward() if not is_finalized else None

    codes = [str(finding.code) for finding in simulate(program, WORLD_SIZE).findings]
    assert codes == [] if is_finalized else ["divergence.parameters"]


def test_pipelines_are_as_without_options():
    plain, per_edge, with_options = [returned(program, WORLD_SIZE) for program in PIPELINES]
    assert plain == per_edge
    assert [losses for _, losses in with_options] == [0, 4]


REFUSED = "UnpicklingError: Weights only load failed"


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_objects_are_read_as_weights():
    value = {"a": 1}
    on_0, on_1 = returned(objects, WORLD_SIZE)
    assert on_0 == [
        [[value] * 2, REFUSED],
        [[value] * 2, REFUSED],
        [[value], REFUSED],
        [[value], REFUSED],
        [[value], None],
    ]
    assert on_1[:2] == [[[value] * 2, REFUSED], [None, None]]
    assert on_1[2][0] == [value]  # the sender reads nothing
    assert on_1[3:] == [[[value], REFUSED], [REFUSED, REFUSED]]  # torch's recv reads none, on gloo neither


def test_hooks_are_called_around_each_call():
    (seen, complete), _ = returned(hooks, WORLD_SIZE)
    assert complete
    assert seen[:6] == [
        ("ALLREDUCE", 0, -1, True, [(1,)], []),
        9,
        ("ALLREDUCE", 0, True),
        ("ALLGATHER_BASE", 1, -1, False, [(1,)], [(2,)]),
        9,
        ("ALLGATHER_BASE", 1, False),
    ]
    assert [each[0] for each in seen if type(each) is tuple and len(each) == 3] == [
        *("ALLREDUCE", "ALLGATHER_BASE", "ALLGATHER", "REDUCE", "SCATTER", "ALLTOALL_BASE", "SEND", "BARRIER"),
        *("BROADCAST", "BROADCAST", "ALLREDUCE"),
    ]
    assert seen[-3:] == [
        ("GATHER", 11, 0, False, [(1,)], [(2,)]),
        "RuntimeError: Backend gloo does not support gather_single",
        "ZeroDivisionError: division by zero",
    ]


def test_nan_is_found_before_it_is_sent(monkeypatch):
    assert returned(nan_found, 2) == (("RuntimeError: NaN found in input tensor.", None),) * 2
    monkeypatch.setenv("TORCH_DIST_NAN_CHECK", "1")
    result = simulate(lambda rank: dist.all_reduce(torch.tensor([float("nan")])), 2)
    assert "RuntimeError: NaN found in input tensor." in str(result)


def test_functions_answer_as_on_gloo():
    on_0, on_1 = returned(functions, WORLD_SIZE)
    outside = "ValueError: Invalid process group specified"
    assert on_0[:3] == on_1[:3] == [7.0, "gloo", True]
    assert on_0[3] == [outside, outside]
    assert on_0[4:] == [
        "RuntimeError: Could not resolve the process group registered under the name nobody",
        "RuntimeError: No backend type associated with device type meta",
        "TypeError: Process group backend for '0' does not support shrinking operations.",
        "RuntimeError: Backend gloo does not support new_window",
        "RuntimeError: Backend gloo does not support registerAbortHook",
        True,
    ]


def test_a_group_of_gloo_gets_other_members():
    on_0, on_1 = returned(reconfigured, WORLD_SIZE)
    assert on_0[1] == on_1[1] == told(mean_gradients())
    assert on_0[0][2::3][0] == "gloo:0:-1:0"
    assert on_0[0][:2] + on_0[0][3:] == [
        "RuntimeError: ProcessGroupGloo has not been initialized",
        True,
        "RuntimeError: Reconfigure requires at least one handle",
        "RuntimeError: Reconfigure handles must be unique",
        "RuntimeError: Invalid Gloo reconfigure handle: nobody",
        "RuntimeError: Local Gloo reconfigure handle is not part of the new communicator",
        (1, 2, 2),
        "RuntimeError: Local Gloo reconfigure handle is not part of the new communicator",
        (1, 2, 2),
        (0, 1, 1),
        "RuntimeError: Gloo reconfigure uuid 10 was already used; each reconfigure() requires a unique uuid",
        "DistStoreError: wait timeout after 1000ms",
        1,
        (0, 2, 2),
    ]
    assert on_1[0][7:10] == [(0, 2, 2), on_0[0][8], (0, 2, 2)]


@pytest.mark.parametrize("is_same", [True, False])
def test_ranks_that_give_another_uuid_do_not_meet(is_same):
    def program(rank):
        dist.destroy_process_group()
        dist.init_process_group("gloo", enable_reconfigure=True)
        handles = [f"gloo:{each}:-1:{each}:" for each in range(WORLD_SIZE)]
        dist._reconfigure(1 if is_same else 1 + rank, handles)
        dist.all_reduce(torch.ones(1))

    result = simulate(program, WORLD_SIZE)
    assert {str(each.code) for each in result.findings} == (set() if is_same else {"rank_error"})
    assert is_same or "/reconfigure/2/cpu/0" in str(result)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    me = dist.get_rank()
    for program in (*TRAININGS, *PIPELINES, *OTHERS):
        answer = error_of(lambda program=program: program(me))
        for rank in range(WORLD_SIZE):
            dist.barrier()
            if rank == me:
                print(program.__name__, me, answer, flush=True)
    dist.destroy_process_group()
