"""What is handed out: a source distribution that makes the wheel, and a wheel that works where it is installed."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.architecture.test_files import shared_files

pytestmark = pytest.mark.tier("ci")

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("ddp", "reports", "scenarios", "simulator")

MARKED = """
import sys

import ddpsim.simulator
import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(3)
def test_the_sum_of_the_ranks(rank, world_size):
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert (total.item(), world_size) == (3, 3)
    assert ddpsim.simulator.__file__.startswith(sys.prefix)
"""


def run(*command, cwd):
    """What a command says; one that fails shows all of it."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(kind, source, folder):
    """The distribution that setuptools makes of a source tree; not by pip, which would load setuptools anew."""
    run(sys.executable, "-c", f"from setuptools.build_meta import *; build_{kind}({str(folder)!r})", cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory):
    clone = tmp_path_factory.mktemp("clone")
    for path in shared_files():
        target = clone / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.copy(path, target, follow_symlinks=False)
    return build("sdist", clone, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(source_distribution, tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source_distribution) as archive:
        archive.extractall(unpacked)
    (tree,) = unpacked.iterdir()
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_package_whole_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ddpsim"}
    assert len(tops) == 2
    files = [path.relative_to(ROOT) for path in shared_files() if path.is_file()]
    parts = {f"ddpsim/{path.as_posix()}" for path in files if path.parts[0] in PARTS}
    own = {path.relative_to("src").as_posix() for path in files if path.parts[0] == "src"}
    assert {name for name in names if name.startswith("ddpsim/")} == parts | own
    assert {"ddpsim/py.typed", "ddpsim/reports/forms/assets/document.schema.json"} <= parts | own


def test_the_wheel_works_where_it_is_installed(wheel, tmp_path):
    # Beside it are the packages of this environment, so that nothing is loaded: a .pth file names their folders.
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others))
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel]
    run(*pip, cwd=tmp_path)
    assert "uneven-inputs-without-join" in run(python.with_name("ddpsim"), "list", cwd=tmp_path)
    (tmp_path / "test_marked.py").write_text(MARKED)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "test_marked.py", cwd=tmp_path)
