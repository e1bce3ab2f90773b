"""Which line of the user's is shown as the caller of a line in a framework, wherever the framework's files lie."""

import subprocess
import sys

import pytest

from ddpsim import EventKind, simulate_program

COMM = "import torch.distributed as dist\n\n\ndef sync():\n    dist.barrier()\n"
ENGINE = "from framework.comm import sync\n\n\ndef step():\n    sync()\n"
TRAIN = (
    "import torch.distributed as dist\nfrom framework.engine import step\ndist.init_process_group('gloo')\n\nstep()\n"
)
FRAMEWORK = {"framework/comm.py": COMM, "framework/engine.py": ENGINE}


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def below(name, files):
    return {f"{name}/{path}": text for path, text in files.items()}


def barrier_of(command):
    """Where the text says that rank 0's barrier was called."""
    result = simulate_program(command, 1)
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE]
    return next(call.location for call in calls if call.signature.operation == "barrier")


CASES = {
    "elsewhere on PYTHONPATH": (below("lib", FRAMEWORK), "comm.py:5 from train.py:5"),
    "a helper beside the script": (below("own", FRAMEWORK), "comm.py:5 from engine.py:5"),
    "a submodule": ({**below("own", FRAMEWORK), "own/framework/.git": "gitdir: x"}, "comm.py:5 from train.py:5"),
    "a checkout": ({**below("own", FRAMEWORK), "own/framework/.git/HEAD": ""}, "comm.py:5 from train.py:5"),
    "pip --target": ({**below("lib", FRAMEWORK), "lib/x-1.dist-info/RECORD": ""}, "comm.py:5 from train.py:5"),
    "site-packages": (below("own/.venv/lib/site-packages", FRAMEWORK), "comm.py:5 from train.py:5"),
    "the script's own checkout": ({**below("lib", FRAMEWORK), ".git/HEAD": ""}, "comm.py:5 from train.py:5"),
}


@pytest.mark.tier("ci")
@pytest.mark.parametrize(("files", "where"), CASES.values(), ids=CASES)
def test_the_script_is_the_caller_and_what_lies_beside_it_unless_it_is_a_checkout(tmp_path, monkeypatch, files, where):
    written(tmp_path, {"own/train.py": TRAIN, **files})
    monkeypatch.setenv("PYTHONPATH", "lib:own/.venv/lib/site-packages")
    for path in ("lib", "own/.venv/lib/site-packages"):
        monkeypatch.syspath_prepend(str(tmp_path / path))
    monkeypatch.chdir(tmp_path)
    assert barrier_of(["own/train.py"]) == where


@pytest.mark.tier("ci")
def test_a_module_run_by_m_is_the_program_with_its_package(tmp_path, monkeypatch):
    program = TRAIN.replace("framework.engine", "pkg.parts.engine")
    engine = "from framework.comm import sync\nfrom pkg.parts.twice import twice\n\ndef step():\n    twice(sync)\n"
    parts = {"pkg/parts/engine.py": engine, "pkg/parts/twice.py": "def twice(call):\n    call()\n"}
    written(tmp_path, {**FRAMEWORK, "pkg/tools/train.py": program, **parts, "pkg/.git/HEAD": ""})
    monkeypatch.chdir(tmp_path)
    assert barrier_of(["-m", "pkg.tools.train"]) == "comm.py:5 from twice.py:2"


@pytest.mark.tier("ci")
def test_under_torchruns_module_the_script_is_the_caller(tmp_path, monkeypatch):
    written(tmp_path, {"own/train.py": TRAIN, **below("lib", FRAMEWORK)})
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.chdir(tmp_path)
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "own/train.py"]
    assert barrier_of(command) == "comm.py:5 from train.py:5"


@pytest.mark.tier("ci")
def test_a_frameworks_thread_has_its_outermost_line(tmp_path, monkeypatch):
    engine = (
        "import threading\nfrom framework.comm import sync\n\ndef inner():\n    sync()\n\ndef step():\n"
        "    thread = threading.Thread(target=work)\n    thread.start()\n    thread.join()\n\n"
    )
    loop = "from framework import engine\n\ndef work():\n    engine.inner()\n\nengine.work = work\n"
    files = {"lib/framework/comm.py": COMM, "lib/framework/engine.py": engine, "lib/framework/loop.py": loop}
    written(tmp_path, {"lib/.git": "", "own/train.py": f"import framework.loop\n{TRAIN}", **files})
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.chdir(tmp_path)
    assert barrier_of(["own/train.py"]) == "comm.py:5 from loop.py:4"


@pytest.mark.tier("ci")
def test_a_test_of_pytest_is_the_caller_of_a_framework(tmp_path, monkeypatch):
    test = (
        "import pytest\nfrom framework.engine import step\n\n\n@pytest.mark.ranks(2)\n"
        "def test_step(rank):\n    if rank:\n        step()\n"
    )
    written(tmp_path, {"tests/test_step.py": test, **below("lib", FRAMEWORK), ".git/HEAD": "", "lib/.git/HEAD": ""})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "comm.py:5 from test_step.py:8" in done.stdout
