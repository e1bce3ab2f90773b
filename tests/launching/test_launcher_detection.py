"""Which programs run as their own launcher first: those that call what starts processes."""

import pytest

from ddpsim.simulator.launching.launch import may_start_own_ranks, uses_trainer_strategy
from ddpsim.simulator.launching.script import Script
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
        ("import psutil, os\nprint(psutil.Process(os.getpid()).memory_info())", False),
        ("import multiprocessing as mp\ndef log(queue):\n    print(queue.get())\nmp.Process(target=log)", False),
        ("from torch.multiprocessing import Process\nProcess(target=lambda: print('here'))", False),
        ("import multiprocessing as mp\nmp.Process(target=lambda: dist.barrier())", True),
        ("import multiprocessing as mp\nmp.Process(None, work)", True),
        ("import multiprocessing as mp\nmp.Process(**options)", True),
        ("import multiprocessing as mp\nmp.Process(target=functools.partial(log, 1))", True),
        ("import multiprocessing as mp, some\ndef log():\n    some.do()\nmp.Process(target=log)", True),
        ("from multiprocessing import Process as P\nP(target=work)", True),
    ],
)
def test_what_it_calls(tmp_path, monkeypatch, source, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(source)
    assert may_start_own_ranks(Script(("train.py",))) is expected


@pytest.mark.parametrize(("call", "expected"), [("Trainer(strategy='ddp_notebook')", True), ("mp.spawn(f)", False)])
def test_who_starts_no_process_under_torchrun(tmp_path, monkeypatch, call, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import parts")
    (tmp_path / "parts.py").write_text(call)
    assert uses_trainer_strategy(Script(("train.py",))) is expected


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
    assert may_start_own_ranks(Script(("train.py",)))
    assert may_start_own_ranks(Script(("-m", "train_by_module")))
    assert not may_start_own_ranks(Script(("plain.py",)))


def test_ordinary_programs():
    found = {case.path.name for case in CASES if may_start_own_ranks(Script((str(case.path),)))}
    assert found == {"spawn.py", "start_processes.py", "tutorial_processes.py"}


def test_what_the_function_of_a_process_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = "import multiprocessing as mp\nfrom parts import Worker\nmp.Process(target=Worker(1).run).start()"
    for ends, expected in (("return self.number", False), ("train(self.number)", True), ("self.number.loud()", False)):
        (tmp_path / "train.py").write_text(main)
        (tmp_path / "parts.py").write_text(
            "from torch import distributed as d\n"
            "class Worker:\n"
            "    def run(self):\n"
            f"        {ends}\n"
            "def train(rank):\n"
            "    d.init_process_group()\n"
        )
        assert may_start_own_ranks(Script(("train.py",))) is expected
