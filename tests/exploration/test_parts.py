"""Explorations on several workers: the executions of one process, in the same order, whatever the timing."""

import os
import pickle
import random
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice

import psutil
import pytest
from joblib.externals.loky.backend.reduction import dumps
from joblib.externals.loky.process_executor import TerminatedWorkerError

from ddpsim import Budget, UsageError, Verdict, explore
from ddpsim.scenarios import explore_scenario
from ddpsim.simulator.choices import Schedule
from ddpsim.simulator.exploration import parts
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.exploration.explorer import _RecordingPolicy, run_policy
from ddpsim.simulator.exploration.workers import Pool, WorkerBackend, Workers
from ddpsim.simulator.policies.dfs import Dfs
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.result import Result
from tests.exploration.differential import drawn_programs
from tests.exploration.kernel_programs import KernelRun
from tests.exploration.programs import add_up, overtaken, senders_to_one, waited_for_twice, write_and_read
from tests.kit.own_programs import RACY
from tests.tiers import sweep


class DrawnTiming:
    """Workers that end their tasks in an order drawn from a seed; as other processes, they get copies."""

    def __init__(self, monkeypatch, seed, width):
        self.chance, self.pool, self.waiting = random.Random(seed), Pool(width, self.submit), []
        self.tasks = 0
        monkeypatch.setattr(parts, "wait", self.wait)
        monkeypatch.setattr(parts.ExecutionsOfWorkers, "_most", property(lambda _: self.chance.randint(1, 6)))

    def submit(self, call, *task):
        self.waiting.append((future := Future(), dumps((call, task))))
        assert len(self.waiting) <= self.pool.width
        self.tasks += 1
        return future

    def wait(self, futures, return_when):
        future, task = self.waiting.pop(self.chance.randrange(len(self.waiting)))
        call, arguments = pickle.loads(task)
        handler = signal.getsignal(signal.SIGINT)
        try:
            future.set_result(pickle.loads(dumps(call(*arguments))))
        finally:
            signal.signal(signal.SIGINT, handler)  # a worker ignores Ctrl-C
        return {future}, set()


def run_by_kernel(program, policy, budget):
    """The result of one execution, with what was seen as what was returned."""
    recording = _RecordingPolicy(policy)
    ran = KernelRun(program, recording).ran
    return Result(len(program), (), (repr(ran),), {}, Schedule(tuple(recording.choices)), None)


def tree(executions, most=400):
    """What the first executions are."""
    return [(each.choices, each.outcome) for each in islice(filter(None, executions), most)]


def executions_of_one(strategy, run):
    while (policy := strategy.next_policy()) is not None:
        yield run_policy(strategy, run, policy, Budget(), 60.0)


@pytest.mark.parametrize("make", [Dpor, lambda _: Dfs(preemptions=1)], ids=["dpor", "dfs"])
@pytest.mark.parametrize("seed", sweep(range(100), lambda seed: seed < 2))
def test_a_tree_in_parts_has_the_runs_of_one_process(monkeypatch, make, seed):
    divided = 0
    for _, program in drawn_programs(seed, 10):
        run, alone = partial(run_by_kernel, program), make(len(program))
        expected = tree(executions_of_one(alone, run))
        timing = DrawnTiming(monkeypatch, seed, width=1 + seed % 4)
        source = parts.ExecutionsOfWorkers(timing.pool, partial(nullcontext, run), Budget(), keep_going=True)
        strategy = make(len(program))
        assert tree(source.in_order(strategy)) == expected, program
        assert len(expected) == 400 or strategy.is_complete is alone.is_complete
        divided += timing.tasks > 1
    assert divided or seed > 1, "some programs of the seeds that always run are divided"


# --- programs, here with drawn timing ---------------------------------------------------------------------------------

PROGRAMS = [(overtaken, 2), (senders_to_one, 5), (waited_for_twice, 3), (write_and_read, 3), (add_up, 2)]


@pytest.fixture
def at_times(monkeypatch):
    """Makes explorations run on workers whose timing is drawn."""

    def use(seed, width=3):
        timing = DrawnTiming(monkeypatch, seed, width)
        monkeypatch.setattr(parts, "connect_workers", lambda workers: nullcontext(timing.pool))
        return timing

    return use


