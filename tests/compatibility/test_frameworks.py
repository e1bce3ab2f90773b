"""Frameworks: accelerate's own scripts, examples on virtual GPUs, and mistakes in programs that use them.

That the examples print what they print under torchrun is tested with the other programs.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddpsim import Verdict, replay, simulate_program
from ddpsim.scenarios.cli import main
from tests.compatibility.cases import CASES, FOLDER, lacking
from tests.compatibility.comparison import difference
from tests.compatibility.framework_bugs import BUGS
from tests.compatibility.running import CRASH_AT_EXIT

pytestmark = pytest.mark.tier("nightly")

EXAMPLES = tuple(case for case in CASES if case.command.startswith("frameworks/"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)


def need(source):
    if reason := lacking(source):
        pytest.skip(reason)


def lines_of(capfd):
    return [line for line in capfd.readouterr().out.splitlines() if line.strip()]


# --- accelerate's own scripts -----------------------------------------------------------------------------------------

SCRIPTS = ("test_script", "test_ops", "test_sync")

IN_EARNEST = """
from accelerate import PartialState

PartialState(cpu=True)  # else accelerate goes on without a group where there is no GPU

from accelerate.test_utils.scripts import {script}

if __name__ == "__main__":
    {script}.main()
"""


def torchrun(command, world_size):
    """Exit status, what the ranks printed and what was said besides, on real gloo."""
    ranks = ("--nproc-per-node", str(world_size), "--redirects", "1", "--log-dir", "logs_of_torchrun")
    words = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", *ranks, *command)
    for _ in range(4):
        shutil.rmtree("logs_of_torchrun", ignore_errors=True)
        ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
        if CRASH_AT_EXIT not in ran.stderr:
            break
    lines = [line for log in Path("logs_of_torchrun").rglob("stdout.log") for line in log.read_text().splitlines()]
    return ran.returncode, list(filter(str.strip, lines)), ran.stderr


@pytest.mark.parametrize("uses_cpu", [False, True], ids=["as it is", "as accelerate launch --cpu"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_accelerate(script, uses_cpu, capfd, monkeypatch):
    need("import accelerate")
    if uses_cpu:
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    command = ["-m", f"accelerate.test_utils.scripts.{script}"]
    status, expected, said = torchrun(command, 2)
    assert status == 0, said[-2000:]
    result = simulate_program(command, 2)
    assert result.verdict is Verdict.PASS, str(result)
    assert difference(expected, lines_of(capfd)) is None


@pytest.mark.parametrize("script", ["test_ops", "test_sync"])
def test_a_script_of_accelerate_with_a_group(script, capfd, tmp_path):
    need("import accelerate")
    (tmp_path / "in_earnest.py").write_text(IN_EARNEST.format(script=script))
    status, expected, said = torchrun(["in_earnest.py"], 2)
    assert status == 0, said[-2000:]
    result = simulate_program(["in_earnest.py"], 2)
    assert result.verdict is Verdict.PASS, str(result)
    assert len(result.trace) > 60  # with calls, then
    assert difference(expected, lines_of(capfd)) is None


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_accelerate_on_virtual_gpus(script, capfd):
    need("import accelerate")
    result = simulate_program(["-m", f"accelerate.test_utils.scripts.{script}"], 2, gpus=2)
    assert result.verdict is Verdict.PASS, str(result)
    if script != "test_sync":  # which says nothing of it
        assert "Distributed environment: DistributedType.MULTI_GPU  Backend: nccl" in "\n".join(lines_of(capfd))


def test_what_fails_on_four_real_ranks_fails_here(monkeypatch):
    need("import accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    command = ["-m", "accelerate.test_utils.scripts.test_script"]
    line = "The values for attribute 'shape' do not match: torch.Size([0, 4]) != torch.Size([1, 4])."
    status, _, said = torchrun(command, 4)
    assert status == 1
    assert line in said
    result = simulate_program(command, 4)
    assert sorted(result.errors) == [2, 3]
    assert {str(error) for error in result.errors.values()} == {line}


# --- launchers of frameworks ------------------------------------------------------------------------------------------

ACCELERATE = """
import torch
from accelerate import Accelerator, debug_launcher, notebook_launcher

def train():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.arange(32.).reshape(8, 4), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        loss = model(batch).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print("rank", accelerator.process_index, "of", accelerator.num_processes, round(loss.item(), 4))

if __name__ == "__main__":
    {launcher}(train, num_processes=2)
    print("after")
"""

LIGHTNING = """
import lightning, torch

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        print("rank", self.global_rank, "of", self.trainer.world_size, round(self.layer.weight.sum().item(), 4))

if __name__ == "__main__":
    lightning.seed_everything(0)
    data = torch.utils.data.DataLoader(torch.arange(32.).reshape(8, 4), batch_size=2)
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    lightning.Trainer(accelerator="cpu", devices=2, strategy="{launcher}", max_epochs=1, **quiet).fit(Module(), data)
    print("after")
