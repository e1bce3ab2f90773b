"""What watches calls on their way through torch: dispatch modes, function modes, fake tensors, the profiler."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ddpsim import UsageError, Verdict, simulate
from tests.kit.results import returned
from tests.kit.small_training import sgd, train, wrapped

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")

ISOLATIONS = [pytest.param("thread"), pytest.param("process", marks=pytest.mark.tier("ci"))]


class Seen(TorchDispatchMode):
    """Lists the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    """Lists the functions that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def _every_collective(rank: int) -> None:
    pair = [torch.ones(2), torch.ones(2)]
    dist.all_reduce(torch.ones(2))
    dist.reduce(torch.ones(2), 0)
    dist.broadcast(torch.ones(2), 0)
    dist.all_gather(pair, torch.ones(2))
    dist.all_gather_into_tensor(torch.ones(4), torch.ones(2))
    dist.gather(torch.ones(2), pair if rank == 0 else None, 0)
    dist.scatter(torch.ones(2), pair if rank == 0 else None, 0)
    dist.reduce_scatter(torch.ones(2), pair)
    dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4))
    dist.all_to_all_single(torch.ones(2), torch.ones(2))
    dist.barrier()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_dispatch_mode_sees_each_call_once_and_no_tensor_operation_of_ours(isolation: Any) -> None:
    def program(rank: int) -> list[str]:
        with Seen() as seen:
            _every_collective(rank)
        return [name for name in seen.names if name not in ("aten.ones.default", "aten.empty.memory_format")]

    returns = returned(program, 2, isolation=isolation)
    names = "allreduce_ reduce_ broadcast_ allgather_ _allgather_base_ gather_ scatter_ reduce_scatter_ "
    names += "_reduce_scatter_base_ alltoall_base_ barrier"
    assert returns == ([f"c10d.{name}.default" for name in names.split()],) * 2


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_rank_that_waits_under_a_mode_shows_it_nothing_of_others(isolation: Any) -> None:
    def program(rank: int) -> tuple[list[str], list[str], float]:
        received = torch.zeros(2)
        work = dist.irecv(received, 1 - rank)
        sent = dist.isend(torch.full((2,), rank + 1.0), 1 - rank)
        with Seen() as seen, SeenFunctions() as functions:
            work.wait()
            sent.wait()
        return seen.names, functions.names, received[0].item()

    assert returned(program, 2, isolation=isolation, policy="random") == (([], [], 2.0), ([], [], 1.0))


def test_what_a_program_hangs_on_a_future_runs_under_its_own_modes() -> None:
    """Also where the simulator calls it while somebody waits."""

    def program(rank: int) -> tuple[list[str], list[str], list[str]]:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        with Seen() as seen, SeenFunctions() as functions:
            work.get_future().then(lambda done: done.value()[0].cumsum(0))
            work.wait()
            torch.ones(1)
        return [name for name in seen.names if "cumsum" in name], functions.names, seen.names[-1:]

    for names, functions, last in returned(program, 2):
        assert names == ["aten.cumsum.default"]
        assert functions.count("cumsum") == 1
        assert last == ["aten.ones.default"]  # its modes are on afterwards


def test_a_function_mode_sees_what_it_sees_on_gloo() -> None:
    def program(rank: int) -> list[str]:
        tensor = torch.ones(2)
        with SeenFunctions() as seen:
            dist.all_reduce(tensor)
        return seen.names

    assert simulate(program, 2).returns == (["all_reduce"], ["all_reduce"])


def test_a_mode_that_refuses_clone_lets_ddp_train() -> None:
    class NoClone(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "clone" in str(func):
                raise RuntimeError("clone")
            return func(*args, **(kwargs or {}))

    def program(rank: int) -> float:
        model = DistributedDataParallel(torch.nn.Linear(2, 2, bias=False))
        with NoClone():
            model(torch.full((1, 2), rank + 1.0)).sum().backward()
        (weight,) = model.parameters()
        assert weight.grad is not None
        return weight.grad[0, 0].item()

    assert returned(program, 2) == (1.5, 1.5)


@pytest.mark.parametrize("device", ["fake", "meta"])
def test_tensors_without_data_move_nothing_and_wait_for_nobody(device: str) -> None:
    def program(rank: int) -> float:
        if rank == 0:
            if device == "meta":
                dist.all_reduce(torch.ones(2, device="meta"))
            else:
                with FakeTensorMode():
                    dist.broadcast(torch.ones(2), 0)
                    kept = torch.ones(2)
                dist.all_reduce(kept)  # fake, and the mode is off
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert returned(program, 2) == (2.0, 2.0)


def test_a_call_under_a_mode_is_named_by_the_line_that_makes_it() -> None:
    def program(rank: int) -> None:
        with Seen():
            dist.all_reduce(torch.ones(rank + 1))  # here

    (finding,) = simulate(program, 2).findings
    line = next(line for line, text in _lines_of_this_file() if text.endswith("# here"))
    assert finding.code == "mismatch.shape"
    assert str(finding).count(f"test_through_torch.py:{line}") == 3  # above all, and of each rank


def test_errors_under_a_mode_are_the_same() -> None:
    def program(rank: int) -> tuple[str, str]:
        texts = []
        for mode in (nullcontext(), Seen()):
            with mode, pytest.raises(RuntimeError) as caught:
                dist.all_gather_into_tensor(torch.ones(3), torch.ones(2))
            texts.append(str(caught.value))
        return texts[0], texts[1]

    for plain, watched in simulate(program, 2).returns:
        assert plain == watched


def test_whoever_looks_changes_nothing() -> None:
    def program(rank: int, looks: bool) -> list[float]:
        with Seen() if looks else nullcontext():
            model = wrapped()
            train(model, sgd(model), rank, 2)
        return [parameter.sum().item() for parameter in model.parameters()]

    plain, seen = (simulate(program, 2, args=(looks,), policy="random") for looks in (False, True))
    assert seen.verdict is Verdict.PASS
    assert seen.returns == plain.returns
    assert seen.trace.digest() == plain.trace.digest()


def test_operators_have_their_kernels_back_afterwards() -> None:
    def program(rank: int) -> None:
        with Seen():
            dist.all_reduce(torch.ones(1))

    kept: list[Any] = []
    before = torch._C._dispatch_dump("c10d::allreduce_")
    simulate(program, 2)
    simulate(lambda rank: kept.append(dist.group.WORLD), 2)
    with Seen(), pytest.raises(UsageError, match="belongs to a run that has ended"):
        kept[0].allreduce([torch.ones(1)], dist.AllreduceOptions())
    assert torch._C._dispatch_dump("c10d::allreduce_") == before


def test_the_profiler_sees_operators_and_what_gloo_names() -> None:
    def program(rank: int) -> dict[str, Any]:
        if rank == 1:
            dist.all_reduce(torch.ones(3))
            return {}
        with torch.autograd.profiler.profile(record_shapes=True) as profiled:
            dist.all_reduce(torch.ones(3))
        events = [event for event in profiled.function_events if "aten" not in event.name]
        return {event.name: (event.is_async, event.input_shapes) for event in events}

    seen = simulate(program, 2).returns[0]
    assert seen is not None
    assert sorted(seen) == ["c10d::allreduce_", "gloo:all_reduce"]
    assert seen["gloo:all_reduce"] == (True, [[3]])


def test_logging_data_of_ddp_names_the_backend_and_the_hook() -> None:
    def program(rank: int) -> tuple[str, str, int, bool]:
        model: Any = DistributedDataParallel(torch.nn.Linear(1, 1))
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[attr-defined]
        data = model._get_ddp_logging_data()
        has_address = data["master_port"] == os.environ["MASTER_PORT"]
        return data["backend_name"], data["comm_hook"], data["gloo_num_threads"], has_address

    assert simulate(program, 2).returns == (("gloo", "BuiltinCommHookType.FP16_COMPRESS", 2, True),) * 2


def _lines_of_this_file() -> list[tuple[int, str]]:
    with open(__file__) as file:
        return list(enumerate(file.read().splitlines(), 1))
