"""What a rank with virtual GPUs is told by torch: of devices, of tensors, and of what is not there."""

import copy
import io
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ddpsim import Code, UsageError, Verdict, simulate
from tests.kit.results import returned


def run(program, world_size=1, gpus=4):
    result = simulate(program, world_size, isolation="process", gpus=gpus)
    assert not result.errors, str(result)
    assert result.verdict is Verdict.PASS
    return result.returns[0]


def test_devices():
    def program(rank):
        first = torch.cuda.current_device()
        torch.cuda.set_device(2)
        with torch.cuda.device(1):
            inside = torch.cuda.current_device(), str(torch.ones(1).cuda().device)
        free, total = torch.cuda.mem_get_info()
        torch.cuda.reset_peak_memory_stats()
        return {
            "available": (torch.cuda.is_available(), torch.accelerator.is_available(), torch.cuda.device_count()),
            "current": (first, inside, torch.cuda.current_device(), torch.accelerator.current_device_index()),
            "accelerator": str(torch.accelerator.current_accelerator()),
            "name": torch.cuda.get_device_name(0) == torch.cuda.get_device_properties("cuda:1").name,
            "capability": torch.cuda.get_device_capability(),
            "bf16": torch.cuda.is_bf16_supported(),
            "memory": (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), free == total > 0),
            "statistics": torch.cuda.memory_stats()["active_bytes.all.peak"],
            "summary": bool(torch.cuda.memory_summary()),
        }

    assert run(program) == {
        "available": (True, True, 4),
        "current": (0, (1, "cuda:1"), 2, 2),
        "accelerator": "cuda",
        "name": True,
        "capability": (9, 0),
        "bf16": True,
        "memory": (0, 0, True),
        "statistics": 0,
        "summary": True,
    }


def test_cuda_is_initialized_once_a_program_uses_a_gpu():
    """A mesh of GPUs chooses its rank's GPU only before (torch/distributed/device_mesh.py)."""

    def program(rank):
        before = torch.cuda.is_initialized(), torch.cuda.device_count(), torch.cuda.is_initialized()
        init_device_mesh("cuda", (2,))
        return before, torch.cuda.current_device(), torch.cuda.is_initialized()

    told = returned(program, 2, isolation="process", gpus=4)
    assert told == tuple(((False, 4, False), rank, True) for rank in range(2))


def test_streams_and_events():
    def program(rank):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.Stream()
        with torch.cuda.nvtx.range("marks for a profiler"):
            start.record()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor = torch.ones(2, device="cuda")
        tensor.record_stream(stream)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) > 0, end.query()

    assert run(program) == (True, True)


CUDA_0 = {
    "factory": lambda: torch.zeros(2, device="cuda"),
    "factory of a number": lambda: torch.zeros(2, device=0),
    "tensor": lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
    "cuda": lambda: torch.ones(2).cuda(),
    "to": lambda: torch.ones(2).to("cuda", non_blocking=True),
    "to a number": lambda: torch.ones(2).to(0),
    "to another": lambda: torch.ones(2).to(torch.ones(1, device="cuda")),
    "pinned": lambda: torch.ones(2).pin_memory().cuda(non_blocking=True),
    "like": lambda: torch.zeros_like(torch.ones(2, device="cuda")),
    "result": lambda: (torch.ones(2, device="cuda") + 1).sum(),
    "one of several results": lambda: torch.ones(2, device="cuda").chunk(2)[1],
    "parameter": lambda: nn.Linear(2, 2, device="cuda").weight,
    "moved parameter": lambda: nn.Linear(2, 2).to("cuda").weight,
    "parameter moved to a number": lambda: nn.Linear(2, 2).to(0).weight,
    "copied parameter": lambda: copy.deepcopy(nn.Linear(2, 2).cuda()).bias,
    "output": lambda: nn.Linear(2, 2).cuda()(torch.ones(1, 2, device="cuda")),
    "FloatTensor": lambda: torch.cuda.FloatTensor([1.0]),
    "type": lambda: torch.ones(2).type("torch.cuda.DoubleTensor"),
    "generator": lambda: torch.randn(2, device="cuda", generator=torch.Generator("cuda").manual_seed(1)),
}
CPU = {
    "factory": lambda: torch.zeros(2),
    "cpu": lambda: torch.ones(2, device="cuda").cpu(),
    "to": lambda: torch.ones(2, device="cuda").to("cpu", torch.float64),
    "parameter": lambda: nn.Linear(2, 2).cuda().cpu().weight,
}