"""


@pytest.mark.parametrize(
    ("source", "launcher"),
    [(ACCELERATE, name) for name in ("notebook_launcher", "debug_launcher")]
    + [(LIGHTNING, name) for name in ("ddp_spawn", "ddp_fork", "ddp_notebook")],
)
def test_a_launcher_makes_ranks(source, launcher, capfd, tmp_path):
    need(source)
    (tmp_path / "train.py").write_text(source.replace("{launcher}", launcher))
    real = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, timeout=300)
    assert real.returncode == 0, real.stderr[-2000:]
    result = simulate_program(["train.py"], 2)
    assert result.verdict is Verdict.PASS, str(result)
    said = ("rank", "after")
    expected, found = (
        sorted(line for line in lines if line.startswith(said)) for lines in (real.stdout.splitlines(), lines_of(capfd))
    )
    assert len(expected) == 3
    assert found == expected


@pytest.mark.parametrize("case", EXAMPLES, ids=str)
def test_an_example_has_the_same_numbers_on_virtual_gpus(case, capfd):
    """Without dropout, which draws from the generator of the device."""
    need(text := case.path.read_text())
    no_dropout = "GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, "
    Path(case.path.name).write_text(text.replace("GPT2Config(", no_dropout))
    assert simulate_program([case.path.name], 2).verdict is Verdict.PASS
    expected = lines_of(capfd)
    for folder in filter(Path.is_dir, Path().iterdir()):  # checkpoints, which get other names where there are some
        shutil.rmtree(folder)
    result = simulate_program([case.path.name], 2, gpus=2)
    assert result.verdict is Verdict.PASS, str(result)
    found = lines_of(capfd)
    if case.path.name == "accelerate_loop.py":  # joins uneven inputs on GPUs only
        expected, found = (tuple(line for line in lines if "uneven" not in line) for lines in (expected, found))
    assert difference(expected, found) is None


def test_join_uneven_inputs_has_the_numbers_of_join_on_gloo(capfd, tmp_path):
    """accelerate joins on GPUs only: there torch's Join takes its place."""
    source = (FOLDER / "frameworks" / "accelerate_loop.py").read_text()
    need(source)
    call = "    with accelerator.join_uneven_inputs([model], even_batches=False):\n"
    assert source.count(call) == 1
    joined = source.replace(
        call,
        "    from torch.distributed.algorithms.join import Join\n\n"
        "    loader.batch_sampler.even_batches = False\n"
        "    with Join([model], throw_on_early_termination=False):\n",
    ).replace("    return steps\n", "    loader.batch_sampler.even_batches = True\n    return steps\n")
    Path("program.py").write_text(joined)
    _, expected, _ = torchrun(["program.py"], 2)
    Path("program.py").write_text(source)
    result = simulate_program(["program.py"], 2, gpus=2)
    assert result.verdict is Verdict.PASS, str(result)
    uneven = [sorted(filter(re.compile("uneven").search, lines)) for lines in (expected, lines_of(capfd))]
    assert [line.partition(" weights")[0] for line in uneven[0]] == [
        "rank 0 took 4 uneven steps",
        "rank 1 took 3 uneven steps",
    ]
    assert difference(*uneven) is None


@pytest.mark.parametrize(
    ("name", "steps"),
    [("accelerate_loop", 12), ("transformers_trainer", 12), ("lightning_trainer", 12), ("fabric_loop", 8)],
)
def test_a_loop_is_the_same_training_on_one_rank(name, steps, capfd):
    source = (FOLDER / "frameworks" / f"{name}.py").read_text()
    need(source)
    Path("train.py").write_text(source)
    assert main(["compare", "--world-size", "2", "train.py"]) == 0
    out = capfd.readouterr().out
    assert re.search(rf"^THE SAME .*\n +same +{steps} steps, in each ", out, re.MULTILINE), out


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_mistake_is_found_and_replayed(bug):
    need(bug.source)
    Path(bug.name_of_file).write_text(bug.source)
    result = simulate_program([bug.name_of_file], bug.world_size)
    found = result.findings[0]
    assert (found.code, found.ranks) == (bug.code, bug.ranks), str(result)
    assert bug.cause in found.body
    told = [line for line in found.body.splitlines() if re.match(r" *rank \d", line)]
    assert len(told) == bug.world_size
    assert bug.place in told[0]
    assert all(bug.name_of_file in line for line in told)
    again = replay([bug.name_of_file], bug.world_size, str(result.schedule))
    assert again.trace.digest() == result.trace.digest()
    assert str(again) == str(result)


@pytest.mark.parametrize("case", EXAMPLES, ids=str)
def test_the_program_without_it_is_clean(case):
    need(case.path.read_text())
    shutil.copy(case.path, ".")
    result = simulate_program([case.path.name], 3)
    assert result.verdict is Verdict.PASS, str(result)
    assert not result.findings
