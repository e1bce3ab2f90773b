"""Ranks that do something odd at an odd moment: what a reviewer broke, and what holds now."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import torch.distributed as dist

from ddpsim import Budget, Code, UsageError, Verdict, simulate, simulate_program


def run(program, world_size=2, **options):
    return simulate(program, world_size, isolation="process", **options)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("clinging", ["sleeps", "communicates"])
def test_a_rank_that_does_not_let_go_in_its_finally(clinging):
    def program(rank):
        try:
            if rank == 0:
                dist.barrier()
        finally:
            while rank == 0:
                with suppress(BaseException):
                    time.sleep(9) if clinging == "sleeps" else dist.barrier()

    result = run(program, budget=Budget(seconds=4, stuck_seconds=1))
    assert result.findings[0].code is Code.DEADLOCK_MISSING_RANK


def test_a_signal_that_comes_while_another_rank_runs():
    """Its handler runs when the rank goes on, and may communicate."""

    def program(rank):
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: (seen.append("handled"), time.sleep(0.01)))
        pids = [None, None]
        dist.all_gather_object(pids, os.getpid())
        if rank == 1:
            os.kill(pids[0], signal.SIGUSR1)
        dist.barrier()
        return seen

    result = run(program)
    assert result.verdict is Verdict.PASS, str(result)
    assert result.returns == (["handled"], [])


def test_a_handler_that_raises_while_another_rank_runs():
    def program(rank):
        def give_up(*_):
            raise TimeoutError("given up")

        signal.signal(signal.SIGUSR1, give_up)
        pids = [None, None]
        dist.all_gather_object(pids, os.getpid())
        if rank == 1:
            os.kill(pids[0], signal.SIGUSR1)
        dist.barrier()

    result = run(program)
    assert result.findings[0].summary.startswith("rank 0 raised TimeoutError: given up")


def test_ctrl_c_of_a_program_for_itself():
    def program(rank):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            return "saved"

    assert run(program).returns == ("saved", "saved")


def test_an_error_whose_text_cannot_be_told():
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    def program(rank):
        raise Odd(lambda: rank)

    result = run(program)
    assert result.findings[0].summary.startswith("ranks 0, 1 raised Odd: <its message cannot be printed>")
    assert len(result.errors) == 2


def test_a_value_that_cannot_travel_hides_no_finding():
    def program(rank):
        if rank == 0:
            return lambda: rank
        dist.barrier()

    result = run(program)
    assert result.findings[0].code is Code.DEADLOCK_MISSING_RANK
    assert result.returns == (None, None)


def test_a_rank_that_dies_with_a_child_of_its_own_alive():
    def program(rank):
        if rank == 1:
            if not os.fork():
                time.sleep(60)
                os._exit(0)
            os._exit(7)
        dist.barrier()

    finding = run(program).findings[0]
    assert (finding.code, finding.summary) == (Code.RANK_ERROR, "rank 1 ended by os._exit(7)")


def test_what_a_rank_forks_does_not_speak_for_it(capfd):
    def program(rank):
        child = os.fork()
        if not child:
            try:
                dist.barrier()
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        dist.barrier()

    with pytest.raises(UsageError, match=r"a process that rank [01] has forked communicates, expected only the rank"):
        run(program)
    told = capfd.readouterr().out
    assert "a process that rank 0 has forked communicates, expected only the rank to" in told
    assert "a process that rank 1 has forked communicates, expected only the rank to" in told


def test_several_ranks_that_are_killed():
    result = run(lambda rank: os.kill(os.getpid(), signal.SIGKILL))
    assert result.findings[0].summary == "ranks 0, 1 were killed by SIGKILL"


def test_an_output_that_takes_no_accents(monkeypatch):
    class Ascii:
        encoding, closed, written = "ascii", False, ""

        def write(self, text):
            self.written += text.encode("ascii").decode()

        def flush(self):
            pass

    stream = Ascii()
    monkeypatch.setattr(sys, "stdout", stream)
    assert run(lambda rank: print("caf\u00e9")).verdict is Verdict.PASS
    assert stream.written == "caf\\xe9\n" * 2


PROGRAM = """
import atexit, os, sys, tempfile
atexit.register(lambda: open(f"at-exit-{os.environ['RANK']}", "w").close())
file = open(f"written-{os.environ['RANK']}", "w")
file.write("hello")
folder = tempfile.TemporaryDirectory(dir=".", prefix="temporary-")
def work():
    import time
    time.sleep(0.2)
    open(f"worked-{os.environ['RANK']}", "w").close()
if __name__ == "__main__":
    context = __import__("multi" "processing").get_context("fork")  # by its name it would be taken for a launcher
    getattr(context, "Pro" "cess")(target=work).start()
    try:
        input()
    except EOFError:
        print("no input")
    sys.exit(STATUS)
"""


@pytest.mark.tier("ci")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("status", [0, 3])
def test_the_end_of_a_program_is_that_of_a_process(tmp_path, monkeypatch, capfd, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM.replace("STATUS", str(status)))
    result = simulate_program(["train.py"], 2)
    assert result.verdict is (Verdict.FAIL if status else Verdict.PASS)
    assert capfd.readouterr().out == "no input\n" * 2
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"train.py", *(f"{what}-{rank}" for what in ("at-exit", "written", "worked") for rank in range(2))}
    assert [(tmp_path / f"written-{rank}").read_text() for rank in range(2)] == ["hello"] * 2


def test_ranks_that_sleep_until_a_child_process_has_written_a_file(tmp_path):
    def program(rank):
        if rank == 0:
            child = subprocess.Popen(["sh", "-c", f"sleep 0.5; : > {tmp_path / 'made'}"])
        while rank < 2 and not (tmp_path / "made").exists():
            time.sleep(60)  # the barrier of rank 2 waits for half an hour, and not for thousands of these
        dist.barrier()
        return child.wait() if rank == 0 else None

    assert simulate(program, 3, isolation="process").returns == (0, None, None)


@pytest.mark.tier("ci")
def test_the_run_ends_while_a_thread_does_not_leave_after_its_rank():
    """An interrupt meets the main thread of the process behind the program; it was an internal error."""

    def program(rank):
        def work():
            lock = threading.Lock()
            while True:
                try:
                    with lock:
                        pass
                except BaseException:  # the end of the run is one
                    while True:
                        pass

        threading.Thread(target=work).start()
        raise ValueError("x")

    result = run(program, budget=Budget(seconds=2))
    assert result.verdict is not Verdict.PASS
