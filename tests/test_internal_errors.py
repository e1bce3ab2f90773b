"""Errors of our own, planted on every way: they are reported as ours, with what a report needs, and nothing hangs."""

import os
import re
import threading
from unittest import mock

import pytest
import torch.distributed as dist

from ddpsim import Code, InternalError, UsageError, simulate
from ddpsim.scenarios.cli import main
from ddpsim.simulator.errors import is_internal_error, is_unexpected_error, make_internal_error

SIMULATOR = "ddpsim.simulator."
HEAD = "internal error of ddpsim, please report it with the lines below and the output of `ddpsim doctor`"


def planted(body="{}['planted']", module=SIMULATOR + "kernel.planted"):
    """A function that breaks as one of the simulator's would."""
    names = {"__name__": module}
    exec(f"def breaks(*arguments, **options):\n    {body}", names)
    return names["breaks"]


def check_report(text, where, *, has_token=True):
    """The first line says that it is ours, and where it broke; then the traceback, the versions and the token."""
    first, second, *others = text.splitlines()
    assert re.fullmatch(rf"{HEAD}: KeyError: 'planted' \(in {where}\)", first), first
    assert second == "Traceback (most recent call last):"
    assert any(line.endswith("in breaks") for line in others)
    versions, *token = others[-2:] if has_token else others[-1:]
    assert re.match(r"ddpsim \d\S+, torch \d\S+, Python \d\S+, \w", versions), versions
    assert not has_token or re.fullmatch(r"replay token s1:\S+", token[0]), token


def barrier(rank):
    dist.barrier()
    return rank


def starts_a_thread(rank):
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()


RUN, RANK, AT_RANK = "the process that runs the ranks", "the process of rank {}", "the run, at rank {}"
PLACES = [
    # what breaks, the program, where it is said to have broken: ranks as threads; as processes
    ("process_group.group.SimulatedGroup.barrier", barrier, AT_RANK.format(0), RANK.format(0)),
    ("kernel.call_matching.CallMatcher._match_collective", barrier, AT_RANK.format(1), RUN),
    ("transport.memory.MemoryTransport.move_data", barrier, AT_RANK.format(1), RUN),
    ("runtime.threads.thread_body.restore_run_method", starts_a_thread, AT_RANK.format(0), RANK.format(0)),
    ("runtime.thread_host.RankThreads.wait_for_other_threads", barrier, AT_RANK.format(1), RANK.format(1)),
    ("kernel.endings.WaitGraph", lambda rank: rank or dist.barrier(), AT_RANK.format("[01]"), AT_RANK.format("[01]")),
    ("rank_processes.coordinator.RankCoordinator._complete_calls", barrier, None, RUN),
    ("rank_processes.own_process._seed_generators", barrier, None, RANK.format(0)),
    ("rank_processes.rank_process._RankProcess._install_signal_handlers", barrier, None, RANK.format(0)),
    ("rank_processes.rank_process._RankProcess._final_message", barrier, None, RANK.format(0)),
    ("rank_processes.remote_kernel.RemoteKernel._accept_turn", barrier, None, RANK.format(0)),
]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_breaks_in_a_run_is_reported_as_ours(isolation):
    import_processes()
    for place, program, in_thread, in_process in PLACES:
        where = in_thread if isolation == "thread" else in_process
        print(place)  # pytest shows the last one if the test fails
        if where is not None:
            with mock.patch(SIMULATOR + place, planted()), pytest.raises(InternalError) as caught:
                simulate(program, 2, isolation=isolation)
            check_report(str(caught.value), where)
    assert simulate(barrier, 2, isolation=isolation).returns == (0, 1)


def import_processes():
    assert simulate(lambda rank: rank, 1, isolation="process").returns == (0,)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize(
    "place",
    [
        "kernel.kernel.Kernel.handle",
        "kernel.kernel.Kernel.give_baton",
        "runtime.thread_host.ThreadHost._next_thread_after",
    ],
)
def test_nothing_hangs_if_the_baton_cannot_be_passed_on(isolation, place):
    with mock.patch(SIMULATOR + place, planted()), pytest.raises(InternalError, match=HEAD):
        simulate(barrier, 2, isolation=isolation)
    assert simulate(barrier, 2, isolation=isolation).returns == (0, 1)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_a_program_does_is_its_own(isolation):
    def asserts(rank):
        assert rank, "the program's own"
        return {}["absent"]

    result = simulate(asserts, 2, isolation=isolation)
    assert [type(error) for error in result.errors.values()] == [AssertionError, KeyError]
    with pytest.raises(UsageError, match="expected"):
        simulate(asserts, 0, isolation=isolation)


