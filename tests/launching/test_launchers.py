"""Programs that start their ranks themselves: `mp.spawn`, and the tutorial's loop over `Process`."""

import textwrap

import pytest

from ddpsim import Code, UsageError, Verdict, simulate_program
from ddpsim.scenarios.cli.commands import main
from tests.launching.left_behind import nothing_is_left, with_servers

pytestmark = pytest.mark.tier("ci")  # it starts processes

WORKER = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, size, queue=None):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.ones(1) * rank
    dist.all_reduce(total)
    print("rank", rank, "total", total.item(), __name__, "RANK" in os.environ)
    if "hang" in sys.argv and rank == 1:
        dist.barrier()
    if "raise" in sys.argv and rank == 1:
        raise ValueError("of a rank")
    if queue is not None:
        queue.put((rank, total.item()))
    dist.destroy_process_group()
"""

SPAWN = (
    WORKER
    + """
if __name__ == "__main__":
    try:
        mp.spawn(work, args=(3,), nprocs=3)
    except mp.ProcessRaisedException as error:
        print("raised on", error.error_index, str(error).splitlines()[-1])
    print("after the ranks")
"""
)

LOOP = (
    WORKER
    + """
def begin(rank, size, queue):
    print("sees", SETTING)
    work(rank, size, queue)

if __name__ == "__main__":
    SETTING = "of the launcher"
    queue, workers = mp.Queue(), []
    for rank in range(2):
        worker = mp.Process(target=begin, args=(rank, 2, queue))
        worker.start()
        workers.append(worker)
    for worker in workers:
        worker.join()
    print(sorted(queue.get() for _ in workers), [worker.exitcode for worker in workers])
"""
)


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_servers()

    def writes(source):
        (tmp_path / "train.py").write_text(textwrap.dedent(source))

    with nothing_is_left():
        yield writes


def ranks(count, module, total):
    return [f"rank {rank} total {total} {module} False" for rank in range(count)]


def test_spawn_makes_ranks(write, capfd):
    write(SPAWN)
    result = simulate_program(["train.py"], 3)
    assert result.verdict is Verdict.PASS, str(result)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines[:3]) == ranks(3, "__mp_main__", 3.0)
    assert lines[3:] == ["after the ranks"]


def test_a_hang_of_spawned_ranks_is_diagnosed(write, capfd):
    write(SPAWN)
    result = simulate_program(["train.py", "hang"], 3)
    assert (result.findings[0].code, result.findings[0].ranks) == (Code.DEADLOCK_MISSING_RANK, (1,))
    assert "rank 1  waits in barrier #2" in result.findings[0].body
    assert "train.py:12" in result.findings[0].body
    assert "after the ranks" not in capfd.readouterr().out


def test_what_a_spawned_rank_raises_comes_to_the_launcher(write, capfd):
    write(SPAWN)
    result = simulate_program(["train.py", "raise"], 3)
    assert result.findings[0].summary == "rank 1 raised ValueError: of a rank at train.py:14"
    assert capfd.readouterr().out.splitlines()[3:] == ["raised on 1 ValueError: of a rank", "after the ranks"]


def test_what_the_program_raises_after_its_ranks_blames_no_rank(write):
    write(SPAWN + "    raise OSError('no space left')\n")
    (finding,) = simulate_program(["train.py"], 3).findings
    line = (SPAWN + "raise").count("\n") + 1
    summary = f"the program that starts the ranks raised OSError: no space left at train.py:{line}"
    assert (finding.code, finding.ranks, finding.summary) == (Code.RANK_ERROR, (), summary)
    assert "left the program that starts the ranks" in finding.body


def test_what_the_program_raises_while_it_starts_a_rank_blames_no_rank(write):
    write("import threading\n" + SPAWN.replace("args=(3,)", "args=(3, threading.Lock())"))
    line = SPAWN[: SPAWN.index("mp.spawn")].count("\n") + 2
    told = f"the program could not start its ranks at train.py:{line}: TypeError: cannot pickle"
    with pytest.raises(UsageError, match=told):
        simulate_program(["train.py"], 3)


def test_ranks_that_look_at_ports_of_their_own_never_meet(write):
    program = """