def test_tensors_say_where_they_are():
    def program(rank):
        return {
            place: {name: (str(make().device), make().is_cuda, make().is_cpu) for name, make in makers.items()}
            for place, makers in (("cuda", CUDA_0), ("cpu", CPU))
        }

    assert run(program) == {
        "cuda": dict.fromkeys(CUDA_0, ("cuda:0", True, False)),
        "cpu": dict.fromkeys(CPU, ("cpu", False, True)),
    }


def test_a_move_copies_only_where_a_device_changes():
    def program(rank):
        on_cpu = torch.zeros(1)
        on_gpu = on_cpu.to("cuda:0")
        on_gpu += 1
        back = on_gpu.cpu()
        back += 1
        leaf = torch.ones(1, requires_grad=True)
        leaf.cuda().sum().backward()
        return {
            "same": (on_gpu.cuda() is on_gpu, on_gpu.to("cuda:0") is on_gpu, on_cpu.cpu() is on_cpu),
            "values": (on_cpu.item(), on_gpu.item(), back.item()),
            "gradient": leaf.grad.item(),
            "other": str(on_gpu.to("cuda:1").device),
            "text": repr(on_gpu),
        }

    assert run(program) == {
        "same": (True, True, True),
        "values": (0, 1, 2),
        "gradient": 1,
        "other": "cuda:1",
        "text": "tensor([1.], device='cuda:0')",
    }


def test_a_default_device():
    def program(rank):
        torch.set_default_device("cuda:1")
        made = str(torch.ones(1).device), str(nn.Linear(1, 1).weight.device)
        torch.set_default_device(None)
        with torch.device("cuda"):
            inside = str(torch.ones(1).device)
        return made, inside, str(torch.ones(1).device)

    assert run(program) == (("cuda:1", "cuda:1"), "cuda:0", "cpu")


def test_hooks_in_a_backward_see_gpus():
    def program(rank):
        seen = []
        parameter = nn.Parameter(torch.ones(1, device="cuda"))
        parameter.register_post_accumulate_grad_hook(lambda each: seen.append(str(each.grad.device)))
        (parameter * 2).sum().backward()
        return seen, str(parameter.grad.device)

    assert run(program) == (["cuda:0"], "cuda:0")


def test_a_gpu_has_a_generator_of_its_own():
    """Its state is a seed and an offset, as on a real GPU; what draws there leaves the CPU's generator alone."""

    def program(rank):
        torch.manual_seed(7)
        state = torch.cuda.get_rng_state()
        on_gpu = torch.randn(2, device="cuda").tolist()
        on_cpu = torch.randn(2).tolist()
        torch.cuda.set_rng_state(state)
        again = torch.randn(2, device="cuda").tolist()
        with torch.random.fork_rng(devices=[0]):
            torch.nn.functional.dropout(torch.ones(4, device="cuda"))
        third = torch.randn(2, device="cuda").tolist()
        generators = [torch.Generator("cuda:1").manual_seed(7) for _ in range(2)]
        given = [torch.rand(2, device="cuda:1", generator=each).tolist() for each in generators]
        torch.manual_seed(7)
        return {
            "states": (len(state), len(torch.cuda.get_rng_state_all()), len(torch.cuda.default_generators)),
            "repeated": (again == on_gpu, third == on_gpu, given[0] == given[1]),
            "cpu": torch.randn(2).tolist() == on_cpu != on_gpu,
        }

    assert run(program) == {"states": (16, 4, 4), "repeated": (True, False, True), "cpu": True}


