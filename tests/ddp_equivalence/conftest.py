"""Every test here runs with torch's engine and with ours.

Of the cases that run with both, one of each test runs with torch's by default, and all by night: what tests expect is
what torch does, so its engine fails them only where torch has changed, or where a test is wrong. That the simulator
serves its calls, tests/ddp/test_equals_torch.py and the zoo notice. Nobody else notices what only torch's engine has.

With both run all tests except those marked `torch_only(reason)`, and those with constructor options that only torch's
engine has. A test whose outcome depends on the engine asks for the fixture `engine_name`.
"""

from __future__ import annotations

from inspect import signature

import pytest

from tests.ddp_equivalence import engine
from tests.ddp_equivalence.test_plain import OPTIONS


@pytest.fixture(autouse=True, params=engine.ENGINES)
def engine_name(request, monkeypatch):
    """What `DistributedDataParallel` of engine.py makes."""
    monkeypatch.setattr(engine, "chosen", engine.ENGINES[request.param])
    return request.param


def pytest_collection_modifyitems(config, items):
    verdicts = [(item, _is_possible(item)) for item in items]
    config.hook.pytest_deselected(items=[item for item, is_possible in verdicts if not is_possible])
    items[:] = [item for item, is_possible in verdicts if is_possible]
    with_ours, seen = {item.nodeid for item in items}, set()
    for item in items:
        test, engine_name, case = item.nodeid.partition("[torch")
        if engine_name and f"{test}[ddp{case}" in with_ours:
            if test in seen:
                item.add_marker(pytest.mark.tier("nightly"))
            seen.add(test)


def _is_possible(item):
    chosen = item.callspec.params if hasattr(item, "callspec") else {}
    if chosen.get("engine_name") != "ddp":
        return True
    options = chosen.get("options") or OPTIONS.get(chosen.get("name"), {})
    known = signature(engine.ENGINES["ddp"]).parameters
    return options.keys() <= known.keys() and not item.get_closest_marker("torch_only")
