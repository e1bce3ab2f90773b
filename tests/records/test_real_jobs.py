"""Real jobs on gloo: scenarios of the zoo hang in processes, and torch's own recorder has what is diagnosed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpsim.scenarios import load
from ddpsim.scenarios.records.reading import found_in
from ddpsim.simulator.records.diagnosis import diagnose
from ddpsim.simulator.records.job import job_of

ROOT = Path(__file__).resolve().parents[2]

NAMES = (
    "uneven-inputs-without-join",
    "op-type-differs",
    "cross-group-order-inversion",
    "exception-on-one-rank",
    "rank0-eval-through-wrapper-with-buffers",
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """A folder of dumps for each scenario."""
    folder = tmp_path_factory.mktemp("real")
    command = [sys.executable, "-W", "ignore", "-m", "tests.records.real_jobs", str(folder), *NAMES]
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "500"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=300)
    return folder


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("name", NAMES)
def test_a_real_dump_blames_whom_the_simulation_blames(dumps, name):
    diagnosis = diagnose(job_of(found_in([str(dumps / name)]).records))
    expected = load(name).expected
    ranks = expected.ranks(diagnosis.job.world_size) if callable(expected.ranks) else expected.ranks
    assert ranks in {finding.ranks for finding in diagnosis.findings}