@pytest.mark.parametrize("policy", ["random", "pct", "dfs", "dpor"])
def test_the_result_is_that_of_one_process(at_times, policy):
    for number, (program, size) in enumerate(PROGRAMS):
        at_times(number)
        keep_going = bool(number % 2)
        options = {"policy": policy, "keep_going": keep_going, "budget": Budget(executions=12)}
        alone, divided = explore(program, size, **options), explore(program, size, jobs=2, **options)
        assert str(divided) == str(alone)
        assert divided.outcomes == alone.outcomes
        assert (divided.end, divided.complete, divided.drawn) == (alone.end, alone.complete, alone.drawn)
        for one, other in ((divided.first_failure, alone.first_failure), (divided.first_pass, alone.first_pass)):
            assert (one and one.trace.digest()) == (other and other.trace.digest())


def test_what_later_executions_found_is_kept_when_the_time_is_up(at_times, monkeypatch):
    timing = at_times(0)

    def not_the_first(futures, return_when):
        if timing.tasks == 5:
            raise KeyboardInterrupt
        timing.chance.randrange = lambda number: 1
        return DrawnTiming.wait(timing, futures, return_when)

    monkeypatch.setattr(parts, "wait", not_the_first)
    monkeypatch.setattr(parts.ExecutionsOfWorkers, "_most", 8)
    exploration = explore(overtaken, 2, policy="random", jobs=3, keep_going=True)
    assert exploration.interrupted
    assert exploration.executions == 16, "those of the second and third part"
    assert exploration.first_failure is not None


@contextmanager
def too_slow(run):
    time.sleep(0.1)
    yield run


@pytest.mark.parametrize("policy", ["random", "pct", "dfs", "dpor"])
def test_a_part_in_which_nothing_ran_covers_nothing(at_times, policy):
    at_times(0)
    workers = Workers(2, within=too_slow)
    exploration = explore(add_up, 2, policy=policy, jobs=workers, budget=Budget(seconds=0.05))
    assert exploration.extent == "Not all interleavings covered: the budget ran out after 0 executions"
    assert (exploration.verdict, exploration.complete) == (Verdict.UNKNOWN, False)


def test_an_interrupted_repetition_of_what_was_found_keeps_what_was_found(at_times):
    repetitions = []

    @contextmanager
    def interrupted(run):
        def run_or_end(policy, budget):
            if isinstance(policy, GuidedPolicy):
                repetitions.append(policy)
                raise KeyboardInterrupt
            return run(policy, budget)

        yield run_or_end

    at_times(0)
    workers = Workers(2, within=interrupted)
    exploration = explore(overtaken, 2, policy="random", jobs=workers, keep_going=True, budget=Budget(executions=20))
    assert exploration.interrupted
    assert exploration.executions == exploration.outcomes.total() == 20
    assert len(exploration.outcomes) == 2, "some pass and some fail"
    assert exploration.verdict is Verdict.FAIL
    assert exploration.first_failure is exploration.first_pass is None
    assert len(repetitions) == 1


def test_one_reference_is_not_for_several_machines():
    workers = Workers(2, WorkerBackend.DASK, "tcp://nowhere:1")
    with pytest.raises(
        UsageError, match=r"^check is 'reference' on a cluster, whose machines .*: leave out one of both$"
    ):
        explore(add_up, 2, jobs=workers, check="reference")


def test_a_task_whose_worker_dies_is_run_again_and_ends_it_the_third_time(at_times, monkeypatch):
    dying = [1]

    def wait(futures, return_when):
        if timing.tasks not in dying:
            return DrawnTiming.wait(timing, futures, return_when)
        future, _ = timing.waiting.pop()
        future.set_exception(TerminatedWorkerError("... The exit codes of the workers are {SIGKILL(-9)} ..."))
        return {future}, set()

    timing = at_times(0, width=1)
    monkeypatch.setattr(parts, "wait", wait)
    exploration = explore(senders_to_one, 3, jobs=2, keep_going=True)
    assert exploration.outcomes == explore(senders_to_one, 3, keep_going=True).outcomes
    assert "  note    a worker was lost (ended by SIGKILL(-9)); what it ran was run again" in str(exploration)
    timing, dying = at_times(0, width=1), range(4)
    monkeypatch.setattr(parts, "wait", wait)
    exploration = explore(senders_to_one, 3, jobs=2)
    assert exploration.verdict is Verdict.UNKNOWN
    assert exploration.extent == (
        "Not all interleavings covered: the workers were lost (ended by SIGKILL(-9)) after 0 executions"
    )