def test_a_program_that_ends_its_process_is_told_as_before():
    for status in (1, 3, 70):  # the last one is that of a process in which we broke
        result = simulate(lambda rank, status=status: rank and os._exit(status), 2, isolation="process")
        assert result.findings[0].code is Code.RANK_ERROR
        assert result.findings[0].summary == f"rank 1 ended by os._exit({status})"


def test_what_is_a_bug_of_ours():
    def caught(call):
        try:
            call()
        except Exception as error:
            return error

    def is_each(error):
        return is_internal_error(error), is_unexpected_error(error)

    assert is_each(caught(planted())) == (True, True)
    assert is_each(caught(planted("assert False"))) == (True, True)
    assert is_each(caught(planted("absent"))) == (True, True)
    assert is_each(caught(planted("raise KeyError('for the program')"))) == (False, True)
    assert is_each(caught(planted("raise AssertionError('for the program')"))) == (False, True)
    assert is_each(caught(planted("int('x')"))) == (False, True)
    assert is_each(caught(planted(module=SIMULATOR + "runtime.isolation.planted"))) == (False, True)
    assert is_each(caught(planted(module="ddpsim.scenarios.cli.planted"))) == (False, True)
    assert is_each(caught(planted(module="ddpsim.scenarios.zoo.planted"))) == (False, False)
    assert is_each(caught(planted(module="program"))) == (False, False)
    assert is_each(caught(planted("open('/absent')"))) == (False, False)
    assert is_each(UsageError("a line")) == (False, False)
    for module, name in (("ddpsim.simulator.choices", "RedundantRun"), ("bdb", "BdbQuit")):
        assert is_each(caught(planted(f"from {module} import {name}; raise {name}"))) == (False, False)
    assert is_each(InternalError("a line")) == (True, True)
    report = make_internal_error(caught(planted()), "a place")
    assert make_internal_error(report, "another place") is report


# --- programs ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""
LAUNCHES = """
import torch.multiprocessing as mp
import torch.distributed as dist
def work(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=2)
    dist.barrier()
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
PLANT = """
from ddpsim.simulator.{package} import {module}
names = {{"__name__": "ddpsim.simulator.{package}.planted"}}
exec("def breaks(*arguments, **options):\\n    {{}}['planted']", names)
{module}.{name} = names["breaks"]
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run `ddpsim run` on a program: its status and what it says on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(text, *options):
        (tmp_path / "program.py").write_text(text)
        status = main(["run", *options, "--world-size", "2", "program.py"])
        return status, capsys.readouterr().err.removeprefix("ddpsim: ")

    return run


ONE_RANK, THE_LAUNCHER = "the process of rank [01]", "the process of the program, which starts the ranks"


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    ("place", "name", "where"),
    [
        ("rank_processes.rank_process", "_RankProcess._install_signal_handlers", ONE_RANK),
        ("rank_processes.rank_process", "make_own_process", ONE_RANK),
        ("launching.server", "_become_rank_or_launcher", "the process of a rank, before its program began"),
        ("launching.server", "_RankServer._fork_processes", "a server, from which ranks are forked"),
        ("launching.launcher", "Launcher._is_rank", THE_LAUNCHER),
        ("launching.launcher", "detect_groups_in_new_pythons", THE_LAUNCHER),
        ("launching.launcher", "Launcher._remove_torchrun_variables", f"{ONE_RANK}, before its program began"),
    ],
)
def test_what_breaks_around_a_program(run, tmp_path, place, name, where):
    package, module = place.split(".")
    program = LAUNCHES if module == "launcher" else PROGRAM
    (tmp_path / "planter.py").write_text(PLANT.format(package=package, module=module, name=name))
    status, said = run(program, "--preload", "planter")
    assert status == 1
    check_report(said, where, has_token=where is not THE_LAUNCHER)
    assert run(program)[0] == 0


@pytest.mark.tier("ci")
def test_what_breaks_in_the_guardian(run):
    with mock.patch(SIMULATOR + "launching.program_ranks._run_guardian", planted()):
        status, said = run(PROGRAM)
    assert status == 1
    check_report(said, "the process that ends what ranks have started")
    assert run(PROGRAM)[0] == 0


# --- the shell --------------------------------------------------------------------------------------------------------


def test_what_breaks_in_a_command(capsys):
    module = "ddpsim.scenarios.cli.planted"
    with mock.patch("ddpsim.scenarios.cli.commands.app", planted(module=module)):
        assert main(["list"]) == 1
    check_report(capsys.readouterr().err.removeprefix("ddpsim: "), "the command", has_token=False)
    with mock.patch("ddpsim.scenarios.cli.commands.app", planted(module="program")), pytest.raises(KeyError):
        main(["list"])
