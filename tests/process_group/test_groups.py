"""Making groups, naming them, and giving them up."""

import re
from datetime import timedelta
from inspect import signature

import pytest
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed import init_process_group as early_init

from ddpsim import UsageError, explore, simulate
from ddpsim.simulator.process_group import creation
from tests.kit.results import codes, returned


def total(rank, group=None):
    """The sum of 10 to the power of the members' ranks: tells which ranks took part."""
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor, group=group)
    return int(tensor)


@pytest.mark.skipif(
    "sort_ranks" not in signature(dist.new_group).parameters, reason="this torch always sorts a group's ranks"
)
def test_members_may_keep_an_order_of_their_own():
    def program(rank):
        group = dist.new_group([3, 1], sort_ranks=False)
        if rank not in (1, 3):
            return None
        tensor = torch.tensor([rank])
        dist.broadcast(tensor, group=group, group_src=0)
        return dist.get_rank(group), tensor.item()

    assert returned(program, 4) == (None, (1, 3), None, (0, 3))


@pytest.mark.parametrize("backend", ["gloo", "nccl", "cpu:gloo,cuda:nccl", None])
def test_every_backend_is_simulated_and_answers_to_its_name(backend):
    def program(rank):
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=5))
        return total(rank, group), dist.get_backend(group)

    assert returned(program) == ((11, backend or "gloo"),) * 2


