"""The networks: their values, sizes and gradients, and what a batch may leave out."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpsim import UsageError
from ddpsim.scenarios.training.models import NETWORKS, Network, make_network
from tests.kit.results import returned

NAMES = list(NETWORKS)


def linear(inputs, outputs):
    return inputs * outputs + outputs


RESIDUAL = (3 * 4 * 9 + 2 * 4) + (2 * 4 * 4 * 9 + 4 * 4) + (4 * 8 * 9 + 8 * 8 * 9 + 4 * 8 + 4 * 8 + 2 * 8)
RESIDUAL += (8 * 16 * 9 + 16 * 16 * 9 + 4 * 16 + 8 * 16 + 2 * 16) + linear(16, 4)
ATTENTION = 2 * 16 + 16 * 48 + linear(16, 16)
FEED_FORWARD = 2 * 16 + linear(16, 64) + linear(64, 16)
NORMALIZED = 8 * 16 + 2 * 16 + 16 * 16 + 2 * 16 + linear(16, 4)

# Parameters of the default network, shape of the outputs for 3 rows.
DEFAULTS = {
    "batch_norm": (NORMALIZED, (3, 4)),
    "branches": (3 * linear(8, 8), (3, 8)),
    "conv": (linear(3 * 9, 8) + 2 * linear(8 * 9, 8) + linear(8, 4), (3, 4)),
    "discriminator": (linear(8, 16) + linear(16, 1), (3, 1)),
    "early_exit": (linear(8, 16) + 2 * linear(16, 16) + 3 * linear(16, 4), (3, 4)),
    "embedding": (32 * 8 + linear(8, 4), (3, 4)),
    "generator": (linear(4, 16) + linear(16, 8), (3, 8)),
    "linear": (linear(8, 4), (3, 4)),
    "mixed_dtypes": (linear(8, 16) + linear(16, 4), (3, 4)),
    "mlp": (linear(8, 16) + linear(16, 16) + linear(16, 4), (3, 4)),
    "resnet": (RESIDUAL, (3, 4)),
    "shared": (32 * 8 + linear(8, 8) + 8, (3, 4, 32)),
    "sync_batch_norm": (NORMALIZED, (3, 4)),
    "transformer": (32 * 16 + 8 * 16 + 2 * (ATTENTION + FEED_FORWARD) + 2 * 16, (3, 8, 32)),
}


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def train(network, *, steps, rows=4, uses=None):
    """The losses of some steps, on batches of their own."""
    generator = torch.Generator().manual_seed(7)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = network(network.draw_batch(rows, generator), uses).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def without_gradient(network):
    return [name for name, parameter in network.named_parameters() if parameter.grad is None]


def test_names_are_sorted_and_described():
    assert sorted(DEFAULTS) == NAMES
    assert all(issubclass(network, Network) and network.__doc__ for network in NETWORKS.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_size_and_shapes(name, dtype):
    network = make_network(name, dtype=dtype)
    batch = network.draw_batch(3, torch.Generator())
    size, shape = DEFAULTS[name]
    assert count(network) == size
    assert batch.dtype == (torch.int64 if network.words else dtype)
    outputs = network(batch)
    assert outputs.shape == shape
    assert outputs.dtype == (torch.float64 if name == "mixed_dtypes" else dtype)


@pytest.mark.parametrize("name", NAMES)
def test_values_come_from_the_seed_and_batches_from_the_generator(name):
    def values(seed):
        return torch.nn.utils.parameters_to_vector(make_network(name, seed=seed).parameters())

    assert values(3).equal(values(3))
    assert not values(3).equal(values(4))
    network = make_network(name)
    first, again = (torch.Generator().manual_seed(5) for _ in range(2))
    one, other = network.draw_batch(4, first), network.draw_batch(4, first)
    assert one.equal(network.draw_batch(4, again))
    assert not one.equal(other)


@pytest.mark.parametrize("name", NAMES)
def test_float64_twin_starts_from_the_same_numbers(name):
    single, double = make_network(name, seed=2), make_network(name, seed=2, dtype=torch.float64)
    pairs = zip(single.state_dict().items(), double.state_dict().items(), strict=True)
    for (key, value), (twin_key, twin) in pairs:
        assert key == twin_key
        assert twin.dtype == (torch.float64 if value.is_floating_point() else value.dtype)
        assert twin.equal(value.to(twin.dtype))
    batches = [network.draw_batch(4, torch.Generator().manual_seed(1)) for network in (single, double)]
    assert batches[1].equal(batches[0].to(batches[1].dtype))
    torch.testing.assert_close(single(batches[0]).double(), double(batches[1]), rtol=1e-4, atol=1e-5)


def test_nothing_of_the_caller_changes():
    torch.set_default_dtype(torch.float64)
    try:
        before = torch.get_rng_state()
        network = make_network("linear")
        with pytest.raises(UsageError):
            make_network("resnet", {"depth": 9})
        assert torch.get_rng_state().equal(before)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert network.layer.weight.equal(make_network("linear").layer.weight)


def test_each_rank_keeps_its_own_generator():
    def program(rank):
        torch.manual_seed(rank)
        dist.barrier()
        weight = make_network("linear").layer.weight
        return weight.detach(), torch.rand(3)

    for rank, (weight, drawn) in enumerate(returned(program, 2)):
        assert weight.equal(make_network("linear").layer.weight)
        assert drawn.equal(torch.rand(3, generator=torch.Generator().manual_seed(rank)))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_all_parameters_and_are_sparse_where_that_is_said(name):
    network = make_network(name)
    assert NETWORKS[name].branches == network.branches
    train(network, steps=1)
    assert without_gradient(network) == []
    assert [key for key, parameter in network.named_parameters() if not parameter.grad.to_dense().norm() > 1e-4] == []
    assert network.sparse == any(parameter.grad.is_sparse for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in NAMES]
    + [("resnet", {"depth": depth}) for depth in (18, 50)]
    + [
        ("transformer", {"tied": False, "depth": 3, "width": 32}),
        ("early_exit", {"depth": 8}),
        ("mlp", {"hidden": ()}),
    ],
)
def test_training_is_tame(name, options):
    losses = train(make_network(name, options), steps=10)
    assert max(losses) < 2
    assert train(make_network(name, options), steps=10) == losses


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        (None, []),
        (("left", "right"), []),
        (("right", "left"), []),
        (("left",), ["right.weight", "right.bias"]),
        (("right",), ["left.weight", "left.bias"]),
        ((), ["left.weight", "left.bias", "right.weight", "right.bias"]),
    ],
)
def test_branches_left_out_have_no_gradient(uses, expected):
    network = make_network("branches")
    assert network.branches == ("left", "right")
    train(network, steps=1, uses=uses)
    assert without_gradient(network) == expected


@pytest.mark.parametrize(("uses", "stages"), [(None, 3), (("third", "second"), 3), (("second",), 2), ((), 1)])
def test_stages_after_an_early_exit_have_no_gradient(uses, stages):
    network = make_network("early_exit")
    assert network.branches == ("second", "third")
    train(network, steps=1, uses=uses)
    parts = ("layer.weight", "layer.bias", "exit.weight", "exit.bias")
    assert without_gradient(network) == [
        f"{stage}.{part}" for stage in network.branches[stages - 1 :] for part in parts
    ]


def test_outputs_of_branches_add_up():
    network = make_network("branches", {"names": "text image audio"}, dtype=torch.float64)
    batch = network.draw_batch(4, torch.Generator())
    body = network(batch, ())
    total = body + sum(network(batch, (name,)) - body for name in ("text", "image", "audio"))
    torch.testing.assert_close(network(batch), total, rtol=0, atol=1e-12)
    assert network(batch, ["audio", "text"]).equal(network(batch, ("text", "audio", "text")))


def test_tied_and_untied_transformer():
    tied, untied = make_network("transformer"), make_network("transformer", {"tied": False})
    assert tied.head.weight is tied.embedding.weight
    assert count(untied) - count(tied) == 32 * 16


def test_transformer_sees_no_later_token():
    network = make_network("transformer")
    batch = network.draw_batch(2, torch.Generator())
    changed = batch.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 32
    difference = (network(batch) - network(changed)).abs().amax(dim=(0, 2))
    assert (difference > 0).tolist() == [False] * 5 + [True] * 3


# The published sizes, as torchvision's networks have them; their first convolution is 7x7 instead of 3x3.
@pytest.mark.parametrize(
    ("depth", "published"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)]
)
def test_resnet_of_published_size(depth, published):
    with torch.device("meta"):
        network = NETWORKS["resnet"](depth=depth, width=64, outputs=1000)
    assert count(network) == published - 3 * 64 * (7 * 7 - 3 * 3)


@pytest.mark.parametrize("depth", [8, 10, 18, 34, 50, 101, 152])
def test_resnet_depth_counts_the_layers_with_weights(depth):
    network = make_network("resnet", {"depth": depth, "width": 1})
    convolutions = [
        name for name, module in network.named_modules() if isinstance(module, nn.Conv2d) and "shortcut" not in name
    ]
    assert len(convolutions) + 1 == depth


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("linear", {"features": 3, "outputs": 1}, 4),
        ("mlp", {"hidden": [5]}, linear(8, 5) + linear(5, 4)),
        ("mlp", {"hidden": ()}, linear(8, 4)),
        ("conv", {"channels": 2, "depth": 1, "size": 5}, linear(27, 2) + linear(2, 4)),
        ("early_exit", {"depth": 1}, linear(8, 16) + linear(16, 4)),
        ("batch_norm", {"depth": 1, "momentum": 1}, 8 * 16 + 2 * 16 + linear(16, 4)),
    ],
)
def test_options(name, options, size):
    network = make_network(name, options)
    assert count(network) == size
    train(network, steps=1)
    assert without_gradient(network) == []
