"""The benchmarks can be imported: what they measure has not gone elsewhere."""

from importlib import import_module
from pathlib import Path

from benchmarks import ways
from tests.kit.rows import rows

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted([*(path.stem for path in FOLDER.glob("*.py")), "scoreboard.__main__"])


@rows("name", NAMES)
def test_a_benchmark_is_importable(name):
    assert callable(import_module(f"benchmarks.{name}").main)


def test_a_way_is_measured():
    walk = ways.walked(ways.one_thread)
    assert walk.files[0].endswith("process_group/through_torch.py")
    assert (len(set(walk.files)), len(walk.files)) < (28, 112)
