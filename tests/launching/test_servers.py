"""Ranks of a program start unlike, as under torchrun, and yet the same in each run; and alike where that is wanted."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from ddpsim import (
    Budget,
    Code,
    ReplayError,
    Schedule,
    UsageError,
    Verdict,
    explore,
    replay,
    simulate,
    simulate_program,
)
from ddpsim.simulator.api import MOST_RANKS
from ddpsim.simulator.errors import InternalError
from ddpsim.simulator.launching import servers
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.launching.server import RankStart, _begin_process
from ddpsim.simulator.launching.servers import ServerKey, ServerPool, ServerProcess, server_keys
from ddpsim.simulator.rank_processes.channel import MessageChannel
from ddpsim.simulator.rank_processes.children import ChildProcess
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.rank_files import RankFiles
from tests.kit.leftovers import children
from tests.kit.rows import rows
from tests.launching.left_behind import nothing_is_left, with_servers

SETS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sizes = {"image": 3, "text": 5, "audio": 2, "video": 7}
for name in %s:
    dist.all_reduce(torch.ones(sizes[name]))  # line 6
"""

DROPS = """
import random
import torch, torch.distributed as dist
dist.init_process_group("gloo")
%s
for layer in range(8):
    if %s < 0.5:
        dist.all_reduce(torch.ones(4))  # line 8
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with_servers()

    def written(source):
        (tmp_path / "train.py").write_text(textwrap.dedent(source).lstrip("\n"))
        return ["train.py"]

    with nothing_is_left(other_servers=True):
        yield written


@pytest.mark.tier("ci")
def test_a_set_in_its_own_order_is_found_and_replayed(program):
    command = program(SETS % "set(sizes)")
    found = simulate_program(command, 4)
    assert found.findings[0].code is Code.MISMATCH_SHAPE, str(found)
    assert found.findings[0].sites[0].line == 5
    assert "train.py" in found.findings[0].sites[0].file
    assert str(found.schedule).split(":")[2] == "u28.80"
    again = replay(Script(tuple(command)), 4, str(found.schedule))
    assert again.trace.digest() == found.trace.digest()
    assert str(again.schedule) == str(found.schedule)
    assert simulate_program(command, 4, alike=True).verdict is Verdict.PASS
    assert simulate_program(program(SETS % "sorted(sizes)"), 4).findings == ()


@rows(
    ("source", "tells"),
    [
        ("import torch.optim; import torch.distributed as dist; import numpy, time", False),
        ("for name, value in {'a': 1}.items(): print(name, 'of a set')", False),
        ("print([key for key in vars().keys()])", False),
        ("import helper", False),
        ("names = {'a', 'b'}", True),
        ("names = {each for each in 'ab'}", True),
        ("def add(names: list, to=set): return to(names)", True),
        ("print(vars().keys() - ['a'])", True),
        ("both = vars().items() & {}.items()", True),
        ("import builtins as b; b.frozenset('ab')", True),
        ("from builtins import set as a_set", True),
        ("print(hash('a') % 2)", True),
        ("import torch; torch.load('names.pt')", True),
        ("from torch.distributed.fsdp import fully_shard", True),
        ("import importlib; importlib.import_module('helper')", True),
        ("import transformers", True),
        ("import sets", True),
        ("import not python", True),
        ("from runpy import run_path; run_path('real.py')", True),
        ("from package.part import nothing", True),  # its package's file runs, too
        ("import package.part", True),
    ],
)
def test_only_a_program_that_can_tell_its_hash_seed_needs_two_servers(tmp_path, source, tells):
    (tmp_path / "helper.py").write_text("import os")
    (tmp_path / "sets.py").write_text("import helper; either = set('ab')")
    (tmp_path / "package").mkdir(exist_ok=True)
    (tmp_path / "package" / "__init__.py").write_text("either = {'a', 'b'}")
    (tmp_path / "package" / "part.py").write_text("nothing = None")
    (tmp_path / "train.py").write_text(source)
    keys = server_keys(Script((str(tmp_path / "train.py"),)), (28, 80), ())
    assert [key.hash_seed for key in keys] == ([28, 80] if tells else [28])


OWN = """
import os, sys, torch
parent = os.getppid()
others = open(f"/proc/{parent}/task/{parent}/children").read().split()
started = [each for each in others if "launching.server" in open(f"/proc/{each}/cmdline").read()]
print(len(started), os.environ.get("PYTHONHASHSEED"), os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads())
"""


@pytest.mark.tier("ci")
def test_a_command_forks_ranks_from_itself_and_their_environment_is_the_users(program):
    program(OWN)
    given = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONHASHSEED")}
    for own, expected in (
        ({}, "0 None 1 1"),  # as torchrun sets it
        ({"OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "random"}, "0 random 1 1"),
        ({"PYTHONHASHSEED": "5"}, "0 5 1 1"),
    ):
        command = [sys.executable, "-m", "ddpsim", "run", "--world-size", "2", "train.py"]
        ended = subprocess.run(command, env={**given, **own}, capture_output=True, text=True)
        assert ended.stdout.splitlines()[:2] == [expected] * 2, ended.stdout + ended.stderr


@pytest.mark.tier("ci")
@pytest.mark.parametrize("draw", ["random.random()", "torch.rand(1).item()"])
def test_layers_that_are_dropped_unseeded_are_found(program, draw):
    command = program(DROPS % ("", draw))
    found = simulate_program(command, 2)
    assert found.verdict is Verdict.FAIL
    assert "train.py:7" in found.findings[0].body
    assert replay(Script(tuple(command)), 2, str(found.schedule)).trace.digest() == found.trace.digest()
    assert simulate_program(command, 2, alike=True).findings == ()
    assert simulate_program(program(DROPS % ("random.seed(0); torch.manual_seed(0)", draw)), 2).findings == ()


@pytest.mark.tier("ci")
def test_a_hash_seed_of_the_users_is_that_of_all_ranks(program, monkeypatch):
    command = program(SETS % "set(sizes)")
    assert simulate_program(command, 2).verdict is Verdict.FAIL
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    result = simulate_program(command, 2)
    assert result.findings == (), str(result)
    assert ":u5:" in str(result.schedule)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert str(replay(command, 2, str(result.schedule)).schedule) == str(result.schedule)
    assert simulate_program(command, 2).verdict is Verdict.FAIL


@pytest.mark.tier("ci")
def test_a_token_says_how_ranks_start(program):
    command = program(SETS % "set(sizes)")
    alike = simulate_program(command, 2, alike=True)
    assert ":a28:" in str(alike.schedule)
    assert replay(Script(tuple(command)), 2, str(alike.schedule)).trace.digest() == alike.trace.digest()
    old = str(Schedule((), alike.program))
    assert old.count(":") == 2
    assert replay(Script(tuple(command)), 2, old, strict=False).verdict is Verdict.FAIL
    with pytest.raises(ReplayError, match="does not match its checksum"):
        replay(Script(tuple(command)), 2, str(alike.schedule).replace(":a28:", ":u28:"))


@pytest.mark.tier("ci")
@pytest.mark.parametrize(("limit", "files"), [(resource.RLIMIT_NOFILE, 20), (resource.RLIMIT_AS, None)])
def test_a_system_that_gives_no_more(program, limit, files):
    command = program(SETS % "sorted(sizes)")
    before = resource.getrlimit(limit)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    least = len(os.listdir("/proc/self/fd")) + files if files else size + (1 << 30)
    resource.setrlimit(limit, (least, before[1]))
    try:
        with pytest.raises(
            UsageError, match=r"^the system does not start 16 processes for ranks .*: take fewer ranks, or"
        ):
            simulate_program(command, 16)
    finally:
        resource.setrlimit(limit, before)


def a_server():
    """The number of one of the processes that programs are forked from."""
    return next(int(each) for each in children() if "launching.server" in Path(f"/proc/{each}/cmdline").read_text())


@pytest.mark.tier("nightly")
def test_a_server_that_was_killed_is_started_again(program, capfd):
    command = program("import os; print(os.getppid())")
    os.kill(number := a_server(), signal.SIGKILL)
    os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
    assert simulate_program(command, 2).verdict is Verdict.PASS
    assert capfd.readouterr().out == f"{os.getpid()}\n" * 2


@pytest.mark.tier("ci")
def test_a_server_that_is_killed_while_it_forks(program):
    """The ranks that the other one has forked are ended and reaped, as the fixture sees, and all are forked again."""
    simulate_program(command := program("set()"), 2)  # from two servers
    number = a_server()
    os.kill(number, signal.SIGSTOP)
    killer = threading.Timer(1.0, os.kill, (number, signal.SIGKILL))
    killer.start()
    assert simulate_program(command, 2).verdict is Verdict.PASS
    killer.join()


@pytest.mark.tier("ci")
def test_a_server_that_is_killed_each_time(program, monkeypatch):
    """One that stood by is started again, and no more than once."""
    command = program("pass")
    simulate_program(command, 2, alike=True)  # so from one server
    monkeypatch.setattr(ServerProcess, "is_alive", property(lambda server: True))  # nobody has looked yet
    settle, settled = ServerProcess.await_ready, []

    def dying(server):
        settle(server)
        settled.append(server)
        server._process.kill()

    monkeypatch.setattr(ServerProcess, "await_ready", dying)
    with pytest.raises(UsageError, match=r"could not load torch, or has ended \(killed by SIGKILL\)"):
        simulate_program(command, 2, alike=True)
    assert len(settled) == 2


def test_servers_of_other_hash_seeds_end_when_they_are_not_needed(monkeypatch):
    """The usual ones stay; a session that replays tokens of many seeds would keep many."""
    ended = []

    class Stand:
        is_alive = True

        def __init__(self, key):
            self.key = key

        def close(self):
            ended.append(self.key.hash_seed)

    monkeypatch.setattr(servers, "ServerProcess", Stand)
    standing = ServerPool()
    standing.start_servers([ServerKey(28), ServerKey(80)], wants_dynamo=False)
    standing.start_servers([ServerKey(5)], wants_dynamo=False)
    standing.start_servers([ServerKey(5)], wants_dynamo=False)
    assert ended == []
    standing.start_servers([ServerKey(6), ServerKey(7)], wants_dynamo=False)
    assert ended == [5]
    standing.start_servers([ServerKey(28)], wants_dynamo=False)
    assert ended == [5, 6, 7]
    standing.close()
    assert sorted(ended) == [5, 6, 7, 28, 80]


def test_what_breaks_before_the_program_begins_is_told_as_ours():
    channel, theirs = MessageChannel.pair()
    files = RankFiles.open_rank_files()
    given = [theirs.fileno(), os.memfd_create("arena"), files.output, files.errors, files.stack]
    pid = os.fork()
    if not pid:
        _begin_process(given, {})
    theirs.close()
    os.close(given[1])
    channel.send(RankStart(0, {"there": "is no such term"}, dict(os.environ), os.getcwd(), tuple(sys.path)))
    child = ChildProcess(0, pid, channel, SharedArena(), files)
    with pytest.raises(
        InternalError, match=r"(?s): IndexError: .* \(in the process of a rank, before its program began\)\n"
    ):
        child.describe_end()
    child.release_resources()


def test_more_ranks_than_memory(program):
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    count = (int(line.split()[1]) >> 10) // 8 * 2
    if count > MOST_RANKS:
        pytest.skip("this machine has the memory for all ranks there may be")
    for run, isolation in ((Script(tuple(program("pass"))), None), (lambda rank: None, "process")):
        with pytest.raises(UsageError, match=rf"^{count} ranks as processes need \d+ MiB of memory or more, and this"):
            simulate(run, count, isolation=isolation)


SLOW = "import os; process = os.getpid()\n"


@pytest.mark.tier("ci")
def test_modules_are_loaded_before_the_ranks(program, tmp_path, capfd):
    (tmp_path / "slow.py").write_text(SLOW)
    command = program("import os, slow; print(slow.process == os.getpid())")
    result = simulate_program(command, 1, preload=("slow",), alike=True)  # from one server
    assert capfd.readouterr().out == "False\n"
    assert "preload=('slow',)" in result.replay
    simulate_program(command, 1)
    assert capfd.readouterr().out == "True\n"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise ValueError('no')", r"^slow cannot be preloaded \(ValueError: no\), expected a module that can be"),
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            r"^slow starts 1 thread when it is imported, which no process that is forked afterwards has",
        ),
        ("import torch; torch.cuda.is_initialized = lambda: True", r"^slow initialises CUDA when it is imported"),
        (None, r"^there is no module 'slow' to preload, expected one that the program can import: correct the name$"),
    ],
)
@pytest.mark.tier("nightly")
def test_modules_that_cannot_be_forked(program, tmp_path, source, problem):
    if source is not None:
        (tmp_path / "slow.py").write_text(source)
    with pytest.raises(UsageError, match=problem):
        simulate_program(program("pass"), 1, preload=("slow",))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"preload": "json"}, r"^preload is 'json', expected names of modules: write"),
        ({"preload": ["json"]}, r"^preload is \('json',\), but ranks of functions share the modules of this process"),
    ],
)
def test_options_of_programs_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem):
        simulate(lambda rank: None, 2, isolation="process", **options)


@pytest.mark.tier("nightly")
def test_an_exploration_keeps_the_seeds(program, capfd):
    command = program(SETS % "sorted(sizes)" + "import random\nprint(random.random(), hash('a'))\n")
    digests = set()
    for _ in range(2):
        explored = explore(Script(tuple(command)), 2, policy="random", keep_going=True, budget=Budget(executions=2))
        assert explored.executions == 2
        assert str(explored.first_pass.schedule.start) == "u28.80"
        digests.add((explored.first_pass.trace.digest(), capfd.readouterr().out))
    assert len(digests) == 1


@pytest.mark.tier("nightly")
def test_a_module_search_path_of_a_long_session(program, monkeypatch):
    optimizes = "import sys, torch\nassert len(sys.path) > 2000\ntorch.optim.SGD([torch.ones(1)], lr=1)\n"
    command = program(optimizes + SETS % "sorted(sizes)")
    with monkeypatch.context() as session:
        session.setattr(sys, "path", [*sys.path, *(f"/nowhere/{number:0100}" for number in range(2000))])
        session.setenv("PYTHONHASHSEED", "6")  # of no server that is there
        assert simulate_program(command, 2).verdict is Verdict.PASS


@pytest.mark.tier("ci")
def test_a_thread_that_waits_for_a_key_of_a_server_that_ends_with_its_rank(program):
    command = program("""
        import threading, time
        import torch.distributed as dist
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        threading.Thread(target=lambda: store.wait(["key"]), daemon=True).start()
        time.sleep(1)
    """)
    assert simulate_program(command, 2).verdict is Verdict.PASS
