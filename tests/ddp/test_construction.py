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
from tests.kit.running import assert_equal, average, counts, gradients, run
from tests.kit.training import mean_square


def batch(rank):
    return torch.linspace(-1, 1 + rank, 8, dtype=torch.float64).view(2, 4)


def seeded():
    torch.manual_seed(0)
    return networks.multilayer()


def expected(ranks=(0, 1)):
    with torch.random.fork_rng():
        return average(seeded, [lambda m, r=r: mean_square(m, batch(r)) for r in ranks])


def trained(module, model, rank):
    """The gradients of the second of two steps."""
    for _ in range(2):
        module.zero_grad()
        mean_square(model, batch(rank)).backward()
    return gradients(module)


# Bad input.


def on_two_devices():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].to("meta")
    return module


BAD = {
    "frozen": (
        lambda: DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False)),
        "module Linear has no parameter that requires a gradient, expected at least one: ",
    ),
    "without parameters": (
        lambda: DistributedDataParallel(nn.ReLU()),
        "module ReLU has no parameter that requires a gradient, expected at least one: ",
    ),
    "no module": (
        lambda: DistributedDataParallel(torch.ones(2)),
        "module is Tensor, expected a torch.nn.Module",
    ),
    "a module class": (
        lambda: DistributedDataParallel(nn.ReLU),
        "module is type, expected a torch.nn.Module",
    ),
    "several devices": (
        lambda: DistributedDataParallel(on_two_devices()),
        "module has parameters on several devices (0.weight on cpu, 1.weight on meta), expected one: ",
    ),
    "uninitialized": (
        lambda: DistributedDataParallel(nn.LazyLinear(2)),
        "module has an uninitialized parameter, weight: run a forward with a batch once before wrapping",
    ),
    "buckets of 0": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=0),
        "bucket_cap_mb is 0, expected a number of MiB above 0: ",
    ),
    "negative buckets": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=-1.5),
        "bucket_cap_mb is -1.5, expected a number of MiB above 0: ",
    ),
    "buckets of text": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb="25"),
        "bucket_cap_mb is '25', expected a number of MiB above 0: ",
    ),
    "buckets that are no number": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=float("nan")),
        "bucket_cap_mb is nan, expected a number of MiB above 0: ",
    ),
    "infinite buckets": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=float("inf")),
        "bucket_cap_mb is inf, expected a number of MiB above 0: ",
    ),
    "true buckets": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=True),
        "bucket_cap_mb is True, expected a number of MiB above 0: ",
    ),
    "uninitialized buffers": (
        lambda: DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.LazyBatchNorm1d(affine=False))),
        "module has an uninitialized buffer, 1.running_mean: run a forward with a batch once before wrapping",
    ),
    "device_ids of text": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), device_ids="cuda"),
        "device_ids is 'cuda', expected None or a list of one device: give [torch.device('cuda', 0)], for instance",
    ),
    "device_ids of a number": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), device_ids=0),
        "device_ids is 0, expected None or a list of one device: ",
    ),
    "device_ids of other things": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), device_ids=["first"]),
        "device_ids is ['first'], expected None or a list of one device: ",
    ),
    "a process group of text": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), process_group="x"),
        "process_group is 'x', expected a ProcessGroup or None: make one by torch.distributed.new_group",
    ),
    "device_ids on a CPU": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), device_ids=[0]),
        "device_ids is [0], expected None or the one device of the parameters",
    ),
    "output_device alone": (
        lambda: DistributedDataParallel(nn.Linear(2, 2), output_device=0),
        "output_device is 0, expected None without device_ids",
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_in_one_line(case):
    construct, text = BAD[case]

    def program(rank):
        with pytest.raises(UsageError, match=rf"^{re.escape(text)}") as raised:
            construct()
        assert "\n" not in str(raised.value)

    # All the ranks heard of each other is that they agree.
    assert counts(run(program, 2)) == ({} if case == "a process group of text" else {"parameter check": 1})


WRONG = {
    "frozen": (
        lambda module: (module.requires_grad_(False), {}),
        "module Linear has no parameter that requires a gradient, expected at least one: call it unwrapped, or "
        "unfreeze parameters before wrapping",
    ),
    "buckets of 0": (
        lambda module: (module, {"bucket_cap_mb": 0}),
        "bucket_cap_mb is 0, expected a number of MiB above 0: the default is 25",
    ),
    "no module": (lambda module: ("module", {}), "module is str, expected a torch.nn.Module"),
}


@pytest.mark.parametrize("wrong", [(1,), (0, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_on_some_ranks_is_told_to_all(case, wrong):
    spoil, text = WRONG[case]

    def program(rank):
        module = nn.Linear(2, 2)
        module, options = spoil(module) if rank in wrong else (module, {})
        DistributedDataParallel(module, **options)

    result = simulate(program, 3)
    assert sorted(result.errors) == [0, 1, 2]
    assert {type(error) for error in result.errors.values()} == {ReplicaMismatchError}
    (told,) = {str(error) for error in result.errors.values()}
    assert f"what cannot be wrapped ({text})" in told
    assert {finding.code.value for finding in result.findings} == {"rank_error"}


def test_what_is_wrong_on_each_rank_in_its_own_way():
    def program(rank):
        with pytest.raises(UsageError, match=rf"^device_ids is \[{rank}\], expected"):
            DistributedDataParallel(nn.Linear(2, 2), device_ids=[rank])

    run(program, 3)


def test_what_is_wrong_is_not_told_without_init_sync():
    def program(rank):
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


# Replicas that differ.


class Twins(nn.Module):
    """Two layers of one shape, defined in an order of one's own."""

    def __init__(self, order=("left", "right")):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(2, 2))


def test_parameters_of_one_shape_in_another_order():
    # torch compares shapes only: there left and right would swap their values and gradients silently.
    def program(rank, engine):
        module = Twins(("right", "left") if rank == 1 else ("left", "right"))
        nn.init.constant_(module.left.weight, 1.0)
        nn.init.constant_(module.right.weight, 2.0)
        engine(module)
        return module.left.weight.detach()[0, 0].item()

    result = simulate(program, 3, args=(DistributedDataParallel,))
    assert sorted(result.errors) == [0, 1, 2]
    texts = {str(error) for error in result.errors.values()}
    assert all(isinstance(error, ReplicaMismatchError) for error in result.errors.values())
    assert len(texts) == 1
    assert (
        "rank 1 has right.weight float32[2, 2] at index 0 of the parameters, the others have left.weight" in texts.pop()
    )
    assert {finding.code.value for finding in result.findings} == {"rank_error"}  # nobody hangs
    assert simulate(program, 3, args=(TorchDistributedDataParallel,)).returns == (1.0, 2.0, 1.0)


DIFFERENCES = {
    "a frozen parameter": (
        lambda: nn.Linear(2, 2),
        lambda: _frozen_bias(nn.Linear(2, 2)),
        {},
        "rank 1 has bias float32[2] frozen, the others have it requiring grad",
    ),
    "a parameter more": (
        lambda: nn.Linear(2, 2, bias=False),
        lambda: nn.Linear(2, 2),
        {},
        "rank 1 has the parameter bias float32[2], the others have none of that name",
    ),
    "a setting": (
        lambda: nn.Linear(2, 2),
        lambda: nn.Linear(2, 2),
        {"find_unused_parameters": True},
        "rank 1 has find_unused_parameters=True, the others have find_unused_parameters=False",
    ),
    "buckets": (
        lambda: nn.Linear(2, 2),
        lambda: nn.Linear(2, 2),
        {"bucket_cap_mb": 1},
        "rank 1 has bucket_cap_mb=1.0, the others have bucket_cap_mb=25.0",
    ),
}


def _frozen_bias(module):
    module.bias.requires_grad_(False)
    return module


@pytest.mark.parametrize("case", DIFFERENCES)
def test_other_differences(case):
    common, other, options, text = DIFFERENCES[case]

    def program(rank):
        DistributedDataParallel(other() if rank == 1 else common(), **(options if rank == 1 else {}))

    result = simulate(program, 3)
    assert sorted(result.errors) == [0, 1, 2]
    for error in result.errors.values():
        assert isinstance(error, ReplicaMismatchError)
        assert text in str(error)
    assert {finding.code.value for finding in result.findings} == {"rank_error"}


def test_init_sync_left_out():
    def program(rank):
        module = nn.Linear(2, 2)
        nn.init.constant_(module.weight, float(rank))
        DistributedDataParallel(module, init_sync=False)
        return module.weight[0, 0].item()

    result = run(program, 2)
    assert result.returns == (0.0, 1.0)
    assert counts(result) == {}


# Wrapping anew.


def test_a_wrapper_that_is_dropped_leaves_nothing_behind():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, static_graph=True)
        trained(module, model, rank)
        wrapper, reducer = weakref.ref(model), weakref.ref(model.reducer)
        del model
        assert wrapper() is None  # without the garbage collector
        assert reducer() is None
        assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
        mean_square(module, batch(rank)).backward()  # nobody minds
        anew = DistributedDataParallel(module, bucket_cap_mb=1)
        return trained(module, anew, rank)

    result = run(program, 2)
    for found in result.returns:
        assert_equal(found, expected())
    assert counts(result)["bucket"] == 4


def test_a_module_wrapped_anew_while_the_old_wrapper_lives():
    # Both listen; the old one leaves alone what the new one awaits.
    def program(rank):
        module = seeded()
        old = DistributedDataParallel(module)
        both = trained(module, DistributedDataParallel(module), rank)
        del old
        gc.collect()
        module.zero_grad()
        return both, trained(module, DistributedDataParallel(module), rank)

    for found in run(program, 2).returns:
        for each in found:
            assert_equal(each, expected())


def test_a_wrapper_dropped_between_forward_and_backward():
    def program(rank):
        module = seeded()
        loss = mean_square(DistributedDataParallel(module), batch(rank))
        loss.backward()
        return gradients(module)

    for rank, found in enumerate(run(program, 2).returns):
        assert_equal(found, expected((rank,)))  # as without it


# Copies.


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
        module = seeded()
        model = DistributedDataParallel(module, **options)
        trained(module, model, rank)
        twin = copied(model)
        assert twin.module is not module
        assert twin.reducer is not model.reducer
        for name in ("find_unused_parameters", "static_graph", "dim", "gradient_as_bucket_view", "device"):
            assert getattr(twin, name) == getattr(model, name)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        return trained(twin.module, twin, rank), trained(module, model, rank)

    for twin, original in run(program, 2).returns:
        assert_equal(twin, expected())
        assert not torch.equal(original["4.bias"], twin["4.bias"])


@COPIES
def test_what_a_copy_could_not_take_along_is_refused(copied):
    def with_group(rank):
        return DistributedDataParallel(seeded(), process_group=dist.new_group())

    def with_hook(rank):
        model = DistributedDataParallel(seeded())
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
            with pytest.raises(UsageError, match=rf"^a wrapper with {what} cannot be copied or pickled, .* its module"):
                copied(build(rank))

    run(program, 2)


def test_a_copy_of_the_module_alone():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        trained(module, model, rank)
        average_of_weights = copy.deepcopy(model.module)
        mean_square(average_of_weights, batch(rank)).backward()
        return gradients(average_of_weights)

    for rank, found in enumerate(run(program, 2).returns):
        assert_equal(found, expected((rank,)))


# State.


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


def test_train_and_eval_go_through():
    def program(rank):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
        assert model.train() is model
        assert model.module[1].training
        assert not model.eval().module[1].training

    run(program, 1)


def test_parameters_and_buffers_to_ignore():
    class Partly(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self._ddp_params_and_buffers_to_ignore = ["own.weight", "own.bias", "count"]
            torch.manual_seed(0)
            self.common = nn.Linear(4, 2, dtype=torch.float64)
            self.own = nn.Linear(2, 1, dtype=torch.float64)
            nn.init.constant_(self.own.weight, rank + 1.0)
            self.register_buffer("count", torch.tensor(float(rank)))
            self.register_buffer("shared", torch.tensor(float(rank)))

        def forward(self, rank):
            return self.own(self.common(batch(rank)).tanh()).sum()

    def program(rank):
        module = Partly(rank)
        model = DistributedDataParallel(module)
        assert [name for bucket in model.reducer.plan for name in bucket] == ["common.bias", "common.weight"]
        model(rank).backward()
        return module.count.item(), module.shared.item(), module.own.weight[0, 0].item(), gradients(module)

    own = []
    for rank in range(2):
        with torch.random.fork_rng():
            own.append(average(lambda rank=rank: Partly(rank), [lambda module, rank=rank: module(rank)]))
    for rank, (count, shared, weight, found) in enumerate(run(program, 2).returns):
        assert (count, shared, weight) == (rank, 0.0, rank + 1.0)
        assert torch.equal(found["own.weight"], own[rank]["own.weight"])  # not reduced
        mean = own[0]["common.weight"] / 2 + own[1]["common.weight"] / 2
        assert torch.equal(found["common.weight"], mean)


# Worlds.


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_a_world_of_one(options):
    def program(rank):
        module = seeded()
        return trained(module, DistributedDataParallel(module, **options), rank)

    assert_equal(run(program, 1).returns[0], expected((0,)))


def test_a_subgroup():
    # Its ranks train as one; rank 0 is not among them, and does something else.
    def program(rank):
        group = dist.new_group([1, 3])
        if rank in (1, 3):
            torch.manual_seed(0 if rank == 1 else 5)
            module = networks.multilayer()
            return trained(module, DistributedDataParallel(module, process_group=group), rank)
        return None

    result = run(program, 4)
    for rank in (1, 3):
        assert_equal(result.returns[rank], expected((1, 3)))


def test_two_halves_of_a_world():
    def program(rank):
        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        module = seeded()
        return trained(module, DistributedDataParallel(module, process_group=halves[rank % 2]), rank)

    for rank, found in enumerate(run(program, 4).returns):
        assert_equal(found, expected((0, 2) if rank % 2 == 0 else (1, 3)))


def test_a_wrapper_inside_a_wrapper():
    # The outer one's forward announces what comes; each reduces on its own.
    def program(rank):
        module = seeded()
        inner = DistributedDataParallel(nn.Linear(2, 2).double())
        outer = DistributedDataParallel(module)
        for _ in range(2):
            outer.zero_grad()
            inner.zero_grad()
            inner(outer(batch(rank))).pow(2).mean().backward()
        return gradients(module), gradients(inner.module)

    first, second = run(program, 2).returns
    assert_equal(first[0], second[0])
    assert_equal(first[1], second[1])
