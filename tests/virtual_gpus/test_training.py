"""An ordinary script for GPUs, and the same with a mistake (examples/gpu_training.py and gpu_hang.py)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo  # which torch's optimizers import: here once, for all ranks

from ddpsim import Code, Verdict, simulate_program

pytestmark = pytest.mark.tier("ci")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAINING = EXAMPLES / "gpu_training.py"
HANG = EXAMPLES / "gpu_hang.py"


def losses(output):
    return [float(loss) for loss in re.findall(r"loss (\S+)", output)]


def train(folder, capfd, *arguments, **options):
    checkpoint = folder / "checkpoint.pt"
    result = simulate_program([str(TRAINING), "--checkpoint", str(checkpoint), *arguments], 4, **options)
    assert result.verdict is Verdict.PASS, str(result)
    return result, capfd.readouterr().out, torch.load(checkpoint, map_location="cpu")


def test_it_comes_to_the_numbers_of_the_cpu(tmp_path, capfd):
    _, out, model = train(tmp_path, capfd, gpus=4)
    assert sorted(re.findall(r"rank .*", out)) == [f"rank {rank} on cuda:{rank} by nccl" for rank in range(4)]
    _, cpu_out, cpu_model = train(tmp_path, capfd, "--device", "cpu")
    assert sorted(re.findall(r"rank .*", cpu_out)) == [f"rank {rank} on cpu by gloo" for rank in range(4)]
    assert len(losses(out)) == 2
    assert losses(out) == losses(cpu_out)
    assert all(torch.equal(model[name], cpu_model[name]) for name in cpu_model)


@pytest.mark.tier("nightly")
def test_and_to_those_of_real_processes(tmp_path, capfd):
    result, out, model = train(tmp_path, capfd, gpus=4)
    again, _, _ = train(tmp_path, capfd, gpus=4)
    assert again.trace.digest() == result.trace.digest()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(TRAINING)]
    real = subprocess.run(
        [*command, "--device", "cpu", "--checkpoint", str(tmp_path / "real.pt")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert losses(real.stdout) == pytest.approx(losses(out), abs=2e-5)
    for name, value in torch.load(tmp_path / "real.pt").items():
        torch.testing.assert_close(model[name], value, rtol=1e-4, atol=1e-5)


def test_the_mistake_is_found_at_its_line(capfd):
    def number(text):
        (line,) = [at for at, line in enumerate(HANG.read_text().splitlines(), 1) if text in line]
        return line

    finding = simulate_program([str(HANG)], 4, gpus=4).findings[0]
    assert (finding.code, finding.ranks) == (Code.MISMATCH_SHAPE, (0,))
    rows = [line for line in str(finding).splitlines() if re.match(r"  rank \d ", line)]
    assert [row.split()[1] for row in rows] == ["0", "1", "2", "3"]
    assert f"gpu_hang.py:{number('dist.all_reduce(loss)')}" in rows[0]
    backward = f"gpu_hang.py:{number('.backward()')}  DDP #0 bucket 0 of step 5"
    assert all(backward in row for row in rows[1:])