@pytest.fixture
def bound_to_devices(monkeypatch):
    """Return what binds a rank's default group to a device, as init_process_group does."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    return lambda rank: setattr(dist.group.WORLD, "bound_device_id", torch.device("cuda", rank))


@pytest.mark.skipif(creation._SPLIT_NEEDS_DEVICE is None, reason="since torch 2.14 a split needs no device")
def test_a_split_needs_a_device_and_an_accelerator():
    def program(rank, device):
        dist.group.WORLD.bound_device_id = device
        dist.split_group(split_ranks=[[0], [1]])

    for device, message in [
        (None, "No device associated with the default pg, not safe to split any process groups"),
        (torch.device("cuda", 0), "No backend for the parent process group or its backend does not support splitting"),
    ]:
        result = simulate(program, 2, args=(device,))
        assert [str(result.errors[rank]) for rank in (0, 1)] == [message] * 2


def test_a_split_of_a_group_that_has_a_device(bound_to_devices):
    def program(rank):
        bound_to_devices(rank)
        half = dist.split_group(split_ranks=[[0, 2], [1, 3]], group_desc="half")
        quarter = dist.split_group(half, [[1]])
        quarter = None if quarter is dist.GroupMember.NON_GROUP_MEMBER else quarter
        return (
            total(rank, half),
            half.group_desc,
            dist.get_backend(half),
            quarter and dist.get_process_group_ranks(quarter),
        )

    assert returned(program, 4) == (
        (101, "half", "gloo", None),
        (1010, "half", "gloo", None),
        (101, "half", "gloo", [2]),
        (1010, "half", "gloo", [3]),
    )


def test_a_split_waits_for_the_whole_parent(bound_to_devices):
    def program(rank):
        bound_to_devices(rank)
        if rank != 2:
            dist.split_group(split_ranks=[[0, 1], [2]])

    result = simulate(program, 3)
    assert codes(result) == [("deadlock.missing_rank", (2,))]


@pytest.mark.parametrize(
    ("split_ranks", "message"),
    [
        ([[]], "the split group cannot be empty"),
        ([[0, 0]], "the split group cannot have duplicate ranks"),
        ([[0, 1, 2]], "size should be less or equal to the world_size"),
    ],
)
def test_splits_that_torch_refuses(bound_to_devices, split_ranks, message):
    def program(rank):
        bound_to_devices(rank)
        with pytest.raises(ValueError, match=message):
            dist.split_group(split_ranks=split_ranks)

    returned(program)


def test_groups_are_told_apart_by_name_and_description():
    def program(rank):
        plain, described = dist.new_group(), dist.new_group(group_desc="experts")
        dist.barrier(plain)
        dist.barrier(described)
        return plain.group_name, plain.group_desc, described.group_name, described.group_desc

    result = simulate(program, 2)
    assert result.returns == (("1", "undefined", "2", "experts"),) * 2
    assert {event.call.group for event in result.trace if event.call} == {"1", "experts 2"}


@pytest.mark.parametrize(
    "members",
    [
        ([0, 1], [0, 2], [0, 1]),  # a member that takes itself for none
        ([0, 1], [0, 1], [2, 3], [2, 3]),  # made by their members alone, under one name and so one store prefix
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_who_takes_itself_for_none_or_makes_another_group_of_that_name_is_a_mismatch(members, seed):
    result = simulate(lambda rank: dist.new_group(members[rank]), len(members), policy="random", seed=seed)
    assert [finding.code.value for finding in result.findings] == ["mismatch.group"]


def test_a_destroyed_group_is_of_no_use_and_the_others_are():
    def program(rank):
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(RuntimeError, match='on group "1", which was destroyed'):
            group.barrier().wait()
        return total(rank), total(rank, dist.new_group([0, 1]))

    assert returned(program) == ((11, 11),) * 2


def test_torch_can_be_initialised_again_after_a_destroy():
    def program(rank):
        dist.new_group()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        first = total(rank)
        dist.destroy_process_group()
        dist.init_process_group(init_method="env://", world_size=2, rank=rank)
        return first, total(rank), dist.new_group().group_name

    result = simulate(program, 2)
    result.raise_for_verdict()
    assert result.returns == ((11, 11, "1"),) * 2
    groups = list(dict.fromkeys(event.call.group for event in result.trace if event.call))
    assert groups == ["1", "default (2)", "default (3)", "1 (2)"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "gloo"},
        {"backend": "gloo", "init_method": "env://"},
        {"backend": "gloo", "init_method": "tcp://127.0.0.1:1", "world_size": 3},  # where nobody listens
    ],
)
def test_the_world_needs_no_address_also_by_a_name_bound_before_the_run(options):
    def program(rank):
        dist.destroy_process_group()
        early_init(**options)
        return dist.get_rank(), dist.get_world_size(), total(rank)

    assert returned(program, 3) == tuple((rank, 3, 111) for rank in range(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 3, "rank": 0}, "got world_size 3, expected 2"),
        ({"rank": 7}, "got rank 7, expected"),
    ],
)
def test_a_rank_keeps_its_number_and_the_world_its_size(arguments, message):
    def program(rank):
        dist.destroy_process_group()
        with pytest.raises(ValueError, match=message):
            dist.init_process_group("gloo", **arguments)

    returned(program)


def test_torch_is_as_it_was_afterwards():
    before = (dist.init_process_group, dist.split_group, dist.distributed_c10d._new_process_group_helper)
    returned(lambda rank: dist.new_group())
    assert before == (dist.init_process_group, dist.split_group, dist.distributed_c10d._new_process_group_helper)
    assert not dist.is_initialized()


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "gather_single"), reason="gather_single needs torch 2.14")
def test_nccl_gathers_into_one_tensor():
    def program(rank):
        group = dist.new_group(backend="nccl")
        options = dist.GatherOptions()
        options.rootRank = 1
        gathered = torch.zeros(4)
        group.gather_single(gathered, torch.full((2,), rank + 1.0), options).wait()
        return gathered.tolist()

    assert returned(program) == ([0.0] * 4, [1.0, 1.0, 2.0, 2.0])


def test_a_time_out_is_a_timedelta_and_a_backend_is_of_a_device():
    def program(rank):
        group = dist.group.WORLD
        for kind in (group, distributed_c10d._get_default_store()):
            with pytest.raises(TypeError, match="timeout is 3, expected a timedelta"):
                kind.set_timeout(3)
            kind.set_timeout(3.0)  # torch's binding takes a float for seconds, and no integer
        assert group.options._timeout == timedelta(seconds=3)
        with pytest.raises(TypeError, match="timeout is 3, expected a timedelta"):
            dist.all_reduce(torch.ones(1), async_op=True).wait(3)
        dist.all_reduce(torch.ones(1), async_op=True).wait(3.0)
        assert group._get_backend(torch.device("cpu")).create_device(hostname="127.0.0.1") is not None
        with pytest.raises(TypeError, match="device is 'cpu'"):
            group._get_backend("cpu")
        with pytest.raises(RuntimeError, match="No backend type associated with device type meta"):
            group._get_backend(torch.device("meta"))

    returned(program)


def test_groups_of_one_rank_may_share_a_name():
    """They never meet. torch counts group names on each rank, so nested subgroups make such groups."""

    def program(rank):
        half, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        alone, _ = dist.new_subgroups(group_size=1, group=half)
        own = dist.new_group([rank])
        tensor = torch.tensor([float(rank)])
        for group in (alone, own):
            dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor, group=half)
        return tensor.item()

    assert returned(program, 4) == (2.0, 4.0, 2.0, 4.0)


def test_cpp_finds_a_default_backend_in_a_group_as_in_one_of_gloo():
    def program(rank):
        group = dist.group.WORLD
        group._enable_collectives_timing()
        with pytest.raises(RuntimeError, match=r"Only ProcessGroupp?NCCL supports waitForPendingWorks"):
            dist.ProcessGroup._wait_for_pending_works(group)  # the method of C++
        return group._has_hooks()

    assert returned(program) == (False, False)


# --- backends of the program's own ------------------------------------------------------------------------------------


class AddsHundred(dist.ProcessGroup):
    """A backend in Python, which moves nothing and adds 100."""

    def getBackendName(self):
        return "hundred"

    def allreduce(self, tensors, opts=None):
        for tensor in tensors:
            tensor.add_(100)
        return _Done()


class _Done(dist._Work):
    def wait(self, timeout=None):
        return True


@pytest.fixture
def hundred(monkeypatch):
    """Register the backend `hundred`, and forget it afterwards."""
    known = dist.Backend
    for name in ("_plugins", "backend_list", "backend_type_map", "backend_capability"):
        monkeypatch.setattr(known, name, type(getattr(known, name))(getattr(known, name)))
    monkeypatch.setattr(known, "HUNDRED", "hundred", raising=False)
    known.register_backend("hundred", lambda store, rank, size, timeout: AddsHundred(rank, size), devices=["cpu"])


NOT_CHECKED = 'not checked: the calls of groups on "hundred", a backend of the program\'s own, which moves their data'


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
@pytest.mark.usefixtures("hundred")
def test_a_backend_of_the_programs_own_is_used_and_said_to_be_unchecked(isolation):
    def program(rank):
        group = dist.new_group(backend="hundred")
        return total(rank, group), total(rank)

    result = simulate(program, 2, isolation=isolation)
    assert (result.returns, result.notes) == (((101, 11), (110, 11)), (NOT_CHECKED,))
    assert str(result).splitlines()[1] == f"  note    {NOT_CHECKED}"
    assert 'not tested for backend "hundred"' in explore(program, 2, isolation=isolation).extent


def test_an_ordinary_group_has_no_such_note():
    assert simulate(lambda rank: total(rank, dist.new_group(backend="gloo")), 2).notes == ()


@pytest.mark.usefixtures("hundred")
def test_a_backend_that_torch_registers_itself_is_simulated(monkeypatch):
    """As gloo and nccl are from torch 2.14 on (distributed_c10d._register_builtin_gloo_backend)."""
    plugin = dist.Backend._BackendPlugin(distributed_c10d._new_process_group_helper, True)
    monkeypatch.setitem(dist.Backend._plugins, "GLOO", plugin)
    result = simulate(lambda rank: total(rank, dist.new_group(backend="gloo")), 2)
    assert (result.returns, result.notes) == ((11, 11), ())


@pytest.mark.usefixtures("hundred")
def test_a_backend_of_the_programs_own_beside_another_in_one_group_is_refused():
    message = (
        "the program asks for a group with backend 'cpu:hundred,cuda:nccl', of which 'hundred' is its own, expected a "
        "backend of its own alone: make two groups"
    )
    with pytest.raises(UsageError, match=re.escape(message)):
        simulate(lambda rank: dist.new_group(backend="cpu:hundred,cuda:nccl"), 2)


@pytest.mark.usefixtures("hundred")
def test_a_backend_that_raises_is_an_error_of_the_rank():
    def make(*arguments):
        raise OSError("no such card")

    dist.Backend.register_backend("hundred", make, devices=["cpu"])
    result = simulate(lambda rank: dist.new_group(backend="hundred"), 2)
    assert codes(result) == [("rank_error", (0, 1))]
    assert result.findings[0].summary.startswith("ranks 0, 1 raised OSError: no such card")


# --- ProcessGroupGloo, made directly ----------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
def test_gloo_made_directly_is_a_simulated_group(isolation):
    def program(rank):
        store = dist.TCPStore("127.0.0.1", 29655, 3, is_master=rank == 0)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=30)
        options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
        whole = dist.ProcessGroupGloo(store, rank, 3, options)
        found = [torch.full((1,), 10.0**rank)]
        whole.allreduce(found).wait()
        whole.barrier().wait()  # no argument at all
        pair = None
        if rank != 1:  # ranks of a group of its own, in another order
            pair = dist.distributed_c10d.ProcessGroupGloo(dist.PrefixStore("pair", store), int(rank == 0), 2)
            tensor = torch.full((1,), 10.0**rank)
            pair.broadcast(tensor, 0).wait()
            found.append(tensor)
        return (
            [int(each) for each in found],
            isinstance(whole, dist.ProcessGroupGloo),
            whole.rank(),
            pair and pair.rank(),
        )

    assert returned(program, 3, isolation=isolation) == (
        ([111, 100], True, 0, 1),
        ([111], True, 1, None),
        ([111, 100], True, 2, 0),
    )


def test_gloo_made_directly_refuses_what_gloo_itself_refuses():
    """A backend's object is called without torch's dispatcher, whose words an empty list gets elsewhere."""
    one, sparse = torch.zeros(1), torch.zeros(1).to_sparse()
    calls = {
        "allreduce: requires non-empty tensor list": lambda group: group.allreduce([], dist.AllreduceOptions()),
        "allreduce_coalesced: requires non-empty tensor list": lambda group: group.allreduce_coalesced(
            [], c10d.AllreduceCoalescedOptions()
        ),
        "allreduce_coalesced: unsupported layout": lambda group: group.allreduce_coalesced(
            [sparse], c10d.AllreduceCoalescedOptions()
        ),
        "broadcast: invalid root tensor: 0": lambda group: group.broadcast([], dist.BroadcastOptions()),
        "broadcast: only supports dense tensors": lambda group: group.broadcast([sparse], dist.BroadcastOptions()),
        "broadcast: invalid tensor type at index 0 (expected TensorOptions(dtype=float, device=cpu, layout=Strided": (
            lambda group: group.broadcast([one, sparse], dist.BroadcastOptions())
        ),
        "reduce: only supports dense tensors": lambda group: group.reduce([sparse], dist.ReduceOptions()),
        "allgather: requires non-empty input tensor list": lambda group: group.allgather([], []),
        "allgather_coalesced: requires non-empty input tensor list": lambda group: group.allgather_coalesced(
            [], [], c10d.AllgatherOptions()
        ),
        "gather: requires a single-element input tensor list": lambda group: group.gather([], [], dist.GatherOptions()),
        "scatter: requires a single-element output tensor list": lambda group: group.scatter(
            [], [], dist.ScatterOptions()
        ),
        "send takes a single tensor": lambda group: group.send([], 1, 0),
    }

    def program(rank):
        group = dist.ProcessGroupGloo(dist.TCPStore("127.0.0.1", 29655, 2, is_master=rank == 0), rank, 2, timeout=2.0)
        assert group.options._timeout == timedelta(seconds=2)
        store = dist.PrefixStore("again", dist.TCPStore("127.0.0.1", 29655, 2, is_master=False))
        again = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=3))  # in the place of the options
        assert again.options._timeout == timedelta(seconds=3)
        for text, call in calls.items():
            with pytest.raises(RuntimeError, match=re.escape(f"ProcessGroupGloo::{text}")):
                call(group)
        with pytest.raises(RuntimeError, match="reduce_scatter only supports 1 output"):
            group.reduce_scatter([], [], dist.ReduceScatterOptions())

    returned(program, 2)


def test_gloo_made_directly_on_one_rank_alone_is_a_deadlock():
    def program(rank):
        if rank == 0:
            dist.ProcessGroupGloo(dist.TCPStore("127.0.0.1", 29655, 2, is_master=True), 0, 2)

    assert simulate(program, 2).findings[0].code.value.startswith("deadlock")


def test_all_members_print_a_group_alike():
    def program(rank):
        mine, _ = dist.new_subgroups(group_size=2)
        return str(mine), str(dist.group.WORLD)

    first, second, *others = returned(program, 4)
    assert first == second != others[0] == others[1]
    assert re.fullmatch(r'<ProcessGroup "\w+">', first[0])
    assert first[1] == '<ProcessGroup "default">'
