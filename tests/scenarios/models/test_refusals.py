"""What `make` and the networks refuse: one line each."""

import re

import pytest
import torch

from ddpsim import UsageError
from ddpsim.scenarios.models import NETWORKS, make, outline

SIZES = "a whole number from 1 to 65536"
DEPTHS = "a whole number from 1 to 512"
LISTED = ", ".join(NETWORKS)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("resent", {}, f"network is 'resent', expected one of {LISTED}: did you mean 'resnet'?"),
        ("xyzzy", {}, f"network is 'xyzzy', expected one of {LISTED}"),
        (3, {}, f"network is 3, expected one of {LISTED}"),
        (
            "linear",
            {"feature": 3},
            "network 'linear': feature is no option, expected one of features, outputs: did you mean 'features'?",
        ),
        ("linear", {"depth": 3}, "network 'linear': depth is no option, expected one of features, outputs"),
        ("conv", {"depth": 0}, f"network 'conv': depth is 0, expected {DEPTHS}: leave it out for 3"),
        ("conv", {"depth": -1}, f"network 'conv': depth is -1, expected {DEPTHS}: leave it out for 3"),
        ("conv", {"depth": True}, f"network 'conv': depth is True, expected {DEPTHS}: leave it out for 3"),
        ("conv", {"depth": 2.0}, f"network 'conv': depth is 2.0, expected {DEPTHS}: leave it out for 3"),
        ("conv", {"depth": 513}, f"network 'conv': depth is 513, expected {DEPTHS}: leave it out for 3"),
        ("conv", {"channels": 65_537}, f"network 'conv': channels is 65537, expected {SIZES}: leave it out for 8"),
        (
            "linear",
            {"features": 65_536, "outputs": 65_536},
            "network 'linear' has 4294967296 parameters or more, expected 100000000 at most: make it smaller",
        ),
        (
            "conv",
            {"size": 65_536},
            "network 'conv': a sample has 12884901888 numbers, expected 100000000 at most: make it smaller",
        ),
        (
            "mlp",
            {"hidden": [4, True]},
            "network 'mlp': hidden is [4, True], expected a list of whole numbers from 1 to 65536: "
            "leave it out for (16, 16)",
        ),
        ("transformer", {"tied": 1}, "network 'transformer': tied is 1, expected true or false: leave it out for True"),
        (
            "branches",
            {"names": 2},
            "network 'branches': names is 2, expected a string: leave it out for 'left right'",
        ),
        (
            "batch_norm",
            {"momentum": float("nan")},
            "network 'batch_norm': momentum is nan, expected a number: leave it out for 0.1",
        ),
        (
            "batch_norm",
            {"momentum": 2},
            "network 'batch_norm': momentum is 2, expected 0 to 1: it is what the newest batch weighs",
        ),
        (
            "resnet",
            {"depth": 9},
            "network 'resnet': depth is 9, expected one of 8, 10, 18, 34, 50, 101, 152: take the nearest",
        ),
        ("early_exit", {"depth": 9}, "network 'early_exit': depth is 9, expected 8 at most: take fewer stages"),
        (
            "transformer",
            {"heads": 3},
            "network 'transformer': heads is 3, expected a divisor of width, which is 16: change one of them",
        ),
        (
            "branches",
            {"names": "left body"},
            "network 'branches': names has 'body', expected different words that no attribute is called: rename it",
        ),
        (
            "branches",
            {"names": "left left"},
            "network 'branches': names has 'left', expected different words that no attribute is called: rename it",
        ),
    ],
)
@pytest.mark.parametrize("build", [make, outline])
def test_what_make_refuses(build, name, options, expected):
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        build(name, options)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_outline_is_the_network_without_numbers(name):
    random_state = torch.get_rng_state()
    drawn, outlined = make(name), outline(name)
    assert [(key, each.shape) for key, each in outlined.state_dict().items()] == [
        (key, each.shape) for key, each in drawn.state_dict().items()
    ]
    assert all(each.is_meta for each in outlined.parameters())
    assert (outlined.branches, outlined.sparse, outlined.row) == (drawn.branches, drawn.sparse, drawn.row)
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"seed": -1}, "seed is -1, expected a whole number from 0 to 9223372036854775807: leave it out for 0"),
        ({"seed": True}, "seed is True, expected a whole number from 0 to 9223372036854775807: leave it out for 0"),
        (
            {"dtype": torch.int64},
            "dtype is torch.int64, expected one with a floating point: leave it out for torch.float32",
        ),
        (
            {"dtype": "float64"},
            "dtype is 'float64', expected one with a floating point: leave it out for torch.float32",
        ),
    ],
)
def test_seeds_and_dtypes_that_make_refuses(arguments, expected):
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        make("linear", **arguments)


@pytest.mark.parametrize(
    ("name", "uses", "expected"),
    [
        ("branches", ("middle",), "uses has 'middle', expected branches of the network, which are left, right"),
        (
            "linear",
            ("left",),
            "uses has 'left', expected branches of the network, which are none, since it has no branches",
        ),
        ("early_exit", ("third",), "uses leaves out 'second' before 'third', expected no gap: name it too"),
    ],
)
def test_uses_that_a_network_refuses(name, uses, expected):
    network = make(name)
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        network(network.batch(2, torch.Generator()), uses)