def test_files():
    def program(rank):
        file = io.BytesIO()
        torch.save({"model": nn.Linear(2, 2).cuda().state_dict(), "steps": [torch.ones(1, device="cuda:1")]}, file)
        places = []
        for place in (None, "cpu", "cuda:1", torch.device("cuda", 2), {"cuda:0": "cuda:3"}):
            file.seek(0)
            loaded = torch.load(file, map_location=place)
            places.append((str(loaded["model"]["weight"].device), str(loaded["steps"][0].device)))
        return places

    pairs = [("cuda:0", "cuda:1"), ("cpu", "cpu"), ("cuda:1", "cuda:1"), ("cuda:2", "cuda:2"), ("cuda:3", "cuda:1")]
    assert run(program) == pairs


def test_mixed_precision():
    def program(rank):
        linear, x = nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda")
        with torch.autocast("cuda"):
            half = linear(x).dtype, torch.is_autocast_enabled("cuda")
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            brain = linear(x).dtype
            with torch.autocast("cuda", enabled=False):
                off = linear(x).dtype
        scaler = torch.amp.GradScaler("cuda")
        optimizer = SimpleNamespace(param_groups=[{"params": list(linear.parameters())}])
        scaler.scale(linear(x).sum()).backward()
        scaled = linear.bias.grad.tolist()
        scaler.unscale_(optimizer)
        return half, brain, off, linear(x).dtype, scaled, linear.bias.grad.tolist(), scaler.is_enabled()

    half, bfloat, full = torch.float16, torch.bfloat16, torch.float32
    assert run(program) == ((half, True), bfloat, full, full, [65536.0] * 2, [1.0] * 2, True)


def test_groups():
    def program(rank):
        torch.cuda.set_device(rank)
        dist.destroy_process_group()
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        total = torch.full((2,), rank + 1.0, device="cuda")
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        every = [torch.empty(1, device="cuda") for _ in range(2)]
        dist.all_gather(every, torch.full((1,), float(rank), device="cuda"))
        names = [None] * 2
        dist.all_gather_object(names, str(total.device))
        dist.barrier(device_ids=[rank])
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        future = [each.tolist() for each in work.get_future().value()]
        mesh = dist.init_device_mesh("cuda", (2,))
        return dist.get_backend(), names, total.tolist(), [str(each.device) for each in every], future, mesh.device_type

    expected = ("nccl", ["cuda:0", "cuda:1"], [3.0, 3.0], ["cuda:0"] * 2, [[3.0, 3.0]], "cuda")
    assert run(program, 2) == expected


def averages(rank, backend):
    """Of 3, -3 and 7, of -4, 0 and 8, in whole numbers."""
    torch.cuda.set_device(rank)
    dist.destroy_process_group()
    dist.init_process_group(backend)
    values = torch.tensor([3, -3, 7] if rank == 0 else [-4, 0, 8], device="cuda")
    scattered = torch.zeros(1, dtype=torch.int32, device="cuda")
    dist.all_reduce(values, op=dist.ReduceOp.AVG)
    dist.reduce_scatter(scattered, list(values[1:].int().split(1)), op=dist.ReduceOp.AVG)
    return values.tolist(), scattered.tolist()


def test_nccl_averages_whole_numbers_and_gloo_does_not():
    """It adds them up and divides in C, towards zero: NCCL's src/device/reduce_kernel.h, FuncSumPostDiv."""
    assert returned(lambda rank: averages(rank, "nccl"), 2, isolation="process", gpus=2) == (
        ([0, -1, 7], [-1]),
        ([0, -1, 7], [7]),
    )
    result = simulate(lambda rank: averages(rank, "gloo"), 2, isolation="process", gpus=2)
    assert "result type Float can't be cast to the desired output type Long" in str(result.errors[0])


