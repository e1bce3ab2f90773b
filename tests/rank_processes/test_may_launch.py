"""Which programs run as their own launcher first: those that call what starts processes."""

import pytest

from ddpsim.simulator.rank_processes.may_launch import may_launch
from ddpsim.simulator.rank_processes.program import Program
from tests.compatibility.cases import CASES


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)", True),
        ("from torch.multiprocessing import spawn as start\nstart(work)", True),
        ("import multiprocessing\nmultiprocessing.get_context('fork').Process(target=work).start()", True),
        ("from accelerate import notebook_launcher\nnotebook_launcher(work)", True),
        ("Trainer(strategy='ddp_spawn')", True),
        ("from torch.distributed.run import main\nmain([])", True),
        ("from torch.distributed import run", True),
        ("import multiprocessing as mp\nmp.set_start_method('spawn')\nprint(mp.cpu_count())", False),
        ("from torch.multiprocessing import Process, spawn\nprint('mp.spawn(work)')", False),
        ("# mp.spawn(work)\nimport torch.distributed as dist", False),
    ],
)
def test_what_it_calls(tmp_path, monkeypatch, source, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(source)
    assert may_launch(Program(("train.py",))) is expected


def test_what_it_imports_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, source in {
        "train.py": "from tools.start import launch",
        "train_by_module.py": "import tools.inner.deep",
        "tools/__init__.py": "",
        "tools/start.py": "from . import other\nfrom .inner.deep import go",
        "tools/inner/__init__.py": "from ..start import launch",
        "tools/inner/deep.py": "import torch.multiprocessing as mp\ndef go(work):\n    mp.spawn(work)",
        "tools/other.py": "this is no Python",
        "plain.py": "import tools.other, json",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert may_launch(Program(("train.py",)))
    assert may_launch(Program(("-m", "train_by_module")))
    assert not may_launch(Program(("plain.py",)))


def test_ordinary_programs():
    found = {case.path.name for case in CASES if may_launch(Program((str(case.path),)))}
    helps_itself = {"process_pool.py"}  # by a process that is no rank
    assert found == {"spawn.py", "start_processes.py", "tutorial_processes.py"} | helps_itself
