"""The library of the virtual GPUs is built once, in the user's folder for caches; what is missing is said in a line."""

from importlib.resources import files

import pytest
import torch

from ddpsim.scenarios.cli.commands import main
from ddpsim.simulator.virtual_gpus import building
from ddpsim.simulator.virtual_gpus.building import PACKAGE, NoVirtualGpusError, build_device, library_path
from ddpsim.simulator.virtual_gpus.cuda_module import visible_count


def run_without_library(folder, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.chdir(folder)
    (folder / "own.py").write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    status = main(["run", "--gpus", "1", "--world-size", "1", "own.py"])
    return status, capfd.readouterr().err


def test_no_compiler(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert run_without_library(tmp_path, monkeypatch, capfd) == (
        2,
        "ddpsim: virtual GPUs need a C++ compiler once per version of torch, and there is no g++ or clang++ here: "
        "install one (Debian: apt-get install g++), or name one in CXX\n",
    )


def test_a_compiler_that_fails(tmp_path, monkeypatch, capfd):
    (compiler := tmp_path / "own-compiler").write_text("#!/bin/sh\necho 'device.cpp:1: error: too old' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    status, err = run_without_library(tmp_path, monkeypatch, capfd)
    (log,) = (tmp_path / "cache").rglob("*.log")
    assert (status, err.splitlines()) == (
        2,
        [
            "ddpsim: building the virtual GPUs, once for this version of torch (10 to 30 s)",
            f"ddpsim: virtual GPUs could not be built for torch {torch.__version__} by {compiler}: device.cpp:1: "
            f"error: too old; all of its output is in {log}",
        ],
    )
    assert "error: too old" in log.read_text()


def test_it_is_built_once(tmp_path, monkeypatch):
    """By a compiler that writes what it is asked for."""
    (compiler := tmp_path / "own-compiler").write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = []
    first, second = (build_device(lambda: told.append("builds")) for _ in range(2))
    assert (first, first.read_text(), told) == (second, "built\n", ["builds"])
    assert [path.name for path in (tmp_path / "cache" / "ddpsim").iterdir()] == [first.name]


def test_a_package_may_have_it_ready(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (package := tmp_path / PACKAGE).mkdir()
    name = library_path(files(building.__package__).joinpath("device.cpp").read_bytes()).name
    (package / name).touch()
    assert build_device(lambda: None) == package / name
    (package / name).rename(package / "of-another-torch.so")
    with pytest.raises(NoVirtualGpusError, match=r"no g\+\+"):
        build_device(lambda: None)


def test_which_gpus_a_process_sees():
    seen = {None: 4, "0,1": 2, "3": 1, "": 0, "-1": 0, "2,7,1": 1}
    assert {visible: visible_count(4, visible) for visible in seen} == seen
