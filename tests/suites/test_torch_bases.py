"""Tests of torch's own base classes on simulated ranks: each has its own verdict, and the session goes on."""

import json

import pytest

from tests.pytest_plugin.reading import report_of

pytestmark = pytest.mark.tier("ci")

HEAD = """
import os, unittest
from torch.testing._internal import common_distributed as common

class Processes(common.MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def group(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    def total(self):
        value = torch.tensor([self.rank + 1.0])
        dist.all_reduce(value)
        return value.item()
"""

PROCESSES = f"""{HEAD}
class TestIt(Processes):
    def test_passes(self):
        assert not dist.is_initialized() and "RANK" not in os.environ
        self.group()
        self.assertEqual(self.total(), 3)

    def test_fails(self):
        self.group()
        self.assertEqual(self.total(), 4 if self.rank else 3)

    def test_hangs(self):
        self.group()
        if self.rank == 0:
            dist.barrier()

    def test_mismatch(self):
        self.group()
        dist.all_reduce(torch.ones(2 + self.rank))

    @common.skip_if_lt_x_gpu(8)
    def test_is_skipped(self):
        raise AssertionError

    def test_skips_itself(self):
        raise unittest.SkipTest("not today")

    @unittest.expectedFailure
    def test_is_expected_to_fail(self):
        self.group()
        self.assertEqual(self.total(), 4)
"""


def test_each_test_of_torchs_processes_has_its_own_verdict(run):
    result = run(PROCESSES, "--ddpsim")
    result.assert_outcomes(passed=1, failed=3, skipped=2, xfailed=1)
    assert any("rank 1 raised AssertionError" in line for line in report_of(result, "TestIt.test_fails"))
    assert report_of(result, "TestIt.test_hangs")[0].startswith("DEADLOCK  deadlock.missing_rank")
    assert report_of(result, "TestIt.test_mismatch")[0].startswith("MISMATCH  mismatch.shape")


SHARES = f"""{HEAD}
seen = []

class TestIt(Processes):
    def test_a_process_has_its_module(self):
        self.group()
        seen.append(self.rank)
        dist.barrier()
        self.assertEqual(seen, [self.rank])

    def test_b_after_it(self):
        self.group()
        self.assertEqual(self.total(), 3)
"""


def test_ranks_that_change_a_module_run_again_as_processes(run):
    result = run(SHARES, "--ddpsim")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*2 tests on simulated ranks, 2 with ranks as processes", "*ranks change test_it.seen"]
    )
    run(SHARES, "--ddpsim", "--ddpsim-isolation", "thread").assert_outcomes(passed=1, failed=1)


THREADS = """
from torch.testing._internal import common_distributed as common
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

class TestMesh(DTensorTestBase):
    world_size = 2

    @with_comms
    def test_the_call_that_differs_is_torchs(self):
        if self.rank == 0:
            dist.all_reduce(torch.ones(1))

class TestThreads(common.MultiThreadedTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self):
        self.own = self.rank

    def test_passes(self):
        value = torch.tensor([self.own + 1])
        dist.all_reduce(value)
        self.assertEqual(value.item(), 6)

    def test_hangs(self):
        if self.rank:
            dist.barrier()

class TestDecorated(common.TestCase):
    @common.spawn_threads_and_init_comms(world_size=2)
    def test_passes(self):
        self.assertEqual(dist.get_world_size(), 2)

class TestContinuous(common.MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_passes(self):
        value = torch.tensor([self.rank])
        dist.all_reduce(value)
        self.assertEqual(value.item(), 1)

    def test_fails_on_one_rank(self):
        self.assertEqual(self.rank, 0)

    def test_a_failure_poisons_no_later_test(self):
        dist.barrier()
"""


def test_torchs_other_base_classes(run):
    result = run(THREADS, "--ddpsim", "--ddpsim-isolation", "thread")
    result.assert_outcomes(passed=4, failed=3)
    assert report_of(result, "TestMesh.test_the_call_that_differs_is_torchs")[0].startswith("MISMATCH")
    assert report_of(result, "TestThreads.test_hangs")[0].startswith("DEADLOCK  deadlock.missing_rank")


RACE = f"""{HEAD}
class TestIt(Processes):
    world_size = 3

    def first_sender(self):
        self.group()
        value = torch.tensor([self.rank])
        if self.rank:
            dist.send(value, 0)
            return 1
        first, _ = [dist.recv(value) for _ in range(2)]
        return first

    def test_depends_on_the_order(self):
        self.assertEqual(self.first_sender(), 1)

    def test_does_not(self):
        self.assertIn(self.first_sender(), (1, 2))
"""


