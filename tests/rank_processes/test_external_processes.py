"""Processes that are no ranks and make a group: the run ends with a line, however they were started."""

import textwrap

import pytest

from ddpsim import UsageError, Verdict, simulate_program

BEGIN = """
import os, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import torch, torch.distributed as dist, multiprocessing as mp

def make_group(number):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return number

"""

START_WORKER = "worker = mp.get_context('{}').Process(target=make_group, args=('x',)); worker.start(); worker.join()"

STARTS = {
    "a forked process": START_WORKER.format("fork"),
    "a spawned process": START_WORKER.format("spawn"),
    "an executor": "ProcessPoolExecutor(1, mp_context=mp.get_context('fork')).submit(make_group, 1).exception()",
    "a script": "subprocess.run([sys.executable, __file__, 'group'], stderr=subprocess.DEVNULL)",
}

LINE = (
    "a process that {} has started makes a process group, expected only ranks to: start it by mp.spawn, or by Process "
    "with its number among the arguments, so that it is a rank, or run it without ddpsim"
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def runs(source, world_size=2):
        (tmp_path / "train.py").write_text(BEGIN + textwrap.dedent(source))
        return simulate_program(["train.py"], world_size)

    return runs


@pytest.mark.parametrize(
    "start",
    [pytest.param(name, marks=pytest.mark.tier("ci" if name == "a spawned process" else "nightly")) for name in STARTS],
)
def test_of_a_rank(run, start):
    with pytest.raises(UsageError) as raised:
        run(
            f"""
            if __name__ == "__main__" and "group" in sys.argv:
                make_group(0)
            elif __name__ == "__main__":
                if os.environ["RANK"] == "1":
                    {STARTS[start]}
                dist.init_process_group("gloo")
                dist.barrier()
            """
        )
    assert str(raised.value) == LINE.format("rank 1")


@pytest.mark.parametrize("start", ["a forked process", pytest.param("an executor", marks=pytest.mark.tier("ci"))])
def test_of_a_program_that_starts_processes_itself(run, start):
    with pytest.raises(UsageError) as raised:
        run(
            f"""
            if __name__ == "__main__":
                mp.get_context("fork").Process(target=print).start()
                {STARTS[start]}
            """
        )
    assert str(raised.value) == LINE.format("the program")


def test_processes_that_make_none_are_left_alone(run, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    result = run(
        """
        if __name__ == "__main__":
            dist.init_process_group("gloo")
            code = "import sys; print(sys.path[1], 'in_children' in str(sys.path))"
            print(subprocess.check_output([sys.executable, "-c", code], text=True).strip())
            with ProcessPoolExecutor(1, mp_context=mp.get_context("fork")) as pool:
                print(pool.submit(abs, -3).result())
            dist.barrier()
        """
    )
    assert result.verdict is Verdict.PASS, str(result)
    assert sorted(capfd.readouterr().out.splitlines()) == ["/nowhere False", "/nowhere False", "3", "3"]


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    ("work", "world_size"),
    [
        ("print(ProcessPoolExecutor(1).submit(abs, -3).result())", 2),  # nobody shuts it down
        ("from joblib import Parallel, delayed; print(*Parallel(2)(delayed(abs)(number) for number in (-3,)))", 1),
    ],
    ids=["executor", "joblib"],
)
def test_executors_end_with_their_rank(run, capfd, work, world_size):
    if "joblib" in work:
        pytest.importorskip("joblib")
    result = run(
        f"""
        if __name__ == "__main__":
            dist.init_process_group("gloo")
            {work}
            dist.barrier()
        """,
        world_size,
    )
    assert result.verdict is Verdict.PASS, str(result)
    assert capfd.readouterr().out.splitlines() == ["3"] * world_size
