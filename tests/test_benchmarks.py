"""The benchmarks can be imported: what they measure has not gone elsewhere."""

import re
from importlib import import_module
from pathlib import Path

from benchmarks import ways
from tests.kit.rows import rows

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted([*(path.stem for path in FOLDER.glob("*.py")), "scoreboard.__main__"])


@rows("name", NAMES)
def test_a_benchmark_is_importable(name):
    assert callable(import_module(f"benchmarks.{name}").main)


def test_the_way_of_one_call_is_the_one_that_the_architecture_page_draws():
    walk = ways.walked(ways.agreed)
    page = (FOLDER.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^\| \d+ \| `([^`]+)` \|", page, re.MULTILINE)
    program = "simulator/one_run.py"  # calls the program, to which the walk returns
    assert [file for file in dict.fromkeys(walk.files) if file != program] == drawn
    assert len(walk.files) <= 150
