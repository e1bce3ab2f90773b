"""What `make` and the networks refuse: one line each."""

import re

import pytest
import torch

from ddpsim import UsageError
from ddpsim.scenarios.training.models import NETWORKS, make_meta_network, make_network

SIZES = "a whole number from 1 to 65536"
DEPTHS = "a whole number from 1 to 512"
LISTED = ", ".join(NETWORKS)


VALUES = [
    *(("conv", "depth", depth, f"{DEPTHS}: leave it out for 3") for depth in (0, -1, True, 2.0, 513)),
    ("conv", "channels", 65_537, f"{SIZES}: leave it out for 8"),
    ("mlp", "hidden", [4, True], "a list of whole numbers from 1 to 65536: leave it out for (16, 16)"),
    ("transformer", "tied", 1, "true or false: leave it out for True"),
    ("branches", "names", 2, "a string: leave it out for 'left right'"),
    ("batch_norm", "momentum", float("nan"), "a number: leave it out for 0.1"),
    ("batch_norm", "momentum", 2, "0 to 1: it is what the newest batch weighs"),
    ("resnet", "depth", 9, "one of 8, 10, 18, 34, 50, 101, 152: take the nearest"),
    ("early_exit", "depth", 9, "8 at most: take fewer stages"),
    ("transformer", "heads", 3, "a divisor of width, which is 16: change one of them"),
]
OTHERS = [
    ("resent", {}, f" is 'resent', expected one of {LISTED}: did you mean 'resnet'?"),
    ("xyzzy", {}, f" is 'xyzzy', expected one of {LISTED}"),
    (3, {}, f" is 3, expected one of {LISTED}"),
    ("linear", {"depth": 3}, " 'linear': depth is no option, expected one of features, outputs"),
    (
        "linear",
        {"feature": 3},
        " 'linear': feature is no option, expected one of features, outputs: did you mean 'features'?",
    ),
    (
        "linear",
        {"features": 65_536, "outputs": 65_536},
        " 'linear' has 4294967296 parameters or more, expected 100000000 at most: make it smaller",
    ),
    (
        "conv",
        {"size": 65_536},
        " 'conv': a sample has 12884901888 numbers, expected 100000000 at most: make it smaller",
    ),
    *(
        (
            "branches",
            {"names": f"left {name}"},
            f" 'branches': names has {name!r}, expected distinct words that name no attribute of a module: rename it",
        )
        for name in ("body", "left")
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        *(
            (name, {key: value}, f" {name!r}: {key} is {value!r}, expected {expected}")
            for name, key, value, expected in VALUES
        ),
        *OTHERS,
    ],
)
@pytest.mark.parametrize("build", [make_network, make_meta_network])
def test_what_make_refuses(build, name, options, expected):
    with pytest.raises(UsageError, match=f"^network{re.escape(expected)}$"):
        build(name, options)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_outline_is_the_network_without_numbers(name):
    random_state = torch.get_rng_state()
    drawn, outlined = make_network(name), make_meta_network(name)
    assert [(key, each.shape) for key, each in outlined.state_dict().items()] == [
        (key, each.shape) for key, each in drawn.state_dict().items()
    ]
    assert all(each.is_meta for each in outlined.parameters())
    assert (outlined.branches, outlined.sparse, outlined.row) == (drawn.branches, drawn.sparse, drawn.row)
    assert torch.equal(torch.get_rng_state(), random_state)


SEEDS = "a whole number from 0 to 9223372036854775807: leave it out for 0"
DTYPES = "one with a floating point: leave it out for torch.float32"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("seed", -1, SEEDS), ("seed", True, SEEDS), ("dtype", torch.int64, DTYPES), ("dtype", "float64", DTYPES)],
)
def test_seeds_and_dtypes_that_make_refuses(key, value, expected):
    with pytest.raises(UsageError, match=f"^{re.escape(f'{key} is {value!r}, expected {expected}')}$"):
        make_network("linear", **{key: value})


@pytest.mark.parametrize(
    ("name", "branch", "expected"),
    [
        ("branches", "middle", "has 'middle', expected branches of the network, which are left, right"),
        (
            "linear",
            "left",
            "has 'left', expected branches of the network, which are none, since it has no branches",
        ),
        ("early_exit", "third", "leaves out 'second' before 'third', expected no gap: name it too"),
    ],
)
def test_uses_that_a_network_refuses(name, branch, expected):
    network = make_network(name)
    with pytest.raises(UsageError, match=f"^uses {re.escape(expected)}$"):
        network(network.draw_batch(2, torch.Generator()), (branch,))
