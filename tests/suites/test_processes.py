"""Tests that start ranks by multiprocessing, in pools and by commands: one planted skip fails one test."""

import multiprocessing.pool
import multiprocessing.popen_spawn_posix
import multiprocessing.synchronize
import sys
import types

import pytest

from ddpsim.scenarios.test_suites import started_ranks
from tests.pytest_plugin.reading import report_of
from tests.tiers import sweep

KEPT = (multiprocessing.pool, multiprocessing.popen_spawn_posix, multiprocessing.synchronize)
"""Imported before pytester's first session in this process, which would otherwise unload them at its end."""

HEAD = """
import multiprocessing, os, pathlib, subprocess, sys, threading, time
import torch.multiprocessing as mp

def begin(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29551")
    dist.init_process_group("gloo", rank=rank, world_size=size)

def total(rank, size, value):
    begin(rank, size)
    tensor = torch.full((1,), float(value))
    dist.all_reduce(tensor)
    assert tensor.item() == value * size
    dist.destroy_process_group()

def skips(rank, size, value):
    begin(rank, size)
    if rank != 1:
        dist.barrier()

def started(function, size, *arguments, method="spawn"):
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=function, args=(rank, size, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    return processes
"""

SPAWN = f"""{HEAD}
def raises(rank, size):
    begin(rank, size)
    if rank == 1:
        raise ValueError("one is bad")
    dist.barrier()

def exits(rank, size, code):
    begin(rank, size)
    dist.barrier()
    if rank == 1:
        os._exit(code)

def writes(rank, size, shared):
    begin(rank, size)
    shared[rank] = rank + 1

def test_many():
    mp.spawn(total, args=(2, 1), nprocs=2)
    mp.spawn(total, args=(6, 2), nprocs=6)
    mp.start_processes(total, args=(2, 1), nprocs=2, start_method="fork")

def test_planted():
    mp.spawn(skips, args=(3, 1), nprocs=3)

def test_context():
    context = mp.spawn(total, args=(2, 1), nprocs=2, join=False)
    while not context.join():
        pass

def test_error():
    with pytest.raises(mp.ProcessRaisedException, match="one is bad") as caught:
        mp.spawn(raises, args=(2,), nprocs=2)
    assert caught.value.error_index == 1

def test_error_of_rank():
    mp.spawn(raises, args=(2,), nprocs=2)

def test_error_as_an_exit_code():
    for process in (processes := started(raises, 2)):
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]

@pytest.mark.parametrize("code", [0, 3])
def test_exit(code):
    try:
        mp.spawn(exits, args=(2, code), nprocs=2)
    except mp.ProcessExitedException as error:
        assert (error.error_index, error.exit_code) == (1, code)
    else:
        assert code == 0

def test_shared_memory():
    shared = torch.zeros(2)
    mp.spawn(writes, args=(2, shared), nprocs=2)
    assert shared.tolist() == [1, 2]

def test_what_does_not_pickle():
    with pytest.raises(Exception, match="pickle"):
        mp.spawn(total, args=(2, lambda: 1), nprocs=2)
"""