def test_a_test_whose_outcome_depends_on_the_schedule_is_flaky(run, pytester):
    result = run(RACE, "--ddpsim", "--ddpsim-explore", "4", "--ddpsim-sarif", "found.sarif", "--ddpsim-annotations")
    result.assert_outcomes(passed=1, failed=1)
    (line,) = [line for line in result.outlines if line.startswith("  flaky: ")]
    assert "TestIt::test_depends_on_the_order" in line
    assert {"failed,", "passed;"} <= set(line.replace("passed,", "passed;").replace("failed;", "failed,").split())
    token = line.rpartition("  ")[2]
    assert any("where it fails" in each for each in report_of(result, "TestIt.test_depends_on_the_order"))
    assert any(each.startswith("::error file=test_it.py,line=") for each in result.outlines)
    (found,) = json.loads((pytester.path / "found.sarif").read_text())["runs"][0]["results"]
    assert (found["ruleId"], found["level"]) == ("rank_error", "error")
    again = run("", "--ddpsim", "--ddpsim-replay", token)
    again.assert_outcomes(failed=1, deselected=1)


LEADER = f"""{HEAD}
from ddpsim.scenarios.test_suites import schedules

class TestIt(Processes):
    def test_leader(self):
        self.group()
        store = dist.distributed_c10d._get_default_store()
        if store.add("ticket", 1) == 1:
            self.assertEqual(self.rank, 0)
        dist.barrier()

    def test_passes(self):
        self.group()
"""


def test_a_schedule_that_dpor_finds_redundant_does_not_end_the_session(run):
    result = run(LEADER, "--ddpsim", "--ddpsim-explore", "20")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["  flaky: test_it.py::TestIt::test_leader *where it fails*"])


def test_an_error_of_the_exploration_does_not_end_the_session(run):
    broken = LEADER + "\nschedules.find_closest_pass = None"
    result = run(broken, "--ddpsim", "--ddpsim-explore", "20")
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines(["*PytestWarning: *(in the exploration of the test)"])


POLLS = f"""{HEAD}
import time

class TestIt(Processes):
    def test_counter_is_reset(self):
        self.group()
        store = dist.PrefixStore("user", dist.distributed_c10d._get_default_store())
        for _ in range(2):
            store.add("count", 1)
            while store.add("count", 0) < self.world_size:
                time.sleep(0.001)
            if self.rank == 0:
                store.add("count", -self.world_size)
        dist.barrier()
"""


def test_polls_without_end_are_a_failure_in_each_attempt(run):
    result = run(POLLS, "--ddpsim", "--ddpsim-explore", "8", "-o", "ddpsim_seconds=600")  # of a machine under load
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ddpsim: * 0 with ranks as processes", "  flaky: test_it.py::TestIt::*"])
    assert report_of(result, "TestIt.test_counter_is_reset")[:2] == [
        "UNKNOWN  budget",
        "  rank 0 slept 10001 times in a row while nothing else happened",
    ]


OUTSIDE = f"""{HEAD}
from itertools import count
from torch import multiprocessing

attempts = count()

def joins(rank, file):
    store = dist.FileStore(file, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

def raises(rank, file, number):
    joins(rank, file)
    assert number % 3

def test_counts(tmp_path):
    multiprocessing.spawn(joins, args=(str(tmp_path / "store"),), nprocs=2)
    assert next(attempts) % 3

def test_ranks_are_told(tmp_path):
    multiprocessing.spawn(raises, args=(str(tmp_path / "store"), next(attempts)), nprocs=2)
"""


def test_a_test_that_something_else_decides_is_flaky_and_has_no_token(run, pytester):
    options = ("--ddpsim-explore", "4", "--ddpsim-isolation", "thread", "--ddpsim-report", "found")
    result = run(OUTSIDE, "--ddpsim", *options)
    result.assert_outcomes(failed=2)
    lines = [line for line in result.outlines if line.startswith("  flaky: ")]
    assert [line.endswith("so that something else decides  no token") for line in lines] == [True, True]
    [text] = (each.read_text() for each in (pytester.path / "found").glob("*/report.txt"))
    assert "rank_error" in text
    assert "replay" not in text
    assert not [line for line in result.outlines if "--ddpsim-replay" in line]


HAZARD = f"""{HEAD}
class TestIt(Processes):
    def test_changes_a_tensor_in_flight(self):
        self.group()
        value = torch.ones(1)
        work = dist.all_reduce(value, async_op=True)
        value += 1
        work.wait()
"""


def test_hazards_have_an_exit_status_of_their_own(run):
    assert run(HAZARD, "--ddpsim").ret == 0
    strict = run("", "--ddpsim", "--ddpsim-strict", "--ddpsim-annotations")
    assert strict.ret == 6
    strict.stdout.fnmatch_lines(["  hazards: 1 hazard.tensor_in_flight", "::warning file=test_it.py,line=*"])


@pytest.mark.tier("nightly")
def test_the_plugin_is_found_by_its_name(run):
    result = run(HAZARD, "-p", "ddpsim.harness")
    result.stdout.fnmatch_lines(["ddpsim: 1 test on simulated ranks*"])