import os
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, size, is_alone):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29700 + (rank if is_alone else 0)))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(2, {is_alone}), nprocs=2)
"""
    write(program.replace("{is_alone}", "True"))
    (finding,) = simulate_program(["train.py"], 2).findings
    assert finding.ranks == (0, 1)
    assert "different stores for the default group: another file, prefix, address or port" in finding.body
    assert "train.py:8" in finding.body
    write(program.replace("{is_alone}", "False"))
    assert simulate_program(["train.py"], 2).verdict is Verdict.PASS


def test_processes_in_a_loop_are_ranks(write, capfd):
    write(LOOP)
    result = simulate_program(["train.py"], 2)
    assert result.verdict is Verdict.PASS, str(result)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["sees of the launcher"] * 2
    assert sorted(lines[2:4]) == ranks(2, "__main__", 1.0)
    assert lines[4:] == ["[(0, 1.0), (1, 1.0)] [0, 0]"]


@pytest.mark.parametrize(("ends", "told"), [("sys.exit(5)", 5), ("raise HIDDEN()", 1)])
def test_exit_codes_of_processes_in_a_loop(write, capfd, ends, told):
    hidden = "HIDDEN = type('Unnamed', (Exception,), {})  # no module has it under its name\n"
    write(hidden + LOOP.replace("dist.destroy_process_group()", ends))
    simulate_program(["train.py"], 2)
    assert capfd.readouterr().out.splitlines()[4:] == [f"[(0, 1.0), (1, 1.0)] [{told}, {told}]"]


def test_processes_begin_anew_if_they_are_spawned(write):
    write(LOOP.replace("mp.Queue(), []", "None, []; mp.set_start_method('spawn')"))
    result = simulate_program(["train.py"], 2)
    assert result.findings[0].summary == "ranks 0, 1 raised NameError: name 'SETTING' is not defined at train.py:20"


def test_what_the_program_sets_where_torchrun_would_have(write, capfd):
    """Also to what torchrun would have set."""
    sets = 'os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"] = "0", "2", "02"'
    tells = 'print(*(os.environ.get(each) for each in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")))'
    write(LOOP.replace('print("sees", SETTING)', tells).replace("SETTING = ", f"{sets}; SETTING = "))
    assert simulate_program(["train.py"], 2).verdict is Verdict.PASS
    assert capfd.readouterr().out.splitlines()[:2] == ["0 2 02 None"] * 2


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("        worker.start()\n", "print(worker, worker.is_alive())"),
        ("    for worker in workers:\n", "while worker.is_alive(): pass"),
    ],
)
def test_who_looks_at_a_process_that_is_started(write, line, does):
    write(LOOP.replace(line, f"{line}        {does}\n"))
    assert simulate_program(["train.py"], 2).verdict is Verdict.PASS


def test_a_launcher_that_does_not_join_first(write, capfd):
    reads = "    print(sorted(queue.get() for _ in workers))\n    for worker in workers:\n"
    write(LOOP.replace("    for worker in workers:\n", reads).replace("sorted(queue.get() for _ in workers), [", "["))
    assert simulate_program(["train.py"], 2).verdict is Verdict.PASS
    assert capfd.readouterr().out.splitlines()[4:] == ["[(0, 1.0), (1, 1.0)]", "[0, 0]"]


def test_spawn_without_join(write, capfd):
    write(SPAWN.replace("nprocs=3)", "nprocs=3, join=False).join()"))
    assert simulate_program(["train.py"], 3).verdict is Verdict.PASS
    assert capfd.readouterr().out.splitlines()[3:] == ["after the ranks"]


def test_start_processes_by_fork(write, capfd):
    write(
        SPAWN.replace("mp.spawn(work, args=(3,), nprocs=3)", "mp.start_processes(work, (3,), 3, start_method='fork')")
    )
    assert simulate_program(["train.py"], 3).verdict is Verdict.PASS
    assert sorted(capfd.readouterr().out.splitlines()[:3]) == ranks(3, "__main__", 3.0)


def test_an_error_of_the_launcher_afterwards_is_told(write):
    write(SPAWN.replace('print("after the ranks")', "1 / 0"))
    result = simulate_program(["train.py"], 3)
    assert result.verdict is Verdict.FAIL
    assert "ZeroDivisionError: division by zero at train.py:" in result.findings[0].body


def test_the_programs_own_count_of_ranks(write, capfd):
    write(SPAWN)
    assert main(["run", "train.py"]) == 0
    out = capfd.readouterr().out
    assert "PASS  train.py on 3 ranks" in out
    (line,) = [line for line in out.splitlines() if line.startswith("  replay  ")]
    assert line.endswith(" --world-size 3 train.py")
    assert main(line.split()[2:]) == 0


def test_another_count_than_asked_for(write, capfd):
    write(SPAWN)
    line = "the program starts 3 ranks itself, expected 4: take world size 3 (--world-size 3)"
    assert main(["run", "--world-size", "4", "train.py"]) == 2
    assert capfd.readouterr().err == f"ddpsim: {line}\n"
    assert main(["explore", "train.py"]) == 2
    assert capfd.readouterr().err == f"ddpsim: {line}\n"
    with pytest.raises(UsageError, match="starts 3 ranks itself"):
        simulate_program(["train.py"], 2)


def test_a_second_world(write):
    write(SPAWN.replace('print("after the ranks")', "mp.spawn(work, args=(3,), nprocs=3)"))
    line = (
        "the program starts ranks a second time, expected one world of ranks in a run, which has one schedule and one "
    )
    with pytest.raises(UsageError, match=f"^{line}trace: let one start do both, or run each by itself, by an argument"):
        simulate_program(["train.py"], 3)


def test_a_program_that_only_speaks_of_processes(write, capfd):
    write(
        """
        import multiprocessing, torch, torch.distributed as dist
        print("begins")
        dist.init_process_group("gloo")
        dist.barrier()
        """
    )
    assert simulate_program(["train.py"], 2).verdict is Verdict.PASS
    assert capfd.readouterr().out == "begins\n" * 2


def test_a_process_that_is_no_rank(write, capfd, tmp_path):
    write(
        """
        import multiprocessing, torch, torch.distributed as dist
        def helper(word):
            print("helps", word)
        with open("beginnings", "a") as file:
            file.write("begins ")
        if __name__ == "__main__":
            worker = multiprocessing.Process(target=helper, args=("them",))
            worker.start()
            worker.join()
            dist.init_process_group("gloo")
            dist.barrier()
            print("ends", worker.exitcode)
        """
    )
    assert simulate_program(["train.py"], 2).verdict is Verdict.PASS
    assert sorted(capfd.readouterr().out.splitlines()) == ["ends 0"] * 2 + ["helps them"] * 2
    assert (tmp_path / "beginnings").read_text() == "begins " * 2, "as often as under torchrun"


def test_a_trainer_that_starts_processes_finds_no_torchrun(write, capfd):
    """As Lightning, which under torchrun starts none."""
    strategy = "import os\n" + SPAWN.replace("    try:\n", '    print("TORCHELASTIC_RUN_ID" in os.environ)\n    try:\n')
    for name, found in (("ddp", "True"), ("ddp_spawn", "False")):
        write(f"strategy = {name!r}\n{strategy}")
        assert simulate_program(["train.py"], 3).verdict is Verdict.PASS
        assert capfd.readouterr().out.splitlines().count(found) == 1


@pytest.mark.parametrize("count", ["cuda.device_count()", "accelerator.device_count()"])
def test_as_many_ranks_as_virtual_gpus(write, capfd, count):
    checks = "    assert torch.accelerator.is_available() and str(torch.accelerator.current_accelerator()) == 'cuda'\n"
    write(
        SPAWN.replace("    try:\n", checks + "    try:\n").replace(
            "3,), nprocs=3", f"torch.{count},), nprocs=torch.{count}"
        )
    )
    assert main(["run", "--gpus", "2", "train.py"]) == 0
    assert "PASS  train.py on 2 ranks" in capfd.readouterr().out
