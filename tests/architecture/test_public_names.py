"""The front door of each package: what `__all__` lists is all there is, belongs to the package and is documented."""

import __future__

import importlib
import inspect
import re
import types
from pathlib import Path

import pytest

PACKAGES = ("ddpsim", "ddpsim.ddp", "ddpsim.reports", "ddpsim.scenarios")
CONTRACT = {
    "ddpsim": {"simulate", "explore", "replay", "Verdict", "Budget"},
    "ddpsim.ddp": {"DistributedDataParallel"},
}


def public_names(package: types.ModuleType) -> set[str]:
    """The names a reader finds in the package, without submodules, private names and `from __future__` flags."""
    apart = (types.ModuleType, __future__._Feature)
    return {name for name, value in vars(package).items() if name[0] != "_" and not isinstance(value, apart)}


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_exactly_all(name):
    package = importlib.import_module(name)
    exported = list(getattr(package, "__all__", ()))
    modules = {export for export in exported if isinstance(getattr(package, export), types.ModuleType)}
    assert len(exported) == len(set(exported))
    assert set(exported) - modules == public_names(package)
    assert CONTRACT.get(name, set()) <= set(exported)


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_our_own_and_documented(name):
    package = importlib.import_module(name)
    for export in getattr(package, "__all__", ()):
        value = getattr(package, export)
        if isinstance(value, types.ModuleType) or callable(value):
            home = getattr(value, "__module__", None) or value.__name__
            assert home.split(".")[0] == "ddpsim", f"{name}.{export} comes from {home}"
            assert inspect.getdoc(value), f"{name}.{export} has no docstring"


def test_the_api_page_has_each_name_once():
    page = Path(__file__).parents[2].joinpath("docs/api.md").read_text(encoding="utf-8")
    shown = [each for each in re.findall(r"^::: ([\w.]+)$", page, re.M) if each not in PACKAGES]
    public = [f"{name}.{each}" for name in PACKAGES for each in getattr(importlib.import_module(name), "__all__", ())]
    assert sorted(shown) == sorted(public)
