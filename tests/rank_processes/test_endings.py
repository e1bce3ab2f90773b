"""How the processes of ranks end, and what is told of it; nothing is left behind."""

import copyreg
import ctypes
import io
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, Crash, RankLostError, UsageError, Verdict, simulate
from ddpsim.simulator.rank_processes import coordinator
from tests.kit.limit_clocks import limits_go_by
from tests.kit.results import codes
from tests.launching.left_behind import nothing_is_left


def run(program, world_size=2, **options):
    return simulate(program, world_size, isolation="process", **options)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    with nothing_is_left():
        yield


def leading(result):
    finding = result.findings[0]
    return finding.code, finding.ranks, finding.summary


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (kill_oneself, "was killed by SIGKILL"),
        (lambda: ctypes.string_at(0), "was killed by SIGSEGV"),
        (lambda: os._exit(5), "ended by os._exit(5)"),
    ],
    ids=["killed", "native crash", "os._exit"],
)
def test_a_process_that_ends_without_a_word(end, told):
    def program(rank):
        if rank == 1:
            end()
        dist.barrier()

    result = run(program, 3)
    assert leading(result) == (Code.RANK_ERROR, (1,), f"rank 1 {told}")
    dead = result.findings[1]
    assert (dead.code, dead.ranks) == (Code.DEADLOCK_DEAD_RANK, (1,))
    assert f"rank 1  {told} " in dead.body
    assert "rank 1 ended without an exception" in dead.body
    assert type(result.errors[1]) is RankLostError


@pytest.mark.parametrize("has_tblib", [False, True])
def test_a_rank_that_exits(monkeypatch, has_tblib):
    if has_tblib:  # Dask has it register that an error is made without its __init__
        monkeypatch.setitem(copyreg.dispatch_table, SystemExit, lambda error: (SystemExit.__new__, (SystemExit, 3)))

    def program(rank):
        dist.barrier()
        if rank == 0:
            sys.exit(3)

    result = run(program)
    assert leading(result)[:2] == (Code.RANK_ERROR, (0,))
    assert type(result.errors[0]) is SystemExit
    assert result.errors[0].code == 3


def test_what_a_rank_raises_comes_back_as_it_was():
    class Own(Exception):
        """Of no module: pickle alone would not find it."""

    def program(rank):
        class Late(Exception):
            """Made when the rank had a process of its own."""

        raise [KeyError("a key"), Own("a word"), Late("too late")][rank]

    errors = run(program, 3).errors
    assert repr(errors[0]) == "KeyError('a key')"
    assert (type(errors[1]), errors[1].args) == (Own, ("a word",))
    assert repr(errors[2]) == "RuntimeError('Late: too late')"


def test_an_injected_fault():
    def program(rank):
        dist.barrier()

    result = run(program, faults=[Crash(1, before_call=0)])
    assert leading(result)[:2] == (Code.RANK_ERROR, (1,))


def test_a_deadlocked_rank_runs_its_finally(tmp_path):
    def program(rank):
        try:
            if rank:
                dist.barrier()
        finally:
            (tmp_path / str(rank)).touch()

    assert run(program, 3).findings[0].code is Code.DEADLOCK_MISSING_RANK
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def sleep_in_native_code(is_there):
    is_there.touch()
    ctypes.CDLL(None).sleep(60)


def wait_at_a_lock(is_there):
    lock = REAL_LOCK
    lock.acquire()
    is_there.touch()
    lock.acquire()


REAL_LOCK = threading.Lock()
"""Made before the run, so a rank that waits for it is blocked outside the simulation."""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("block", [sleep_in_native_code, wait_at_a_lock])
def test_a_rank_that_does_not_come_back(block, tmp_path, monkeypatch):
    """Time begins when the rank is where it stays: on a busy machine another might not have come to anything before."""
    is_there = tmp_path / "there"

    def program(rank):
        if rank == 1:
            block(is_there)
        dist.barrier()

    def seconds_there():
        if is_there.exists():
            arrived.append(time.monotonic())
        return time.monotonic() - arrived[0] if arrived else 0.0

    arrived = []
    limits_go_by(monkeypatch, seconds_there)
    start = time.monotonic()
    result = run(program, 3, budget=Budget(stuck_seconds=0.3))
    assert time.monotonic() - start < 50
    finding = result.findings[0]
    assert (finding.code, finding.ranks) == (Code.STUCK, (1,))
    assert f"in {block.__name__}" in finding.body
    assert "rank 0  waits in barrier" in finding.body


