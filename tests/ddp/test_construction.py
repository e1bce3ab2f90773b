"""Construction: bad input in one line, replicas that differ, wrapping anew, copies, small and partial worlds."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel, ReplicaMismatchError, UsageError
from tests.kit import networks
from tests.kit.rows import rows
from tests.kit.running import assert_equal, counts, each_equals, expected, gradients, loss, run, wrapped
from tests.kit.training import seeded


def gradients_for(*ranks):
    return expected(networks.multilayer, loss, ranks)


def trained(model, rank):
    """The gradients of the second of two steps."""
    for _ in range(2):
        model.zero_grad()
        loss(model, rank).backward()
    return gradients(model.module)


def on_two_devices():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].to("meta")
    return module


UNTRAINABLE = "has no parameter that requires a gradient, expected at least one: "
BAD_MODULES = {
    "frozen": (lambda: nn.Linear(2, 2).requires_grad_(False), f"module Linear {UNTRAINABLE}"),
    "without parameters": (nn.ReLU, f"module ReLU {UNTRAINABLE}"),
    "no module": (lambda: torch.ones(2), "module is Tensor, expected a torch.nn.Module"),
    "a module class": (lambda: nn.ReLU, "module is type, expected a torch.nn.Module"),
    "several devices": (
        on_two_devices,
        "module has parameters on several devices (0.weight on cpu, 1.weight on meta), expected one: ",
    ),
    "uninitialized": (
        lambda: nn.LazyLinear(2),
        "module has an uninitialized parameter, weight: run a forward with a batch once before wrapping",
    ),
    "uninitialized buffers": (
        lambda: nn.Sequential(nn.Linear(2, 3), nn.LazyBatchNorm1d(affine=False)),
        "module has an uninitialized buffer, 1.running_mean: run a forward with a batch once before wrapping",
    ),
}
BAD_OPTIONS = [
    *(("bucket_cap_mb", cap, "a number of MiB above 0: ") for cap in (0, -1.5, "25", float("nan"), float("inf"), True)),
    ("device_ids", "cuda", "None or a list of one device: give [torch.device('cuda', 0)], for instance"),
    ("device_ids", 0, "None or a list of one device: "),
    ("device_ids", ["first"], "None or a list of one device: "),
    ("device_ids", [0], "None or the one device of the parameters"),
    ("output_device", 0, "None without device_ids"),
    ("process_group", "x", "a ProcessGroup or None: make one by torch.distributed.new_group"),
]


def refused(construct, text):
    """`construct` must raise in one line on all ranks; returns how many calls of what they made."""

    def program(rank):
        with pytest.raises(UsageError, match=rf"^{re.escape(text)}") as raised:
            construct()
        assert "\n" not in str(raised.value)

    return counts(run(program, 2))


ALL_THAT_RANKS_HEARD = {"parameter check": 1}
"""Of each other: that they agree."""


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@rows("case", BAD_MODULES)
def test_a_bad_module_is_named_in_one_line(case):
    build, text = BAD_MODULES[case]
    assert refused(lambda: DistributedDataParallel(build()), text) == ALL_THAT_RANKS_HEARD


@rows(("name", "value", "text"), BAD_OPTIONS, ids=str)
def test_a_bad_option_is_named_in_one_line(name, value, text):
    heard = refused(
        lambda: DistributedDataParallel(nn.Linear(2, 2), **{name: value}), f"{name} is {value!r}, expected {text}"
    )
    assert heard == ({} if name == "process_group" else ALL_THAT_RANKS_HEARD)


def raised_by_all(program):
    """What all of three ranks raise; nobody hangs."""
    result = simulate(program, 3)
    assert sorted(result.errors) == [0, 1, 2]
    assert {type(error) for error in result.errors.values()} == {ReplicaMismatchError}
    assert {finding.code.value for finding in result.findings} == {"rank_error"}
    (text,) = {str(error) for error in result.errors.values()}
    return text


WRONG = {
    "frozen": (
        lambda module: (module.requires_grad_(False), {}),
        f"module Linear {UNTRAINABLE}call it unwrapped, or unfreeze parameters before wrapping",
    ),
    "buckets of 0": (
        lambda module: (module, {"bucket_cap_mb": 0}),
        "bucket_cap_mb is 0, expected a number of MiB above 0: the default is 25",
    ),
    "no module": (lambda module: ("module", {}), "module is str, expected a torch.nn.Module"),
}


@rows("wrong", [(1,), (0, 2), (0, 1)], ids=str)
@rows("case", WRONG)
def test_what_is_wrong_on_some_ranks_is_told_to_all(case, wrong):
    spoil, text = WRONG[case]

    def program(rank):
        module = nn.Linear(2, 2)
        module, options = spoil(module) if rank in wrong else (module, {})
        DistributedDataParallel(module, **options)

    assert f"what cannot be wrapped ({text})" in raised_by_all(program)


def test_what_is_wrong_on_each_rank_in_its_own_way():
    def program(rank):
        with pytest.raises(UsageError, match=rf"^device_ids is \[{rank}\], expected"):
            DistributedDataParallel(nn.Linear(2, 2), device_ids=[rank])

    run(program, 3)


def test_without_init_sync_ranks_tell_each_other_nothing():
    def program(rank):
        DistributedDataParallel(nn.Linear(2, 2), init_sync=False)
        with pytest.raises(UsageError, match=r"^bucket_cap_mb is 0, expected"):
            DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=0, init_sync=False)

    assert counts(run(program, 2)) == {}


def test_a_process_group_that_one_is_not_in():
    def program(rank):
        group = dist.new_group([0])
        if rank == 1:
            with pytest.raises(UsageError, match=r"^process_group does not contain this rank, 1, expected a group "):
                DistributedDataParallel(nn.Linear(2, 2), process_group=group)

    run(program, 2)


class Twins(nn.Module):
    """Two layers of one shape, defined in an order of one's own."""

    def __init__(self, order=("left", "right")):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(2, 2))