def test_sync_batch_norm_is_batch_norm_of_all():
    def program(rank):
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        every = torch.randn(8, 3, 5, dtype=torch.float64)
        model = nn.BatchNorm1d(3).double()
        plain = copy.deepcopy(model)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
        own = every[:2] if rank == 0 else every[2:]
        given, whole = own.cuda().requires_grad_(), every.clone().requires_grad_()
        model(given).pow(3).sum().backward()
        plain(whole).pow(3).sum().backward()
        expected = whole.grad[:2] if rank == 0 else whole.grad[2:]
        dist.all_reduce(model.weight.grad)
        pairs = (
            (given.grad, expected),
            (model.weight.grad, plain.weight.grad),
            (model.running_mean, plain.running_mean),
            (model.running_var, plain.running_var),
        )
        return [(one.is_cuda, torch.allclose(one.cpu(), other)) for one, other in pairs]

    assert run(program, 2) == [(True, True)] * 4


@pytest.mark.parametrize(
    ("use", "line"),
    [
        (
            lambda: nn.functional.ctc_loss(
                torch.ones(4, 1, 3, device="cuda", dtype=torch.half),
                torch.ones(1, 2, dtype=torch.long),
                torch.tensor([4]),
                torch.tensor([2]),
            ),
            "NotImplementedError: aten::_ctc_loss has no form on the CPU, where virtual GPUs compute "
            "(\"ctc_loss_cpu\" not implemented for 'Half'): take another dtype or implementation",
        ),
        (
            lambda: torch.ones(1, device="cuda:4"),
            "RuntimeError: CUDA error: invalid device ordinal: the program asks for cuda:4, and there are 4 virtual "
            "GPUs, numbered from 0: run with --gpus 5, or take another one",
        ),
        (
            lambda: torch.cuda.CUDAGraph(),
            "NotImplementedError: virtual GPUs have no torch.cuda.CUDAGraph: run without CUDA graphs where there is no "
            "GPU",
        ),
        (
            lambda: torch.cuda.graph_pool_handle(),
            "NotImplementedError: virtual GPUs have no torch.cuda.graph_pool_handle: run without CUDA graphs where "
            "there is no GPU",
        ),
        (
            lambda: torch.cuda._compile_kernel("", "scale"),
            "NotImplementedError: virtual GPUs have no torch.cuda._compile_kernel: run without kernels of CUDA source "
            "where there is no GPU",
        ),
        (
            lambda: dist.ProcessGroupNCCL.Options(),
            "NotImplementedError: virtual GPUs have no ProcessGroupNCCL.Options: leave pg_options out where "
            "torch.cuda.get_device_name() is 'ddpsim virtual GPU'",
        ),
    ],
    ids=["kernel", "number", "graph", "pool", "source", "options"],
)
def test_what_is_not_there(use, line):
    result = simulate(lambda rank: use(), 1, isolation="process", gpus=4)
    finding = result.findings[0]
    assert finding.code is Code.RANK_ERROR
    assert finding.summary.startswith(f"rank 0 raised {line} at test_what_programs_hear.py:")


def test_a_group_on_nccl_is_of_torchs_class():
    """ProcessGroupNCCL2, where torch makes that (since 2.15)."""

    def program(rank):
        kinds = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy", "ProcessGroupGloo")
        backend = dist.new_group(backend="nccl")._get_backend(torch.device("cuda"))
        return [name for name in kinds if hasattr(dist, name) and isinstance(backend, getattr(dist, name))]

    plugin = dist.Backend._plugins.get("NCCL")
    is_second = plugin is not None and "nccl2" in plugin.creator_fn.__name__
    assert run(program, gpus=1) == ["ProcessGroupNCCL2" if is_second else "ProcessGroupNCCL"]


def test_symmetric_memory_is_refused():
    def program(rank):
        import torch.distributed._symmetric_memory as memory

        texts = []
        for call in (lambda: memory.empty(4, device="cuda"), lambda: memory.rendezvous(torch.ones(4).cuda(), "0")):
            with pytest.raises(NotImplementedError) as caught:
                call()
            texts.append(str(caught.value).partition(" of torch's ")[2])
        return texts

    line = "SymmetricMemory is not simulated: use collectives, or run on GPUs"
    assert run(program, gpus=1) == [line] * 2


