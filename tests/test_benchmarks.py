"""The benchmarks can be imported: what they measure has not gone elsewhere."""

from importlib import import_module
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).resolve().parents[1].glob("benchmarks/*.py"))


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_benchmark_is_importable(name):
    assert callable(import_module(f"benchmarks.{name}").main)
