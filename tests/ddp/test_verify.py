"""Verification at construction: what differs between ranks is found, by name, and said alike on all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from ddpsim import simulate
from ddpsim.ddp.errors import ReplicaMismatchError
from ddpsim.ddp.verify import (
    DistinctDescription,
    ModelDescription,
    describe_model,
    explain_differences,
    verify_replicas,
)
from ddpsim.simulator.events import EventKind
from tests.kit.rows import rows

CPU = torch.device("cpu")
SETTINGS = {"bucket_cap_mb": 25.0, "find_unused_parameters": False}
WAY_OUT = "; build the same model, in the same order and with the same settings, on every rank before wrapping it"


class Net(nn.Module):
    """Two linear layers of one size, so that they can be swapped, and a BatchNorm for its buffers."""

    def __init__(self, order=("encoder", "decoder")):
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(4, 2))
        self.norm = nn.BatchNorm1d(2)


def change_nothing(module):
    pass


def swap(module):
    module.encoder, module.decoder = module.decoder, module.encoder
    module._modules["norm"] = module._modules.pop("norm")
    module._modules["encoder"] = module._modules.pop("encoder")


def rename(module):
    bias = module.encoder._parameters.pop("bias")
    module.encoder.register_parameter("offset", bias)


def transpose(module):
    module.encoder.weight = nn.Parameter(torch.zeros(4, 2).t())


def described(change=change_nothing, **settings):
    module = Net()
    change(module)
    return describe_model(list(module.named_parameters()), list(module.named_buffers()), SETTINGS | settings)


CHANGES = {
    "other shape": (
        lambda module: setattr(module, "encoder", nn.Linear(3, 2)),
        "rank 2 has encoder.weight float32[2, 3], the others have float32[2, 4]",
    ),
    "other dtype": (
        lambda module: setattr(module.encoder, "bias", nn.Parameter(module.encoder.bias.double())),
        "rank 2 has encoder.bias float64[2], the others have float32[2]",
    ),
    "frozen": (
        lambda module: module.decoder.bias.requires_grad_(False),
        "rank 2 has decoder.bias float32[2] frozen, the others have it requiring grad",
    ),
    "other strides": (
        transpose,
        "rank 2 has encoder.weight float32[2, 4] with strides [1, 2], the others have [4, 1]",
    ),
    "missing parameter": (
        lambda module: module.norm.register_parameter("bias", None),
        "rank 2 has no parameter norm.bias, the others have norm.bias float32[2]",
    ),
    "extra parameter": (
        lambda module: module.register_parameter("scale", nn.Parameter(torch.ones(()))),
        "rank 2 has the parameter scale float32[], the others have none of that name",
    ),
    "renamed": (
        rename,
        "rank 2 has encoder.offset float32[2] at index 1 of the parameters, the others have encoder.bias float32[2]",
    ),
    "other order": (
        swap,
        "rank 2 has decoder.weight float32[2, 4] at index 0 of the parameters, the others have encoder.weight "
        "float32[2, 4]",
    ),
    "extra buffer": (
        lambda module: module.register_buffer("count", torch.zeros(3, dtype=torch.int64)),
        "rank 2 has the buffer count int64[3], the others have none of that name",
    ),
    "missing buffer": (
        lambda module: module.norm.register_buffer("num_batches_tracked", None),
        "rank 2 has no buffer norm.num_batches_tracked, the others have norm.num_batches_tracked int64[]",
    ),
    "other buffer": (
        lambda module: setattr(module.norm, "running_mean", torch.zeros(5)),
        "rank 2 has norm.running_mean float32[5], the others have float32[2]",
    ),
}


@rows(
    ("setting", "told"),
    [
        ({"bucket_cap_mb": 1.0}, "bucket_cap_mb=1.0, the others have bucket_cap_mb=25.0"),
        ({"static_graph": True}, "static_graph=True, the others have no setting static_graph"),
    ],
    ids=["differs", "only some have it"],
)
def test_a_setting_that_differs_is_named(setting, told):
    text = explain_differences(
        [DistinctDescription((0, 1), described()), DistinctDescription((2,), described(**setting))]
    )
    assert f"differ: rank 2 has {told}; build" in text


def test_on_a_tie_the_lowest_rank_is_what_the_others_are_compared_with():
    frozen = described(CHANGES["frozen"][0])
    text = explain_differences([DistinctDescription((1, 3), frozen), DistinctDescription((0, 2), described())])
    assert "ranks 1 and 3 have decoder.bias float32[2] frozen, ranks 0 and 2 have it requiring grad" in text


def test_three_versions_are_each_compared_with_the_most_frequent():
    text = explain_differences(
        [
            DistinctDescription((0,), described(bucket_cap_mb=1.0)),
            DistinctDescription((1, 2), described()),
            DistinctDescription((3,), described(bucket_cap_mb=2.0)),
        ]
    )
    assert "rank 0 has bucket_cap_mb=1.0, ranks 1 and 2 have bucket_cap_mb=25.0" in text
    assert "rank 3 has bucket_cap_mb=2.0, ranks 1 and 2 have bucket_cap_mb=25.0" in text


def test_only_the_first_differences_are_shown():
    wide = describe_model([(f"layer{i}", torch.ones(2)) for i in range(20)], [], {})
    narrow = describe_model([(f"layer{i}", torch.ones(1)) for i in range(20)], [], {})
    text = explain_differences([DistinctDescription((0, 1), wide), DistinctDescription((2,), narrow)])
    assert text.count("float32[1]") == 5
    assert "; and 15 more; build the same model" in text


def test_many_ranks_are_abbreviated():
    ranks = tuple(range(1, 13))
    text = explain_differences(
        [
            DistinctDescription(ranks, described(bucket_cap_mb=1.0)),
            DistinctDescription((0, *range(13, 30)), described()),
        ]
    )
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 4 more have bucket_cap_mb=1.0, the others have" in text


def test_encoding_is_canonical_and_has_an_inverse():
    description = described()
    assert ModelDescription.decode(description.encode()) == description
    reordered = describe_model(
        list(Net().named_parameters()), list(Net().named_buffers()), dict(reversed(SETTINGS.items()))
    )
    assert reordered.encode() == description.encode()


def test_values_are_not_compared():
    assert described(lambda module: nn.init.zeros_(module.encoder.weight)) == described()


def program(rank, change, odd_ranks):
    """Verify a model that is changed on some ranks."""
    module = Net()
    if rank in odd_ranks:
        change(module)
    group = dist.group.WORLD
    assert group is not None
    verify_replicas(list(module.named_parameters()), list(module.named_buffers()), SETTINGS, group, CPU)


def calls(result):
    return [event.call.signature.operation for event in result.trace if event.kind is EventKind.ISSUE]


@rows("world_size", [1, 2, 3, 4])
def test_equal_replicas_cost_one_collective(world_size):
    result = simulate(program, world_size, args=(change_nothing, ()))
    result.raise_for_verdict()
    assert result.findings == ()
    assert calls(result) == (["all_reduce"] * world_size if world_size > 1 else [])


@rows("change", CHANGES)
def test_every_rank_raises_the_same(change):
    apply, expected = CHANGES[change]
    result = simulate(program, 4, args=(apply, (2,)))
    assert sorted(result.errors) == [0, 1, 2, 3]
    assert {type(error) for error in result.errors.values()} == {ReplicaMismatchError}
    assert {str(error) for error in result.errors.values()} == {
        f"the ranks' models or settings differ: {expected}{WAY_OUT}"
    }


@rows("world_size", [2, 3, 4])
@rows("odd", [0, 1])
def test_any_rank_may_be_the_odd_one(world_size, odd):
    result = simulate(program, world_size, args=(CHANGES["other dtype"][0], (odd,)))
    assert sorted(result.errors) == list(range(world_size))
    assert len({str(error) for error in result.errors.values()}) == 1
    # Of two ranks neither is the odd one: rank 1 is compared with rank 0.
    subject = odd if world_size > 2 else 1
    assert f"rank {subject} has encoder.bias" in str(result.errors[0])


def all_different(rank):
    group = dist.group.WORLD
    assert group is not None
    verify_replicas([(f"layer{rank}", torch.ones(rank + 1))], [], {}, group, CPU)


def test_every_rank_may_have_something_else():
    result = simulate(all_different, 7)
    assert sorted(result.errors) == list(range(7))
    (text,) = {str(error) for error in result.errors.values()}
    assert "rank 1 has layer1 float32[2] at index 0 of the parameters, rank 0 has layer0 float32[1]" in text


def on_a_subgroup(rank):
    group = dist.new_group([1, 3])
    if rank in (1, 3):
        verify_replicas([("weight", torch.ones(2))], [], {"rank": rank}, group, CPU)


def test_ranks_of_a_subgroup_are_named_by_their_global_ranks():
    result = simulate(on_a_subgroup, 4)
    assert sorted(result.errors) == [1, 3]
    assert {str(error) for error in result.errors.values()} == {
        f"the ranks' models or settings differ: rank 3 has rank=3, rank 1 has rank=1{WAY_OUT}"
    }