@pytest.mark.tier("ci")
def test_ranks_of_spawn(run):
    result = run(SPAWN, "--ddpsim")
    result.assert_outcomes(passed=7, failed=3)
    assert report_of(result, "test_planted")[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert any(line.startswith("E ") and "one is bad" in line for line in report_of(result, "test_error_of_rank"))
    assert any(
        "rank 1 raised ValueError: one is bad" in line for line in report_of(result, "test_error_as_an_exit_code")
    )
    repaired = run(SPAWN.replace("if rank != 1:\n        dist.", "dist."), "--ddpsim", "-k", "planted")
    repaired.assert_outcomes(passed=1)


WORKERS = f"""{HEAD}
from torch.utils.data import DataLoader

def loads(rank, size, path):
    begin(rank, size)
    for _ in range(3):
        assert multiprocessing.active_children() == []
        loader = DataLoader(torch.arange(2), batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert [batch.item() for batch in loader] == [0, 1]
    (path / str(rank)).write_text(str(os.getppid()))

def test_workers_and_what_their_ranks_write(tmp_path):
    processes = started(loads, 2, tmp_path)
    assert set(processes) == set(multiprocessing.active_children())
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert multiprocessing.active_children() == []
    assert (tmp_path / "1").read_text() == str(os.getpid())
"""


@pytest.mark.tier("ci")
def test_a_rank_has_its_own_workers_and_a_test_that_fails_after_its_ranks_has_processes(run):
    result = run(WORKERS, "--ddpsim")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  why processes: 1 it fails on threads"])


PROCESSES = f"""{HEAD}
def sends(rank, size, queue):
    begin(rank, size)
    dist.barrier()
    queue.put((rank, "x" * 300_000))

def hangs(rank, size, queue):
    begin(rank, size)
    if rank == 0:
        dist.barrier()
    queue.get()

def sets(rank, size, event):
    begin(rank, size)
    dist.barrier()
    event.set()

def fails(rank, size):
    begin(rank, size)
    if rank == 1:
        sys.exit(5)

class Kept:
    def run(self, rank, size):
        total(rank, size, 1)

def writes(number, path):
    pathlib.Path(path).write_text(str(os.getpid()))

@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_joined(method):
    processes = started(total, 2, 1, method=method)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]

def test_polled():
    processes = started(Kept().run, 5)
    while any(process.is_alive() for process in processes):
        time.sleep(0.01)
    assert [process.exitcode for process in processes] == [0] * 5

def test_codes():
    processes = started(fails, 2)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 5]

def test_read_before_joined():
    queue = multiprocessing.get_context("spawn").Queue()
    processes = started(sends, 2, queue)
    assert sorted(queue.get()[0] for process in processes) == [0, 1]
    for process in processes:
        process.join()

def test_event():
    event = multiprocessing.get_context("spawn").Event()
    processes = started(sets, 2, event)
    event.wait()
    for process in processes:
        process.join()

def test_planted():
    started(hangs, 2, queue := multiprocessing.get_context("spawn").Queue())
    queue.put(1)
    queue.put(2)
    time.sleep(0.1)
    multiprocessing.connection.wait([multiprocessing.Pipe()[0]])

def test_left():
    started(total, 2, 1)

def test_left_with_a_planted_skip():
    started(skips, 2, 1)

def test_thread():
    threading.Thread(target=time.sleep, args=(3,), name="a sleeper").start()

def test_no_rank(tmp_path):
    process = multiprocessing.Process(target=writes, args=(0, str(tmp_path / "id")))
    process.start()
    process.join()
    assert (tmp_path / "id").read_text() == str(process.pid)
"""


@pytest.mark.tier("ci")
def test_ranks_that_are_processes(run):
    result = run(PROCESSES, "--ddpsim")
    result.assert_outcomes(passed=10, failed=2, warnings=2)
    assert report_of(result, "test_planted")[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert report_of(result, "test_left_with_a_planted_skip")[0].startswith("DEADLOCK  deadlock.missing_rank")
    result.stdout.fnmatch_lines("*the test has not waited for the 2 ranks that it started")
    result.stdout.fnmatch_lines("*the test has left threads that still run: a sleeper")


THREADS = f"""{HEAD}
def leaves(rank, size, how):
    begin(rank, size)
    dist.barrier()
    how == "exit" and os._exit(0)
    how == "kill" and rank and os.kill(os.getpid(), 9)
    how == "folder" and os.chdir("/")
    how == "output" and print("x" * 50_000_000)

@pytest.mark.parametrize("how", ["exit", "folder", "output"])
def test_it(how):
    before = os.getcwd()
    mp.spawn(leaves, args=(2, how), nprocs=2)
    assert os.getcwd() == before

def test_killed():
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.spawn(leaves, args=(2, "kill"), nprocs=2)
    assert caught.value.signal_name == "SIGKILL"
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("name", sweep(["exit", "folder", "output", "killed"], {"folder", "killed"}.__contains__))
def test_what_ranks_do_to_their_process(run_apart, name):
    run_apart(THREADS, "--ddpsim", "-k", name).assert_outcomes(passed=1)


CHANGED = f"""{HEAD}
import helper

def checks(rank, size, expected):
    total(rank, size, 1)
    assert helper.NAMES == expected, helper.NAMES

@pytest.fixture(autouse=True)
def changed(monkeypatch):
    helper.NAMES.append("of the session")
    monkeypatch.setattr("test_it.MODE", "changed")

MODE = ""

def mode(rank, size, expected):
    total(rank, size, 1)
    assert expected == MODE

@pytest.mark.parametrize("method, expected", [("spawn", ""), ("fork", "changed"), ("spawn", "wrong")])
def test_mode(method, expected):
    for process in started(mode, 2, expected, method=method):
        process.join()
        assert process.exitcode == 0

def test_names():
    mp.spawn(checks, args=(2, ["own"]), nprocs=2)
"""


@pytest.mark.tier("ci")
def test_a_spawned_rank_imports_the_modules_of_tests_anew(run, pytester):
    pytester.makepyfile(helper="NAMES = ['own']")
    result = run(CHANGED, "--ddpsim")
    result.assert_outcomes(passed=3, failed=1)
    assert "test_mode[spawn-wrong]" in str(result.stdout)


def test_a_virtual_environment_beside_the_tests_stays_imported(monkeypatch, tmp_path):
    for name, file in (
        ("own_helper", "helper.py"),
        ("an_installed_one", ".venv/lib/site-packages/an_installed_one.py"),
    ):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    config = types.SimpleNamespace(rootpath=tmp_path)
    started_ranks._forget_modules_of_tests(types.SimpleNamespace(path=tmp_path / "test_it.py", config=config))
    assert {"own_helper", "an_installed_one"} & sys.modules.keys() == {"an_installed_one"}


ON_GPUS = f"""{HEAD}
def on_gpu(rank, size, planted):
    begin(rank, size)
    torch.cuda.set_device(rank)
    value = torch.ones(1, device="cuda")
    dist.all_reduce(value)
    assert value.item() == 2
    assert value.device.index == rank
    if not planted or rank:
        dist.barrier()

@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs GPUs")
@pytest.mark.parametrize("planted", [False, True])
def test_it(planted):
    mp.spawn(on_gpu, args=(torch.cuda.device_count(), planted), nprocs=torch.cuda.device_count())
"""


@pytest.mark.tier("ci")
def test_ranks_that_a_test_starts_have_virtual_gpus(run):
    result = run(ON_GPUS, "--ddpsim", "--ddpsim-gpus", "2")
    result.assert_outcomes(passed=1, failed=1)
    assert report_of(result, "test_it[True]")[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert " --ddpsim --ddpsim-gpus 2" in str(result.stdout)
    run("", "--ddpsim").assert_outcomes(skipped=2)


POOLS = f"""{HEAD}
from functools import partial
def group(rank, size):
    begin(rank, size)

def value(rank, size, values):
    values.append(1)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return rank, tensor.item(), len(values)

def planted(rank, size):
    if rank == 0:
        dist.barrier()

def bad(rank, size):
    raise ValueError(f"bad {{rank}}")

def no_rank(number):
    return os.getpid()

@pytest.fixture(scope="module")
def own():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        yield pool

def arguments(*more):
    return [(rank, 2, *more) for rank in range(2)]

pool = multiprocessing.get_context("spawn").Pool(2)
pool.starmap(group, arguments())

def test_value():
    given = []
    for _ in range(2):
        assert pool.starmap(value, arguments(given)) == [(0, 2.0, 1), (1, 2.0, 1)]
    assert not given

def test_planted():
    pool.starmap(planted, arguments())

def test_error():
    result = pool.starmap_async(bad, arguments())
    with pytest.raises(ValueError, match="bad"):
        result.get(10)

def test_pool_of_a_test():
    with mp.Pool(2) as own:
        own.starmap(group, arguments())

def test_no_rank():
    with mp.Pool(2) as own:
        assert os.getpid() not in own.map(no_rank, range(2))
        assert os.getpid() not in (own.apply_async(no_rank, (0,)).get(), own.apply(no_rank, (1,)))

def applied(rank, size, planted=False):
    begin(rank, size)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    if planted and rank == 1:
        return
    dist.barrier()
    dist.destroy_process_group()
    return rank, tensor.item()

def applied_bad(rank, size):
    begin(rank, size)
    raise ValueError(f"bad {{rank}}")

def of_arguments(given):
    function, rank, size = given
    return function(rank, size)

def apply(function, calls=2, **more):
    caught = []
    with mp.Pool(2) as own:
        given = [partial(of_named, function, rank=rank, size=2, **more) for rank in range(calls)]
        results = [own.apply_async(each, error_callback=caught.append) for each in given]
        for result in results:
            result.wait()
    return [result.successful() and result.get() for result in results], sorted(map(str, caught))

def of_named(function, **named):
    return function(**named)

def test_applied():
    assert apply(applied) == ([(0, 2.0), (1, 2.0)], [])
    with mp.Pool(2) as own:
        assert own.map(of_arguments, [(applied, 0, 2), (applied, 1, 2)]) == [(0, 2.0), (1, 2.0)]

def test_applied_error():
    assert apply(applied_bad) == ([False, False], ["bad 0", "bad 1"])

def begins_nothing(rank, size):
    return rank if size == 2 else begin(rank, size)

def test_applied_by_one_of_two():
    assert apply(begins_nothing, calls=1) == ([0], [])
    with mp.Pool(2) as own:
        result = own.apply_async(begins_nothing, (0, 2))
        while not result.ready():
            pass
    own = mp.Pool(2)
    result = own.apply_async(begins_nothing, (0, 2))
    own.close()
    own.join()
    assert result.get() == 0

def test_applied_planted():
    apply(applied, planted=True)
"""


@pytest.mark.tier("ci")
def test_pools(run):
    result = run(POOLS, "--ddpsim")
    result.assert_outcomes(passed=7, failed=2)
    for name in ("test_planted", "test_applied_planted"):
        assert report_of(result, name)[0].startswith("DEADLOCK  deadlock.missing_rank")


COMMANDS = f"""{HEAD}
PROGRAM = '''
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
if "skip" not in sys.argv or dist.get_rank():
    dist.barrier()
print("done", flush=True)
dist.destroy_process_group()
'''

@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")

def test_run(program):
    command = ["torchrun", "--nproc-per-node", "3", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("done") == 3

def test_planted(program):
    subprocess.check_call([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", program, "skip"])

def test_unknown(program):
    variables = {{**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29552", "WORLD_SIZE": "2"}}
    ranks = [subprocess.Popen([sys.executable, program], env={{**variables, "RANK": str(rank)}}) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]

def rank_by_name(name):
    begin({{"a": 0, "b": 1}}[name], 2)

def test_unknown_process():
    for name in "ab":
        process = multiprocessing.get_context("fork").Process(target=rank_by_name, args=(name,))
        process.start()
        process.join()

def test_started_otherwise(program):
    variables = {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29552", "WORLD_SIZE": "1", "RANK": "0"}}
    os.spawnve(os.P_WAIT, sys.executable, [sys.executable, program], {{**os.environ, **variables}})

def test_other():
    assert subprocess.check_output("echo a | cat", shell=True) == b"a\\n"
"""


@pytest.mark.tier("ci")
def test_commands(run_apart):
    result = run_apart(COMMANDS, "--ddpsim")
    result.assert_outcomes(passed=2, failed=4)
    told = report_of(result, "test_unknown")[0]
    assert told.startswith("a process that a test (by subprocess, test_it.py, line ")
    assert "makes a process group, expected only ranks to: start it by mp.spawn" in told
    told = report_of(result, "test_unknown_process")[0]
    assert told.startswith("a process that a test (by multiprocessing, test_it.py, line ")
    assert report_of(result, "test_started_otherwise")[0].startswith("a process that a test has started")
    result.stdout.fnmatch_lines("DEADLOCK  deadlock.missing_rank*")


DRAWS = f"""{HEAD}
import unittest
from hypothesis import HealthCheck, given, settings, strategies as st

SEEN = []

def changes(rank, size, flag, wrong):
    total(rank, size, 1)
    global SEEN
    SEEN = [flag]
    assert flag != wrong

class TestDraws(unittest.TestCase):
    @settings(deadline=None, database=None)
    @given(st.booleans())
    def test_all_pass(self, flag):
        for process in started(changes, 2, flag, None):
            process.join()
            self.assertEqual(process.exitcode, 0)

    @settings(deadline=None, database=None)
    @given(st.booleans())
    def test_fails(self, flag):
        mp.spawn(changes, args=(2, flag, True), nprocs=2)
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("isolation", [(), ("--ddpsim-isolation", "process"), ("--ddpsim-explore", "2")])
def test_hypothesis_draws_for_each_attempt(run, isolation):
    result = run(DRAWS, "--ddpsim", "-p", "_hypothesis_pytestplugin", *isolation)
    result.assert_outcomes(passed=1, failed=1)
    text = str(result.stdout)
    assert "differing_executors" not in text
    assert "AssertionError" in text
    assert "flag=True" in text
