"""The benchmarks can be imported: what they measure has not gone elsewhere."""

from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted([*(path.stem for path in FOLDER.glob("*.py")), "scoreboard.__main__"])


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_importable(name):
    assert callable(import_module(f"benchmarks.{name}").main)
