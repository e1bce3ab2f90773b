"""What a program does as a process among others: signals, children of its own, logs."""

import textwrap
import weakref

import pytest

from ddpsim import Code, Verdict, explore, replay, simulate_program
from ddpsim.simulator.rank_processes.own_process import flush_streams

BEGIN = """
import faulthandler, logging, os, signal, subprocess, sys, time
import torch, torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run(rank)
    dist.barrier()
    dist.destroy_process_group()
"""
END = """
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def runs(source, world_size=2):
        (tmp_path / "train.py").write_text(BEGIN + textwrap.dedent(source) + END)
        return simulate_program(["train.py"], world_size)

    return runs


PRINTS = {
    "signals and alarms": (
        """
        def run(rank):
            got = []
            signal.signal(signal.SIGUSR1, lambda number, frame: got.append("usr1"))
            signal.signal(signal.SIGTERM, lambda number, frame: got.append("term"))
            os.kill(os.getpid(), signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            print(got)
        """,
        ["['usr1', 'term']"] * 2,
    ),
    "children of its own": (
        """
        def run(rank):
            told = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
            reading, writing = os.pipe()
            pid = os.fork()
            if not pid:
                time.sleep(0.01)
                os.write(writing, b"forked")
                os._exit(3)
            print(told.stdout.strip(), os.read(reading, 10), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        ["42 b'forked' 3"] * 2,
    ),
    "logs of the rank": (
        """
        def run(rank):
            logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {rank} %(message)s", filename=f"log{rank}")
            logging.info("begins")
            faulthandler.enable()
            faulthandler.dump_traceback(open(f"stack{rank}", "w"))
            print(open(f"log{rank}").read().strip(), "in run" in open(f"stack{rank}").read())
        """,
        [f"INFO {rank} begins True" for rank in range(2)],
    ),
    "threads without an object": (
        """
        import _thread

        def run(rank):
            done = []

            def work(factor, more):
                total = torch.ones(1) * factor * more
                dist.all_reduce(total)
                done.append(total.item())

            ident = _thread.start_new_thread(work, (rank,), {"more": 2})
            while not done:
                time.sleep(0.01)
            print(done, type(ident).__name__)
        """,
        ["[2.0] int"] * 2,
    ),
}
"""What a program may do as a process, and what its ranks print then."""


@pytest.mark.parametrize(("source", "lines"), PRINTS.values(), ids=PRINTS)
def test_it_works_on_ranks(run, capfd, source, lines):
    result = run(source)
    assert result.verdict is Verdict.PASS, str(result)
    assert sorted(capfd.readouterr().out.splitlines()) == lines


def test_workers_of_a_loader(run, capfd):
    source = """
        from torch.utils.data import DataLoader, TensorDataset
        def run(rank):
            data = TensorDataset(torch.arange(6.0))
            for (batch,) in DataLoader(data, batch_size=3, num_workers=2):
                dist.all_reduce(batch)
                print(batch.tolist())
                {after}
        """
    result = run(source.format(after="pass"))
    assert result.verdict is Verdict.PASS, str(result)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0.0, 2.0, 4.0]"] * 2 + ["[6.0, 8.0, 10.0]"] * 2
    result = run(source.format(after="if rank == 1: break"))
    assert result.findings[0].code is Code.MISMATCH_OPERATION
    assert "train.py:" in result.findings[0].body


def test_a_hang_in_a_handler_is_diagnosed(run):
    result = run(
        """
        def stop(number, frame):
            dist.barrier()
        def run(rank):
            signal.signal(signal.SIGTERM, stop)
            if rank == 0:
                signal.raise_signal(signal.SIGTERM)
            dist.all_reduce(torch.ones(1))
        """
    )
    assert result.findings[0].code is Code.MISMATCH_OPERATION
    assert "in stop" in result.findings[0].body or "train.py:13" in result.findings[0].body


def test_a_command_is_replayed_and_explored(run):
    result = run(
        """
        def run(rank):
            if rank == 1:
                dist.barrier()
        """
    )
    assert result.findings[0].code is Code.DEADLOCK_MISSING_RANK
    assert f"""  replay  replay(['train.py'], 2, "{result.schedule}")""" in str(result)
    assert replay(["train.py"], 2, result.schedule).trace.digest() == result.trace.digest()
    exploration = explore(["train.py"], 2)
    assert (exploration.executions, exploration.verdict) == (1, Verdict.FAIL)


def test_standard_output_opened_by_its_name(run, capfd):
    result = run(
        """
        def run(rank):
            for number in range(3):
                print("line", number, "of a rank that is long enough to tell")
                dist.barrier()
            subprocess.run("echo by a shell > /dev/stdout", shell=True, check=True)
            dist.barrier()
            with open("/dev/stdout", "w") as again:
                print("by Python", file=again)
            dist.barrier()
            print("at the end")
        """,
        world_size=1,
    )
    assert result.verdict is Verdict.PASS, str(result)
    lines = [f"line {number} of a rank that is long enough to tell" for number in range(3)]
    assert capfd.readouterr().out.splitlines() == [*lines, "by a shell", "by Python", "at the end"]


def test_files_that_were_not_closed_are_written_whatever_else_the_program_leaves(tmp_path):
    class Odd:
        @property
        def __class__(self):
            raise RuntimeError("nobody looks at me")

    left = [weakref.proxy({0}), Odd()]  # a proxy of nothing, as the parts of torch's compiler leave them
    with (tmp_path / "log").open("w") as log:
        log.write("a line")
        flush_streams(has_own_files=True)
        assert (tmp_path / "log").read_text() == "a line"
    assert len(left) == 2
