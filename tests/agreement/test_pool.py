"""The pool of real ranks: what became of each, what is a hang, and that nothing is left behind."""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from ddpsim import UsageError
from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.pool import GlooPool, Job, PoolError, messages, server, server_link
from ddpsim.scenarios.agreement.pool.stillness import Stillness, all_asleep
from tests.agreement import pool_programs as programs


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patched:
        # what people have set for trainings of theirs
        patched.setenv("OMP_NUM_THREADS", "4")
        patched.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
        with GlooPool(teams=2) as pool:
            yield pool


def outcomes(pool, function, world_size=2, *args, still_seconds=0.3):
    ((_, found),) = pool.run([Job(function, world_size, args, still_seconds=still_seconds)])
    return found


def adding(world_size, number):
    return Job(programs.add, world_size, (number,), still_seconds=10.0)


def sleeping():
    return Job(programs.sleeps, 3, still_seconds=60.0)


def endings(pool, *job, **options):
    return [outcome.ending for outcome in outcomes(pool, *job, **options)]


def session(server_process):
    """The processes of a server and its ranks."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == server_process:
            found.append(int(status.parent.name))
    return sorted(found)


def server_of(pool):
    return pool._server._process.pid


class TestOutcomes:
    @pytest.mark.parametrize("world_size", [2, 3, 4])
    def test_values(self, pool, world_size):
        found = outcomes(pool, programs.add, world_size, 5)
        assert [outcome.value for outcome in found] == programs.added(world_size, 5)
        assert {outcome.ending for outcome in found} == {Ending.RETURNED}

    def test_one_that_returns_early_leaves_the_others_hanging(self, pool):
        # and does not make them fail, which it would if its connections went with it
        found = outcomes(pool, programs.returns_early, 3)
        hung = RankOutcome(Ending.HUNG, error="nothing has moved for 0.3 s")
        assert found == (hung, RankOutcome(Ending.RETURNED, "early"), hung)

    def test_an_error_and_its_text(self, pool):
        assert outcomes(pool, programs.raises) == (
            RankOutcome(Ending.RETURNED, 0),
            RankOutcome(Ending.RAISED, error="KeyError: 'no such rank'"),
        )

    def test_an_error_leaves_what_was_issued(self, pool):
        # gloo would spin over the message forever, and the job move
        hung, raised = outcomes(pool, programs.raises_with_a_message_on_its_way)
        assert hung == RankOutcome(Ending.HUNG, error="nothing has moved for 0.3 s")
        assert raised.ending is Ending.RAISED

    def test_leaving_by_exit_is_an_error(self, pool):
        assert outcomes(pool, programs.leaves_by_exit, 1) == (RankOutcome(Ending.RAISED, error="SystemExit: 4"),)

    @pytest.mark.parametrize(("how", "text"), [("exit", "exit status 3"), ("kill", "SIGKILL")])
    def test_a_process_that_dies(self, pool, how, text):
        assert outcomes(pool, programs.dies, 2, how) == (
            RankOutcome(Ending.RETURNED),
            RankOutcome(Ending.DIED, error=text),
        )

    def test_gloo_ends_the_process_and_says_nothing(self, pool, capfd):
        found = outcomes(pool, programs.receives_too_much)
        assert found[1] == RankOutcome(Ending.DIED, error="SIGABRT")
        assert capfd.readouterr() == ("", "")

    def test_what_cannot_be_sent(self, pool):
        (found,) = outcomes(pool, programs.returns_what_cannot_be_pickled, 1)
        assert found.ending is Ending.RAISED
        assert found.error.startswith("what it returned cannot be sent: ")

    def test_nothing_is_printed(self, pool, capfd):
        assert endings(pool, programs.prints) == [Ending.RETURNED] * 2
        assert capfd.readouterr() == ("", "")

    def test_in_the_order_of_the_jobs(self, pool):
        slow = Job(programs.computes, 2, (0.3,), still_seconds=10.0)
        jobs = [slow, *(adding(2, number) for number in range(4))]
        assert [job for job, _ in pool.run(jobs)] == jobs

    def test_jobs_are_taken_as_there_is_room(self, pool):
        taken = []

        def jobs():
            for number in range(6):
                taken.append(number)
                yield adding(2, number)

        for count, _ in enumerate(pool.run(jobs()), start=1):
            # two teams, and what has ended out of turn
            assert len(taken) <= count + 4

    def test_no_job(self, pool):
        assert list(pool.run([])) == []

    def test_a_bad_job_and_twenty_good_ones(self, pool):
        bad = [programs.receives_too_much, programs.returns_early, programs.raises]
        jobs = [Job(each, 2, still_seconds=0.3) for each in bad]
        jobs += [adding(2 + number % 3, number) for number in range(20)]
        found = dict(pool.run(jobs))
        for job in jobs[len(bad) :]:
            assert [outcome.value for outcome in found[job]] == programs.added(job.world_size, *job.args)


class TestWhatIsAHang:
    def test_one_that_waits_for_nothing_else(self, pool):
        assert endings(pool, programs.sleeps, 1) == [Ending.HUNG]

    def test_not_a_rank_that_computes(self, pool):
        assert endings(pool, programs.computes, 3, 0.6, still_seconds=0.2) == [Ending.RETURNED] * 3

    def test_not_a_rank_that_gets_no_processor(self, pool):
        assert endings(pool, programs.is_stopped, 3, 0.6, still_seconds=0.2) == [Ending.RETURNED] * 3

    def test_gloo_itself_would_give_up(self):
        # what is called a hang where nothing moves, gloo ends by its time-out if it is left alone
        with GlooPool(timeout_seconds=1.0) as pool:
            found = outcomes(pool, programs.returns_early, 2, still_seconds=60.0)
        assert found[0].ending is Ending.HUNG
        assert "Timed out waiting 1000ms" in found[0].error
        assert found[1].ending is Ending.RETURNED

    def test_gloo_would_give_up_in_other_groups_too(self):
        with GlooPool(timeout_seconds=1.0) as pool:
            found = outcomes(pool, programs.returns_early_of_a_group, 2, still_seconds=60.0)
        assert "Timed out waiting 1000ms" in found[0].error

    def test_stillness_has_to_last(self):
        stillness = Stillness(1.0)
        assert stillness.interval_seconds == 0.2
        # six looks have five intervals between them
        assert [stillness.look(asleep=True) for _ in range(7)] == [False] * 5 + [True] * 2

    def test_any_movement_starts_it_again(self):
        stillness = Stillness(1.0)
        looks = [True] * 5 + [False] + [True] * 6
        assert [stillness.look(asleep=asleep) for asleep in looks] == [False] * 11 + [True]

    def test_who_is_asleep(self):
        with subprocess.Popen(["sleep", "60"]) as sleeping:
            while not all_asleep([sleeping.pid]):
                pass
            assert not all_asleep([sleeping.pid, os.getpid()])
            sleeping.kill()
            sleeping.wait()
            assert not all_asleep([sleeping.pid])  # nobody is there


class TestEnvironment:
    def test_ranks_have_one_thread_and_no_debug_level(self, pool):
        assert [outcome.value for outcome in outcomes(pool, programs.thread_count)] == [(1, None)] * 2

    def test_the_server_has_one_thread(self, pool):
        # a fork has only the thread that forks; what others hold, it would wait for
        assert len(list(Path(f"/proc/{server_of(pool)}/task").iterdir())) == 1


class TestNothingIsLeft:
    def test_between_jobs_only_the_server(self, pool):
        endings(pool, programs.returns_early, 3)
        assert session(server_of(pool)) == [server_of(pool)]

    def test_where_the_rest_is_not_asked_for(self, pool):
        before = open_descriptors()
        running = pool.run([adding(2, 1), *[sleeping()] * 3])
        next(running)
        assert len(session(server_of(pool))) > 1
        running.close()
        assert session(server_of(pool)) == [server_of(pool)]
        assert open_descriptors() == before

    def test_where_the_jobs_raise(self, pool):
        before = open_descriptors()

        def jobs():
            yield sleeping()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            list(pool.run(jobs()))
        assert session(server_of(pool)) == [server_of(pool)]
        assert open_descriptors() == before

    @pytest.mark.parametrize("where", ["between", "while asking"])
    def test_after_an_interrupt(self, where, monkeypatch):
        before = open_descriptors()
        processes = []

        def jobs(pool):
            processes.append(server_of(pool))
            yield sleeping()
            if where == "between":
                signal.raise_signal(signal.SIGINT)
            # what is interrupted has been asked, and the answer is still to come
            monkeypatch.setattr(messages, "receive", interrupted)
            yield adding(2, 1)

        def interrupted(channel):
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)

        def run():
            with GlooPool(teams=2) as pool:
                list(pool.run(jobs(pool)))

        with pytest.raises(KeyboardInterrupt):
            run()
        assert session(processes[0]) == []
        assert open_descriptors() == before

    def test_after_its_process_is_killed(self):
        script = (
            "from ddpsim.scenarios.agreement.pool import GlooPool, Job\n"
            "from tests.agreement import pool_programs as programs\n"
            "def jobs():\n"
            "    yield Job(programs.sleeps, 3, still_seconds=60.0)\n"
            "    print(pool._server._process.pid, flush=True)\n"
            "    yield Job(programs.sleeps, 3, still_seconds=60.0)\n"
            "with GlooPool(teams=2) as pool:\n"
            "    list(pool.run(jobs()))\n"
        )
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as owner:
            process = int(owner.stdout.readline())
            assert len(session(process)) > 1
            owner.kill()
        assert left_of(process) == []

    def test_after_its_server_is_killed(self):
        # as by the system when memory is short; its ranks see nothing of it
        before = open_descriptors()
        processes = []

        def run():
            with GlooPool() as pool:
                processes.append(server_of(pool))
                outcomes(pool, programs.ends_the_server, 3)

        with pytest.raises(PoolError, match=r"^the process that starts the ranks is gone, "):
            run()
        assert left_of(processes[0]) == []
        assert open_descriptors() == before


def left_of(server_process):
    """What goes on living of a server that was killed. Nobody is told when its ranks have ended."""
    for _ in range(10**4):
        if not (left := [each for each in session(server_process) if not is_zombie(each)]):
            break
    return left


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def is_zombie(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class TestBadInput:
    def test_no_gloo(self, monkeypatch):
        monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
        with pytest.raises(PoolError, match=r"^found no gloo in this torch, expected it: install "), GlooPool():
            pass

    @pytest.mark.parametrize(
        ("options", "text"),
        [({"teams": 0}, "teams is 0"), ({"timeout_seconds": 0.0}, "timeout_seconds is 0, expected more than 0")],
    )
    def test_numbers(self, options, text):
        with pytest.raises(UsageError, match=f"^{text}"):
            GlooPool(**options)

    def test_a_server_that_dies_while_starting(self, monkeypatch):
        before = open_descriptors()
        monkeypatch.setattr(server_link, "_SERVE", "raise SystemExit('no torch here')")
        with (
            pytest.raises(PoolError, match=r"ended while starting, with exit status 1 \(no torch here\), "),
            GlooPool(),
        ):
            pass
        assert open_descriptors() == before

    def test_a_rank_that_dies_while_starting(self, pool):
        # it dies when it looks for what to run
        with pytest.raises(PoolError, match=r"^rank [01] of 2 has not started: it ended with exit status 7; "):
            endings(pool, programs.raises, 2, DiesWhenLoaded())
        assert session(server_of(pool)) == [server_of(pool)]

    def test_a_function_that_nobody_finds(self, pool):
        function = type("Function", (), {"__module__": "no_such_module", "__reduce__": lambda self: (int, ())})()
        with pytest.raises(PoolError, match=r"^found no way to start 2 ranks \(ModuleNotFoundError: "):
            endings(pool, function)

    def test_a_function_that_cannot_be_sent(self, pool):
        with pytest.raises(UsageError, match=r"^job is <function .*expected what can be pickled"):
            endings(pool, lambda rank: rank)

    def test_a_server_that_is_gone(self):
        with GlooPool() as pool:
            os.kill(server_of(pool), signal.SIGKILL)
            with pytest.raises(PoolError, match=r"^the process that starts the ranks is gone, "):
                endings(pool, programs.add, 2, 1)

    def test_more_ranks_than_there_may_be_open_files(self, pool):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = open_descriptors()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 40, limits[1]))
        try:
            with pytest.raises(
                PoolError, match=r"^found no way to talk to 60 ranks \(.*\), expected a socket for each"
            ):
                endings(pool, programs.add, 60, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert open_descriptors() == before
        assert endings(pool, programs.add, 2, 1) == [Ending.RETURNED] * 2

    def test_more_ranks_than_can_be_told_of(self, pool):
        before = open_descriptors()
        text = r"^world size is 251, expected at most 250: take a smaller one"
        with pytest.raises(UsageError, match=text):
            endings(pool, programs.add, 251, 1)
        assert open_descriptors() == before

    def test_more_ranks_than_there_may_be_processes(self, pool, monkeypatch):
        def fork():
            raise BlockingIOError("Resource temporarily unavailable")

        ours, theirs = socket.socketpair()
        with ours, theirs:
            monkeypatch.setattr(os, "fork", fork)
            request = server.Start("builtins", 1.0)
            answer = server._answer(request, [os.dup(theirs.fileno())], ours, set())
        assert answer == server.Failed("BlockingIOError: Resource temporarily unavailable")
        monkeypatch.setattr(pool._server, "_ask", lambda *_: answer)
        with pytest.raises(PoolError, match=r"^found no way to start 2 ranks \(BlockingIOError: .*: take a smaller "):
            endings(pool, programs.add, 2, 1)


class DiesWhenLoaded:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (7,)