def test_a_cluster_that_goes_away_ends_it_with_what_was_found(at_times, monkeypatch):
    def wait(futures, return_when):
        if timing.tasks < 4:
            return DrawnTiming.wait(timing, futures, return_when)
        future, _ = timing.waiting.pop()
        future.cancel()
        return {future}, set()

    timing = at_times(0, width=1)
    monkeypatch.setattr(parts, "wait", wait)
    monkeypatch.setattr(parts.ExecutionsOfWorkers, "_most", 3)
    exploration = explore(write_and_read, 3, policy="random", jobs=2)
    assert exploration.extent == (
        "Not all interleavings covered: the workers were lost (the cluster does not answer any more) after 9 executions"
    )


def test_a_failure_that_only_a_worker_sees_is_nondeterminism(at_times, monkeypatch):
    def fails_elsewhere(rank):
        assert os.environ["PLACE"] == "here"

    def wait(futures, return_when):
        monkeypatch.setenv("PLACE", "elsewhere")
        ended = DrawnTiming.wait(timing, futures, return_when)
        monkeypatch.setenv("PLACE", "here")
        return ended

    timing = at_times(0)
    monkeypatch.setattr(parts, "wait", wait)
    (finding,) = explore(fails_elsewhere, 2, policy="random", jobs=2).first_failure.findings
    assert finding.code == "nondeterminism"
    assert finding.summary == "two runs of one schedule differ: fail  rank_error ranks 0, 1, and then pass"


def test_what_cannot_be_sent_is_one_line():
    lock = threading.Lock()

    def program(rank):
        lock.acquire()

    with pytest.raises(
        UsageError, match=r"program on 2 ranks cannot be sent to other processes \(cannot pickle .*\): "
    ):
        explore(program, 2, jobs=2)
    with pytest.raises(UsageError, match=r"with a policy of your own, which runs in one process: leave it out$"):
        explore(add_up, 2, jobs=2, policy=Strategist())
    for jobs in (0, -1, 1.5, "2"):
        with pytest.raises(UsageError, match=f"^jobs is {jobs!r}, expected 1 or more: say how many processes to use$"):
            explore(add_up, 2, jobs=jobs)


class Strategist:
    """A strategy of the user's own."""

    def next_policy(self):
        return None


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.tier("ci")
def test_one_two_and_three_processes():
    rows = [
        ("uneven-linear", {}),
        ("both-send-first", {}),
        ("deferred-receive", {"policy": "random"}),
        ("allreduce-dtype-differs", {"policy": "dfs", "preemptions": 0}),
        ("async-result-never-waited-for", {"policy": "random"}),
        ("exception-on-one-rank", {"policy": "pct"}),
        ("exception-on-one-rank", {"keep_going": True}),
        ("uneven-linear", {"policy": "random", "engine": "ddp"}),
        ("group-order-inversion", {"check_determinism": True}),
    ]
    for name, options in rows:
        told = [explore_scenario(name, budget=Budget(executions=10), jobs=jobs, **options) for jobs in (1, 2, 3)]
        assert len({str(each) for each in told}) == 1, (name, options)


@pytest.mark.tier("ci")
def test_a_file_of_the_user_and_a_program_and_a_worker_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(RACY)
    (tmp_path / "whole.py").write_text(f"{RACY}\n\ndist.init_process_group()\nracy(dist.get_rank())\n")
    explored = partial(explore_scenario, keep_going=True, budget=Budget(seconds=600))
    for name in ("own.py:racy", "whole.py"):
        told = [explored(name, world_size=3, jobs=jobs) for jobs in (1, 2)]
        assert str(told[0]) == str(told[1])
        assert told[0].outcomes.total() == 2
    alone = explored("own.py:racy", world_size=4, jobs=1)
    killed = explored("own.py:racy", world_size=4, jobs=2, on_progress=kill_a_worker)
    assert killed.outcomes == alone.outcomes
    assert str(killed.first_failure) == str(alone.first_failure)


def kill_a_worker(progress):
    if progress.executions == 1:
        here = psutil.Process()  # whose other children are servers, and a tracker that an earlier test has started
        next(each for each in here.children() if each.cmdline() == here.cmdline()).kill()
