"""docs/scenarios.md names every key, action, network and option there is; its blocks run in test_blocks.py."""

import re

import pytest

from ddpsim import UsageError
from ddpsim.scenarios import load
from ddpsim.scenarios.training.models import NETWORKS
from ddpsim.scenarios.training.training import Action, CommunicationHook, OptimizerName
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")


def known_keys(tmp_path, text):
    """The keys that a file may have, from what it says to one that it may not."""
    path = tmp_path / "unknown.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(str(path))
    return re.search(r"expected one of ([\w, ]+)", str(caught.value))[1].split(", ")


@pytest.mark.parametrize(
    "text",
    [
        "unknown = 1",
        'summary = "x"\noptimizer = { unknown = 1 }',
        'summary = "x"\njoin = { unknown = 1 }',
        'summary = "x"\niterations = { unknown = 1 }',
        'summary = "x"\n[[exception]]\nunknown = 1',
        'summary = "x"\n[[fault]]\nkind = "delay"\nunknown = 1',
        'summary = "x"\n[[fault]]\nkind = "crash"\nunknown = 1',
        'summary = "x"\n[expect]\nunknown = 1',
    ],
)
def test_every_key_is_in_the_text(tmp_path, text):
    for key in known_keys(tmp_path, ('summary = "x"\n' + text) if text == "unknown = 1" else text):
        assert re.search(rf"\b{key}\b", TEXT), key


@pytest.mark.parametrize("kind", [Action, CommunicationHook, OptimizerName])
def test_every_choice_and_network_is_in_the_text(kind):
    for member in kind:
        assert f"`{member.value}`" in TEXT
    for name in NETWORKS:
        assert re.search(rf"\b{name}\b", TEXT), name