@pytest.mark.tier("ci")
def test_a_rank_that_clings_to_what_it_runs_is_killed(tmp_path):
    def program(rank):
        while rank == 1:
            try:
                while True:
                    pass
            except BaseException:
                (tmp_path / "caught").touch()
        dist.barrier()

    result = run(program, budget=Budget(seconds=0.5))
    assert result.verdict is Verdict.UNKNOWN
    assert (tmp_path / "caught").exists()


def test_a_value_that_cannot_travel():
    def program(rank):
        return lambda: rank

    with pytest.raises(
        UsageError, match=r"rank 0 returned function, which cannot travel from its process .*isolation='thread'"
    ):
        run(program)


def test_values_travel():
    class Model(torch.nn.Linear):
        """Of no module, as a test's own."""

    def program(rank):
        tensor = torch.arange(3) * rank
        dist.all_reduce(tensor)
        return {"rank": rank, "sum": tensor, "model": Model(2, 1)}

    first, second = run(program).returns
    assert type(first["model"]) is Model
    assert torch.equal(first["model"].weight, second["model"].weight)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["sum"].tolist() == second["sum"].tolist() == [0, 1, 2]


def test_what_a_rank_prints_is_kept(capfd):
    def program(rank):
        print("out of rank", rank)
        os.write(2, b"native\n" if rank else b"")

    run(program)
    told = capfd.readouterr()
    assert sorted(told.out.splitlines()) == ["out of rank 0", "out of rank 1"]
    assert told.err == "native\n"


@pytest.mark.tier("ci")
@pytest.mark.parametrize("runs", [4, pytest.param(1000, marks=pytest.mark.tier("nightly"))])
def test_deadlocks_one_after_the_other(runs):
    def program(rank):
        if rank:
            dist.all_reduce(torch.ones(1000))

    def memory():
        return int(Path("/proc/self/statm").read_text().split()[1])

    run(program, 3)
    before = memory()
    for _ in range(runs):
        assert run(program, 3).verdict is Verdict.FAIL
    assert memory() - before < 4_000  # pages: 16 MiB


def test_a_system_without_fork_and_no_fork_once_cuda_is_initialised(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(UsageError, match="CUDA is initialised in this process"):
            run(dist.barrier)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(UsageError, match="need fork and memfd_create, expected Linux: take isolation='thread'"):
        run(dist.barrier)


class PressingStream(io.StringIO):
    """Ctrl-C is pressed at the moment at which something is first written."""

    def write(self, text):
        if not self.getvalue():
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_ctrl_c_while_output_is_forwarded(tmp_path, monkeypatch):
    def program(rank):
        try:
            dist.barrier()
            print("here")
            dist.barrier()
        finally:
            (tmp_path / f"left-{rank}").touch()

    monkeypatch.setattr(sys, "stdout", stream := PressingStream())
    with pytest.raises(KeyboardInterrupt):
        run(program)
    assert "here" in stream.getvalue()
    assert {path.name for path in tmp_path.iterdir()} == {"left-0", "left-1"}


def test_how_a_rank_ended_where_the_caller_ignores_its_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = run(lambda rank: os.kill(os.getpid(), signal.SIGKILL) if rank else None)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert result.findings[0].summary == "rank 1 was killed by SIGKILL"


def test_a_process_that_ends_while_its_last_thread_leaves():
    def program(rank):
        def receive():
            try:
                dist.recv(torch.ones(1), 1)
            finally:  # the run has ended, and so has the rank's program
                os.kill(os.getpid(), signal.SIGKILL)

        if rank == 0:
            threading.Thread(target=receive).start()
            dist.barrier()
        dist.recv(torch.ones(1), 0)

    assert codes(run(program)) == [("deadlock.cycle", (0, 1))]


class Endless:
    """Takes too long to be packed."""

    def __reduce__(self):
        while True:
            select.select([], [], [], 1)


def test_a_last_word_that_never_comes(monkeypatch):
    monkeypatch.setattr(coordinator, "_LAST_WORD_SECONDS", 0.1)
    result = run(lambda rank: Endless() if rank else None)
    assert result.findings[0].summary == "rank 1 was killed by SIGKILL before it reported its result"
    assert result.findings[0].ranks == (1,)
    assert run(lambda rank: 1 if rank else None).returns == (None, 1)