def test_parameters_of_one_shape_in_another_order():
    # torch compares shapes only: there left and right would swap their values and gradients silently.
    def program(rank, engine=DistributedDataParallel):
        module = Twins(("right", "left") if rank == 1 else ("left", "right"))
        nn.init.constant_(module.left.weight, 1.0)
        nn.init.constant_(module.right.weight, 2.0)
        engine(module)
        return module.left.weight.detach()[0, 0].item()

    text = "rank 1 has right.weight float32[2, 2] at index 0 of the parameters, the others have left.weight"
    assert text in raised_by_all(program)
    assert simulate(program, 3, args=(TorchDistributedDataParallel,)).returns == (1.0, 2.0, 1.0)


def test_settings_that_differ():
    def program(rank):
        DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=25 if rank != 1 else 1, find_unused_parameters=rank == 1)

    text = raised_by_all(program)
    assert "rank 1 has bucket_cap_mb=1.0, the others have bucket_cap_mb=25.0" in text
    assert "rank 1 has find_unused_parameters=True, the others have find_unused_parameters=False" in text


def test_a_wrapper_that_is_dropped_leaves_nothing_behind():
    def program(rank):
        model = wrapped(static_graph=True)
        trained(model, rank)
        module, wrapper, reducer = model.module, weakref.ref(model), weakref.ref(model.reducer)
        del model
        assert wrapper() is None  # without the garbage collector
        assert reducer() is None
        assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
        loss(module, rank).backward()  # nobody minds
        return trained(DistributedDataParallel(module, bucket_cap_mb=1), rank)

    result = run(program, 2)
    each_equals(result, gradients_for(0, 1))
    assert counts(result)["bucket"] == 4


def test_a_module_wrapped_anew_while_the_old_wrapper_lives():
    # Both listen; the old one leaves alone what the new one awaits.
    def program(rank):
        old = wrapped()
        module = old.module
        both = trained(DistributedDataParallel(module), rank)
        del old
        gc.collect()
        return both, trained(DistributedDataParallel(module), rank)

    each_equals(run(program, 2), gradients_for(0, 1))


def test_a_wrapper_dropped_between_forward_and_backward():
    def program(rank):
        module = seeded(networks.multilayer)
        own = loss(DistributedDataParallel(module), rank)
        own.backward()
        return gradients(module)

    for rank, found in enumerate(run(program, 2).returns):
        assert_equal(found, gradients_for(rank))  # as without it


def pickled(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


COPIES = pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, pickled, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "save", "pickle"],
)


@COPIES
@pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True, "bucket_cap_mb": 1}], ids=str
)
def test_a_copy_trains_on_its_own(copied, options):
    def program(rank):
        model = wrapped(**options)
        trained(model, rank)
        twin = copied(model)
        assert twin.module is not model.module
        assert twin.reducer is not model.reducer
        for name in ("find_unused_parameters", "static_graph", "dim", "gradient_as_bucket_view", "device"):
            assert getattr(twin, name) == getattr(model, name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        return trained(twin, rank), trained(model, rank)

    for twin, original in run(program, 2).returns:
        assert_equal(twin, gradients_for(0, 1))
        assert not torch.equal(original["4.bias"], twin["4.bias"])


@COPIES
def test_what_a_copy_could_not_take_along_is_refused(copied):
    def with_group(rank):
        return wrapped(process_group=dist.new_group())

    def with_hook(rank):
        model = wrapped()
        model.register_comm_hook(None, lambda state, bucket: None)
        return model

    def with_strategy(rank):
        model = DistributedDataParallel(networks.with_buffers())
        model.register_buffer_comm_hook("1.running_mean", "mean")
        return model

    def program(rank):
        for build, what in (
            (with_group, "a process group of its own"),
            (with_hook, "a communication hook"),
            (with_strategy, "buffer hooks"),
        ):
            with pytest.raises(
                UsageError,
                match=rf"^a DistributedDataParallel with {what} cannot be copied or pickled: copy its module",
            ):
                copied(build(rank))

    run(program, 2)


def test_a_copy_of_the_module_alone():
    def program(rank):
        model = wrapped()
        trained(model, rank)
        average_of_weights = copy.deepcopy(model.module)
        loss(average_of_weights, rank).backward()
        return gradients(average_of_weights)

    for rank, found in enumerate(run(program, 2).returns):
        assert_equal(found, gradients_for(rank))


def test_the_state_has_torchs_keys():
    def program(rank):
        ours = DistributedDataParallel(networks.with_buffers())
        theirs = TorchDistributedDataParallel(networks.with_buffers())
        assert list(ours.state_dict()) == list(theirs.state_dict())
        assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
        assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
        ours.load_state_dict(theirs.state_dict())
        assert_equal(ours.state_dict(), theirs.state_dict())

    run(program, 2)


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_a_world_of_one(options):
    each_equals(run(lambda rank: trained(wrapped(**options), rank), 1), gradients_for(0))
