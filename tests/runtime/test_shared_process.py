"""Ranks that are threads and do what is a process's own are told; ranks that are processes, and others, are not."""

import importlib
import multiprocessing
import os
import signal
import sys
import types
from contextlib import suppress
from functools import lru_cache

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from ddpsim import Code, simulate
from ddpsim.simulator.runtime.shared_process import SharedProcessWatch


def change_folder():
    os.chdir(os.curdir)


def handle_a_signal():
    with suppress(ValueError):  # Python allows the main thread alone
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def start_a_process():
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()


def load_data():
    assert len(list(DataLoader([1, 2], num_workers=1))) == 2
    assert os.environ["RANK"] == str(dist.get_rank())
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


DEEDS = {
    change_folder: "rank 1 changes the working folder at test_shared_process.py:21",
    handle_a_signal: "rank 1 sets a signal handler, which Python allows the main thread of a process alone at "
    "test_shared_process.py:26",
    start_a_process: "rank 1 starts processes, which make ranks where a rank is a process at test_shared_process.py:31",
    load_data: None,
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("deed", DEEDS)
def test_what_is_told(deed, isolation):
    before = os.chdir, signal.signal, os.environ.encodekey, multiprocessing.process.BaseProcess.start

    def program(rank):
        if rank == 1:
            deed()
        dist.barrier()

    findings = simulate(program, 2, isolation=isolation).findings
    expected = DEEDS[deed] if isolation == "thread" else None
    assert [finding.summary for finding in findings] == ([] if expected is None else [expected])
    assert all(finding.code is Code.HAZARD_SHARED_PROCESS for finding in findings)
    assert before == (os.chdir, signal.signal, os.environ.encodekey, multiprocessing.process.BaseProcess.start)


@pytest.fixture
def reading(tmp_path, monkeypatch):
    """Make programs that import a module that reads its rank, which this process has not imported."""

    def make(name, *, folder="own", rank="os.environ.get('RANK')"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(f"import os\nRANK = {rank}\n")
        monkeypatch.syspath_prepend(tmp_path / folder)
        made.append(name)
        return lambda rank: importlib.import_module(name).RANK

    made = []
    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_a_module_that_reads_its_rank_as_it_is_imported(reading):
    program = reading("reads_its_rank", rank="int(os.environ['RANK'])")
    shared = simulate(program, 2)
    sys.modules.pop("reads_its_rank")
    assert [finding.summary for finding in shared.findings] == [
        "rank 0 reads RANK while a module is imported, once for all ranks at reads_its_rank.py:2"
    ]
    assert shared.returns == (0, 0)  # which is what the hazard is about
    own = simulate(program, 2, isolation="process")
    assert (own.findings, own.returns) == ((), (0, 1))


def test_it_is_noticed_in_a_process_that_has_run_a_thousand_simulations(reading):
    """Python 3.13 looks no further where a method of a class has been replaced a thousand times."""
    for _ in range(1100):
        shared = SharedProcessWatch(lambda: None, None)
        shared.install()
        shared.uninstall()
        assert [os.environ.get("RANK") for _ in range(20)] == [None] * 20
    found = simulate(reading("reads_it_late"), 2)
    assert [finding.code for finding in found.findings] == [Code.HAZARD_SHARED_PROCESS]


@pytest.mark.parametrize("folder", ["site-packages", "own"])
def test_an_installed_module_that_does_is_nobodys(reading, folder):
    found = simulate(reading("reads_as_library", folder=folder), 2)
    assert [finding.code for finding in found.findings] == [Code.HAZARD_SHARED_PROCESS] * (folder == "own")


def test_a_library_beside_the_program(monkeypatch):
    class Trainer:
        """As of the library."""

    Trainer.__module__ = "transformers.trainer"
    monkeypatch.setattr(sys.modules[__name__], "Trainer", Trainer, raising=False)

    def program(rank):
        dist.barrier()

    (finding,) = simulate(program, 2).findings
    assert (finding.ranks, finding.summary) == ((), "transformers keeps the state of a rank in its modules")
    assert simulate(program, 2, isolation="process").findings == ()


def test_a_library_that_a_rank_imports(monkeypatch):
    def program(rank):
        sys.modules.setdefault("accelerate", types.ModuleType("accelerate"))
        dist.barrier()

    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    try:
        (finding,) = simulate(program, 2).findings
    finally:
        sys.modules.pop("accelerate", None)
    assert finding.summary == "accelerate keeps the state of a rank in its modules"


def _sets_up(rank):
    from ignite.engine import Engine

    return Engine, rank


def _names_accelerate(rank):
    return types.SimpleNamespace(accelerate=rank, ignite="not imported").accelerate


def imports_it(rank):
    import ignite

    return ignite


def has_a_helper_that_imports_it(rank):
    return _sets_up(rank)


def has_an_inner_function_that_imports_it(rank):
    return [imports_it(each) for each in (rank,)]


@pytest.mark.parametrize(
    "program", [imports_it, has_a_helper_that_imports_it, has_an_inner_function_that_imports_it, _names_accelerate]
)
def test_a_library_that_a_rank_imports_is_told_in_every_run(monkeypatch, program):
    modules = {name: types.ModuleType(name) for name in ("ignite", "ignite.engine", "accelerate")}
    modules["ignite.engine"].Engine = int
    for name, module in modules.items():  # as an earlier run has left them
        monkeypatch.setitem(sys.modules, name, module)
    found = [finding.summary for finding in simulate(program, 2).findings]
    expected = "ignite keeps the state of a rank in its modules"
    assert found == ([] if program is _names_accelerate else [expected])


def test_each_rank_has_a_process_id_that_signals_reach():
    """Ranks as threads are one process, and would else seed alike by its id."""

    def own_id(rank):
        os.kill(os.getpid(), 0)
        dist.barrier()
        return os.getpid()

    ids = simulate(own_id, 3).returns
    assert len(set(ids)) == 3
    assert ids[0] == os.getpid()


@lru_cache
def cached_rank():
    return dist.get_rank()


@lru_cache
def cached_size():
    return dist.get_world_size()


@pytest.fixture
def clear_caches():
    yield
    cached_rank.cache_clear()
    cached_size.cache_clear()


@pytest.mark.usefixtures("clear_caches")
def test_a_cache_that_keeps_the_rank_for_all_ranks_is_told():
    def program(rank):
        assert cached_size() == 2
        assert cached_rank() == rank

    error, hazard = simulate(program, 2).findings
    assert (error.code, error.ranks, hazard.code) == (Code.RANK_ERROR, (1,), Code.HAZARD_SHARED_PROCESS)
    assert hazard.summary.startswith("cached_rank (test_shared_process.py:")
    assert hazard.summary.endswith(") caches what depends on the rank, and all ranks share the cache")
    assert 'isolation="process"' in hazard.text
