"""`ddpsim bench`: a row for each that is measured, what is not as expected, and one line for bad input."""

import re

import pytest

from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.cli.bench import _table_rows
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.running.measuring import MeasuredCase, Measurement


@pytest.fixture
def bench(console):
    """Run `ddpsim bench` with the words of a line; returns status, lines of stdout, and stderr."""

    def run(line=""):
        status, out, err = console("bench", *line.split())
        return status, out.splitlines(), err

    return run


def test_a_row_for_each(bench):
    status, (head, blank, columns, *rows), err = bench("join-baseline --world-size 2 --world-size 3 --rounds 2")
    assert (status, blank, err) == (ExitStatus.AS_EXPECTED, "", "")
    assert re.fullmatch(r"torch \S+, Python 3\.\d+\.\d+, \d+ cores, on memory, 2 alternating rounds", head)
    assert columns.split() == ["name", "by", "ranks", "events", "events/s", "median", "ms", "least", "most", "ratio"]
    cells = [row.split() for row in rows]
    expected = [
        ["join-baseline", engine, str(size), f"{len(run_scenario('join-baseline', engine, world_size=size).trace):,}"]
        for size in (2, 3)
        for engine in ("torch", "ddp")
    ]
    assert [row[:4] for row in cells] == expected
    for row in cells:
        assert float(row[6]) <= float(row[5]) <= float(row[7])
    assert [row[8] for row in cells[::2]] == ["1.00"] * 2
    assert len({len(line) for line in (columns, *rows)}) == 1


def test_figures_are_medians_and_their_ratio_to_the_first_of_a_scenario():
    result = run_scenario("send-send")
    case, other = MeasuredCase(load("send-send"), Engine.TORCH), MeasuredCase(load("send-send"), Engine.DDP)
    measured = [
        Measurement(case, (0.004, 0.001, 0.002), 8, (result,)),
        Measurement(other, (0.0051, 0.003, 0.0081), 12, (result,)),
    ]
    _, *rows = _table_rows(measured)
    assert [row.split() for row in rows] == [
        ["send-send", "torch", "4", "8", "4,000", "2.0", "1.0", "4.0", "1.00"],
        ["send-send", "ddp", "4", "12", "2,353", "5.1", "3.0", "8.1", "2.55"],
    ]


def test_by_default_a_training_and_a_deadlock(bench):
    status, (_, _, _, *rows), err = bench("--rounds 1 --engine torch")
    assert (status, err) == (ExitStatus.AS_EXPECTED, "")
    assert [row.split()[:3] for row in rows] == [
        ["join-baseline", "torch", "4"],
        ["uneven-inputs-without-join", "torch", "4"],
    ]


FLAKY = """\
import torch.distributed as dist

runs = []

def main(rank):
    if rank == 0:
        runs.append(rank)
    if len(runs) != 2 or rank:
        dist.barrier()
"""


def test_one_run_of_several_that_ends_otherwise_is_told(bench, tmp_path):
    path = tmp_path / "flaky.py"
    path.write_text(FLAKY)
    status, out, err = bench(f"{path}:main --rounds 3 --world-size 2 --engine torch")
    assert (status, len(out)) == (ExitStatus.OTHERWISE, 4)
    assert err == (
        f"ddpsim: {path}:main, engine torch: "
        "not as expected: found fail, deadlock.missing_rank, rank 0; expected pass\n"
    )
