"""Whole sessions in processes of their own: what is imported, xdist, Ctrl-C, and a thousand deadlocks."""

import re
import sys

import pytest

from tests.pytest_plugin.reading import replay_of
from tests.tiers import sweep

RANKS_AND_OTHERS = """
import sys
import pytest
LISTED = {"named", "pct", "points", "random_walk", "round_robin"}  # the policies and what they are made of
OPTIONS = (".run_options", ".backend_semantics", ".faults", ".hosts", ".wording")  # those of a marker
BELOW = {"ddpsim.simulator" + name for name in ("", ".policies", ".choices", ".errors", ".imports", *OPTIONS)}

def nothing_is_loaded():
    simulators = {name for name in sys.modules if name.startswith("ddpsim.simulator")}
    return "torch" not in sys.modules and simulators <= BELOW | {f"ddpsim.simulator.policies.{name}" for name in LISTED}

assert nothing_is_loaded()

def test_plain():
    assert nothing_is_loaded()

def test_plain_as_well():
    pass

@pytest.mark.ranks(2, seeds=range(2), expect="deadlock.missing_rank", budget={"seconds": 60})
def test_marked(rank):
    import torch.distributed as dist
    if rank:
        dist.barrier()

def test_after():
    assert "torch" in sys.modules and "hypothesis" not in sys.modules
"""


@pytest.mark.tier("ci")
def test_torch_is_loaded_when_a_marked_test_runs_and_not_before(pytester, run_apart):
    pytester.makepyfile(test_lazy=RANKS_AND_OTHERS)

    run_apart("", "test_lazy.py").assert_outcomes(passed=5)


MANY = """
@pytest.mark.parametrize("n", range(6))
@pytest.mark.ranks(2)
def test_many(rank, n):
    print("from", n, rank)
    if rank or n % 2:
        dist.barrier()
    assert n != 5 or not rank
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("workers", sweep(["1", "2"], lambda workers: workers == "1"))
def test_under_xdist_failures_reports_and_replay_lines_are_the_same(run, run_apart, pytester, workers):
    here = run(MANY)
    apart = run_apart("", "-p", "xdist", "-n", workers, "--ddpsim-report", "found")

    for result in (apart, here):
        result.assert_outcomes(failed=4, passed=2)
    names = [f"test_many[{n}]" for n in (0, 2, 4, 5)]
    assert [replay_of(apart, name) for name in names] == [replay_of(here, name) for name in names]
    apart.stdout.fnmatch_lines(
        ["FAILED test_it.py::test_many[[]5[]] - rank 1: assert (5 != 5 or not 1)", "*4 failed, 2 passed*"],
        consecutive=False,
    )
    apart.stdout.fnmatch_lines(["*Captured stdout rank 1 call*"])
    page = (pytester.path / "found" / "index.html").read_text()
    assert sorted(re.findall(r"<bdi>test_it\.py::(test_many\[\d\])</bdi>", page)) == names
    apart.stdout.re_match_lines([r"ddpsim: 4 reports in .*found/index\.html$"])


INTERRUPTED = """
import _thread, threading, os, signal

@pytest.fixture
def torn_down():
    yield
    print("TORN DOWN")

@pytest.mark.ranks(4{options})
def test_long(rank, torn_down):
    if rank == 3:
        os.kill(os.getpid(), signal.SIGINT)
    while True:
        dist.barrier()

def test_never():
    pass
"""
CONFTEST = """
import threading

def pytest_unconfigure():
    print("LEFT", [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()])
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("options", sweep(["", ", explore='dfs'"], lambda options: not options))
def test_ctrl_c_ends_the_session_and_leaves_no_thread(pytester, run_apart, options):
    pytester.makeconftest(CONFTEST)

    result = run_apart(INTERRUPTED.replace("{options}", options), "-s")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*RunInterrupted: interrupted", "*the run was interrupted, after*", "*no tests ran*", "LEFT [[][]]"]
    )
    result.stdout.no_fnmatch_line("*test_never*")


DEADLOCKS = """
@pytest.mark.parametrize("n", range(1000))
@pytest.mark.ranks(3)
def test_hangs(rank, n):
    each = torch.ones(n + 1)
    if rank != n % 3:
        dist.all_reduce(each)
"""
WATCH = """
import collections, gc, os, threading

import pytest

count = 0

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish():
    global count
    count += 1
    if count in (200, 1000):
        gc.collect()
        alive = collections.Counter(type(each).__name__ for each in gc.get_objects())
        held = [alive[kind] for kind in ("Kernel", "Result", "RankThread", "Tensor", "Function")]
        print(f"RESIDENT {resident()} THREADS {threading.active_count()} HELD {held}")
"""
MOST_BYTES_MORE = 40 * 2**20
"""For 800 failures more. Some 20 MiB are measured: 5 of them are pytest's, which keeps every report to the end of the
session (without us, as much), the rest is what Python's and C's allocators keep of runs that wait for the garbage
collector, up to 1,000 ranks together, and does not grow beyond 2,000 tests. That no run is held is counted exactly."""


@pytest.mark.tier("nightly")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_deadlocks_in_a_session_each_with_its_diagnosis_in_flat_memory(pytester, run_apart):
    pytester.makeconftest(WATCH)

    result = run_apart(DEADLOCKS, "-s", "-q")

    result.assert_outcomes(failed=1000)
    text = result.stdout.str()
    assert len(re.findall(r"^DEADLOCK  deadlock\.missing_rank", text, re.MULTILINE)) == 1000
    missing = re.findall(r"^  rank (\d)  returned before its first call", text, re.MULTILINE)
    assert missing == [str(n % 3) for n in range(1000)]
    sizes = re.findall(r"waits in all_reduce #0  SUM float32\[(\d+)\]", text)
    assert sizes == [str(n + 1) for n in range(1000) for _ in range(2)]
    assert len(set(re.findall(r"--ddpsim-replay (s1:\S+)", text))) > 950  # 16 bits tell programs apart
    early, late = re.findall(r"RESIDENT (\d+) THREADS (\d+) HELD (.*)", text)
    print(f"resident after 200: {int(early[0]) / 2**20:.1f} MiB, after 1,000: {int(late[0]) / 2**20:.1f} MiB")
    assert early[1:] == late[1:] == ("1", "[1, 0, 3, 2, 1000]")  # the last run's, which sys.last_traceback leads to
    assert int(late[0]) - int(early[0]) < MOST_BYTES_MORE


def test_who_quits_a_debugger_ends_the_session_in_one_line(run):
    result = run("""
import bdb
import pytest
from ddpsim.scenarios.pytest_plugin import running

def quits(*_, **__):
    raise bdb.BdbQuit

@pytest.fixture(autouse=True)
def debugged(monkeypatch):
    monkeypatch.setattr(running, "simulate", quits)

@pytest.mark.ranks(2)
def test_it(rank):
    pass
""")
    result.stdout.fnmatch_lines(["*Exit: the run was ended in a debugger*"])
    result.stdout.no_fnmatch_line("*running.py*")