def test_what_is_refused():
    with pytest.raises(UsageError, match=r"^gpus is 0, expected a whole number from 1: correct it"):
        simulate(print, 1, isolation="process", gpus=0)
    with pytest.raises(UsageError, match=r"^gpus is 2, but ranks are threads, .*: give isolation='process', too, or "):
        simulate(print, 1, gpus=2)


def test_what_is_not_there_may_stand_in_annotations():
    def program(rank):
        def captured(graph: torch.cuda.CUDAGraph | None, options: dist.ProcessGroupNCCL.Options | None = None) -> bool:
            return isinstance(graph, torch.cuda.CUDAGraph)

        return captured(None)

    assert run(program) is False


def test_objects_of_a_group_on_nccl():
    def program(rank):
        torch.cuda.set_device(rank)
        dist.destroy_process_group()
        dist.init_process_group("nccl")
        sent, given = [{"rank": rank}], [None]
        dist.broadcast_object_list(sent, src=1)
        dist.scatter_object_list(given, ["a", "b"] if rank == 0 else None, src=0)
        return sent, given

    assert run(program, 2) == ([{"rank": 1}], ["a"])


def test_attention_of_named_arguments_stays_on_its_gpu():
    def program(rank):
        names = ("query", "key", "value")
        tensors = {name: torch.ones(1, 2, 3, 4, device="cuda") for name in names}
        return str(torch.nn.functional.scaled_dot_product_attention(**tensors).device)

    assert run(program) == "cuda:0"


# --- tensors of the wrong device --------------------------------------------------------------------------------------

NO_CPU = "No backend type associated with device type cpu"
TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, "


def on_nccl(rank, device=None):
    torch.cuda.set_device(rank if device is None else device)
    return dist.new_group(backend="nccl")


def reduces(make, device=None):
    """Return a program that reduces the tensor that `make` returns for a rank, on NCCL."""

    def program(rank):
        group = on_nccl(rank, device)
        tensor = make(rank)
        dist.all_reduce(tensor, group=group)
        return tensor.sum().item()

    return program


def wraps(place):
    """Return a program that wraps a model in DDP on NCCL, after `place` has put it somewhere."""

    def program(rank):
        group = on_nccl(rank)
        nn.parallel.DistributedDataParallel(place(nn.Linear(2, 1), rank), process_group=group)
        return 1.0

    return program


REFUSED = {
    "of the CPU": (reduces(lambda rank: torch.ones(1)), NO_CPU, (0, 1)),
    "moved to the CPU": (reduces(lambda rank: torch.ones(1, device="cuda").to("cpu")), NO_CPU, (0, 1)),
    "of the CPU on rank 1": (reduces(lambda rank: torch.ones(1) if rank else torch.ones(1).cuda()), NO_CPU, (1,)),
    "a model of the CPU": (wraps(lambda model, rank: model), NO_CPU, (0, 1)),
    "one GPU": (reduces(lambda rank: torch.ones(1, device="cuda"), 0), "both on CUDA device 0", (0, 1)),
    "models on one GPU": (wraps(lambda model, rank: model.to(0)), "both on CUDA device 0", (0, 1)),
    "of two GPUs": (
        reduces(lambda rank: torch.ones(1, 2, device="cuda") @ torch.ones(2, 2, device="cuda:0")),
        f"{TWO_DEVICES}cuda:1 and cuda:0!",
        (1,),
    ),
    "of a GPU and the CPU": (
        reduces(lambda rank: nn.Linear(2, 1).cuda()(torch.ones(1, 2))),
        f"{TWO_DEVICES}cuda:0 and cpu!",
        (0,),
    ),
}


@pytest.mark.parametrize(("program", "message", "ranks"), REFUSED.values(), ids=REFUSED)
def test_tensors_whose_device_cuda_or_nccl_refuses(program, message, ranks):
    result = simulate(program, 2, isolation="process", gpus=2)
    assert result.findings[0].code is Code.RANK_ERROR
    assert all(message in str(result.errors[rank]) for rank in ranks)


def staged(rank):
    host = torch.empty(2)
    host.copy_(torch.ones(2, device="cuda"))
    host += torch.ones(2)
    assert host.device.type == "cpu"
    return host.cuda() * torch.tensor(2.0)


def by_its_data(rank):
    parameter = nn.Linear(1, 1).weight
    parameter.data = torch.ones(1, device="cuda")
    return parameter.data


ALLOWED = {
    "on its own GPU": (reduces(lambda rank: torch.ones(1, device="cuda")), 2.0),
    "a number of the CPU": (reduces(lambda rank: torch.ones(1).cuda() * torch.tensor(2.0)), 4.0),
    "through a buffer of the CPU": (reduces(staged), 16.0),
    "by its data": (reduces(by_its_data), 2.0),
    "by its keyword": (wraps(lambda model, rank: model.to(device=torch.device("cuda", rank))), 1.0),
    "by the default device": (reduces(lambda rank: [torch.set_default_device("cuda"), torch.ones(1)][1]), 2.0),
}


@pytest.mark.parametrize(("program", "value"), ALLOWED.values(), ids=ALLOWED)
def test_tensors_whose_device_is_right(program, value):
    result = simulate(program, 2, isolation="process", gpus=2)
    assert (result.returns, result.notes) == ((value, value), ())


def test_more_ranks_than_gpus_may_be_on_several_machines():
    assert returned(reduces(lambda rank: torch.ones(1, device="cuda"), 0), 2, isolation="process", gpus=1) == (2.0, 2.0)


def test_objects_go_through_nccl_on_the_current_gpu():
    def program(rank):
        group, found = on_nccl(rank), [None, None]
        dist.all_gather_object(found, rank, group=group)
        return found

    assert returned(program, 2, isolation="process", gpus=2) == ([0, 1],) * 2


def test_a_saved_tensor_has_nothing_of_ours():
    def program(rank):
        file = io.BytesIO()
        torch.save(torch.ones(2), file)
        file.seek(0)
        return sorted(torch.load(file).__dict__)

    assert run(program) == []


@pytest.mark.parametrize("on_nccl", [True, False])
def test_the_last_wait_is_for_all_earlier_collectives_on_nccl_alone(on_nccl):
    """As fairscale relies on (ShardedDataParallel.sync_buffers)."""

    def program(rank):
        dist.destroy_process_group()
        dist.init_process_group("nccl" if on_nccl else "gloo")
        tensors = [torch.ones(2, device=f"cuda:{rank}" if on_nccl else "cpu") for _ in range(3)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        works[1].wait()
        tensors[0].add_(1)
        if rank == 1:
            works[2].wait()

    result = simulate(program, 2, isolation="process", gpus=2)
    unwaited = [each.ranks for each in result.findings if each.code is Code.HAZARD_UNWAITED_WORK]
    changed = [each.ranks for each in result.findings if each.code is Code.HAZARD_TENSOR_IN_FLIGHT]
    assert (unwaited, changed) == (([(0,)], []) if on_nccl else ([(0, 1)], [(0, 1)]))


def test_softmax_of_half_precision_comes_to_single_precision():
    def program(rank):
        told = []
        for function in (nn.functional.softmax, nn.functional.log_softmax):
            x, scale = torch.randn(3, 5, device="cuda", dtype=torch.half, requires_grad=True), torch.arange(5.0)
            with torch.autocast("cuda"):
                y = function(x, dim=-1)
            (y.cpu() * scale).sum().backward()
            single = x.detach().float().cpu().requires_grad_()
            (function(single, dim=-1) * scale).sum().backward()
            told.append((y.dtype, torch.equal(y.cpu(), function(single, dim=-1)), x.grad.dtype))
            told.append(torch.equal(x.grad.cpu(), single.grad.half()))
        return told

    assert run(program) == [(torch.float32, True, torch.half), True] * 2
