"""Suites that are written for `torchrun -m pytest`: `ddpsim test --ranks N` gives each test a verdict of its own."""

import os
import re
import sys

import pytest

from ddpsim.scenarios.cli.test import pytest_arguments_of_unittest
from ddpsim.scenarios.test_suites import per_rank
from ddpsim.simulator.errors import UsageError

HEAD = """
import os, unittest
import pytest, torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])

@pytest.fixture(scope="session")
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

def total():
    value = torch.tensor([RANK + 1.0])
    dist.all_reduce(value)
    return value.item()
"""

SUITE = f"""{HEAD}
@pytest.mark.parametrize("expected", [3, 4])
def test_sum(group, expected):
    print("this is", RANK)
    assert total() == expected

def test_hangs(group):
    if RANK == 0:
        dist.barrier()

def test_mismatch(group):
    dist.all_reduce(torch.ones(2 + RANK))

def test_raises(group):
    if RANK == 1:
        raise ValueError("one")
    dist.barrier()

@pytest.fixture
def broken(group):
    if RANK == 1:
        raise ValueError("of the fixture")

def test_fixture(broken):
    pass

def test_exits(group):
    if RANK == 1:
        os._exit(0)

def test_skips_on_all():
    pytest.skip("not today")

def test_skips_on_one(group):
    if RANK == 1:
        pytest.skip("not here")

@pytest.mark.xfail(strict=True)
def test_may_hang(group):
    if RANK == 0:
        dist.barrier()

@pytest.mark.xfail(raises=ValueError)
def test_may_raise(group):
    dist.barrier()
    raise ValueError

@pytest.mark.xfail(strict=True)
def test_must_fail(group):
    dist.barrier()

class TestOfUnittest(unittest.TestCase):
    def test_sub(self):
        dist.init_process_group("gloo")
        for each in range(2):
            with self.subTest(each=each):
                self.assertEqual(total(), 3)
        dist.destroy_process_group()

def test_passes_after_all_that(group, tmp_path):
    (tmp_path / "mine").write_text(str(RANK))
    assert total() == 3
"""

OUTCOMES = {
    **{"test_sum[3]": "passed", "test_sum[4]": "failed", "test_hangs": "failed", "test_mismatch": "failed"},
    **{"test_raises": "failed", "test_fixture": "error", "test_exits": "failed", "test_skips_on_all": "skipped"},
    **{"test_skips_on_one": "passed", "test_may_hang": "xfailed", "test_may_raise": "xfailed"},
    **{"test_must_fail": "failed", "TestOfUnittest::test_sub": "passed", "test_passes_after_all_that": "passed"},
}


@pytest.fixture
def ddpsim_test(pytester):
    """Run `ddpsim test` in a folder with the files given by name."""

    def run_command(*arguments, **files):
        for name, text in files.items():
            pytester.makepyfile(**{name: text})
        of_pytest = [] if "unittest" in arguments else ["-p", "no:cacheprovider", "--color=no"]
        return pytester.run(sys.executable, "-m", "ddpsim", "test", *arguments, *of_pytest)

    return run_command


def outcomes(result):
    """The outcome of each test by its name, as `-v` prints them."""
    found = (re.match(r"test_\w+\.py::(\S+) (\w+)", line) for line in result.outlines)
    names = {"XFAIL": "xfailed"}
    return {each[1]: names.get(each[2], each[2].lower()) for each in found if each}


@pytest.mark.tier("ci")
def test_each_test_has_its_own_verdict(ddpsim_test, pytester):
    result = ddpsim_test("--ranks", "2", "-v", "--junitxml=found.xml", test_suite=SUITE)

    assert outcomes(result) == OUTCOMES
    assert result.ret == 1
    text = str(result.stdout)
    for line in (
        "deadlock.missing_rank",
        "mismatch.shape",
        "  rank 1 raised ValueError: one at test_suite.py",
        "FAILED test_suite.py::test_raises - rank 1: ValueError: one",
        "ERROR test_suite.py::test_fixture - rank 1: ValueError: of the fixture",
        "rank 1 ended its process in the test",
        "[XPASS(strict)]",
    ):
        assert line in text
    assert re.search(r"Captured stdout call, rank 0 -+\nthis is 0\n-+ Captured stdout call, rank 1 -+\nthis is 1", text)
    xml = (pytester.path / "found.xml").read_text()
    assert 'errors="1" failures="6" skipped="3"' in xml


REPAIRED = f"""{HEAD}
def test_sum(group):
    assert total() == 3

def test_all_wait(group):
    dist.barrier()
"""


@pytest.mark.tier("nightly")
def test_the_repaired_twin_is_clean_and_a_token_replays(ddpsim_test):
    broken = REPAIRED.replace("    dist.barrier()", "    RANK or dist.barrier()")
    assert ddpsim_test("--ranks", "2", test_suite=REPAIRED).ret == 0

    result = ddpsim_test("--ranks", "2", "-k", "wait or sum", "--maxfail=1", test_suite=broken)
    assert result.ret == 1
    token = re.search(r"--ddpsim-replay (\S+) --ddpsim-ranks 2", str(result.stdout))[1]
    again = ddpsim_test("--ranks", "2", "--ddpsim-replay", token)
    again.assert_outcomes(failed=1, deselected=1)
    assert "deadlock.missing_rank" in str(again.stdout)


@pytest.mark.tier("nightly")
def test_ranks_that_collect_different_tests_are_reported(ddpsim_test):
    suite = f"{HEAD}\n@pytest.mark.parametrize('n', range(1 + RANK))\ndef test_it(n): pass"
    result = ddpsim_test("--ranks", "2", test_suite=suite)

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: ranks 0 and 1 collect different tests (test_suite.py::test_it[[]1] only on rank 1), expected the *"]
    )


def test_tests_that_one_rank_lacks_are_named():
    compare_collections = vars(per_rank)["_compare_collections"]
    compare_collections({"a", "b"}, {"b", "a"}, 1)
    with pytest.raises(pytest.UsageError, match=r"\(b only on rank 0; c, d, e \.\.\. only on rank 2\)"):
        compare_collections({"a", "b"}, set("acdef"), 2)


@pytest.mark.tier("nightly")
def test_a_module_that_only_one_rank_cannot_import_is_reported(ddpsim_test):
    result = ddpsim_test(
        "--ranks", "2", test_suite=f"{HEAD}\nif RANK == 1: raise ValueError('no such rank')\ndef test_it(): pass"
    )

    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: test_suite.py cannot be collected (*no such rank*) on rank 1, expected *"])


BREAKS = """
from ddpsim.scenarios.test_suites import per_rank

def simulate(program, *arguments, simulate=per_rank.simulate, **options):
    if program.node.endswith("[3]"):
        raise KeyError("planted")
    return simulate(program, *arguments, **options)

per_rank.simulate = simulate
"""


@pytest.mark.tier("ci")
def test_an_error_of_ddpsim_fails_its_test_and_a_refused_option_leaves_no_folder(ddpsim_test, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    suite = f"{HEAD}\n@pytest.mark.parametrize('expected', [3, 4])\ndef test_sum(expected):\n    pass\n"
    result = ddpsim_test("--ranks", "2", test_suite=suite, conftest=BREAKS)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("KeyError: 'planted'")
    assert ddpsim_test("--ranks", "2", "-n", "2").ret == pytest.ExitCode.USAGE_ERROR
    assert list(tmp_path.glob("ddpsim-*")) == []


@pytest.mark.tier("ci")
def test_a_group_made_while_tests_are_collected_is_refused(ddpsim_test):
    conftest = "import torch.distributed as dist\ndef pytest_sessionstart(): dist.init_process_group('gloo')"
    result = ddpsim_test("--ranks", "2", conftest=conftest, test_suite="def test_it(): pass")

    assert "a process group is made while tests are collected, expected in a test or a fixture" in str(result.stderr)
    assert result.ret != 0


@pytest.mark.tier("nightly")
def test_workers_of_xdist_that_each_run_all_tests_are_ranks(ddpsim_test):
    suite = """
    import os, pytest, torch, torch.distributed as dist
    def test_it(worker_id):
        assert "RANK" not in os.environ
        rank = int(worker_id.removeprefix("gw"))
        value = torch.ones(1)
        dist.init_process_group("gloo", "tcp://localhost:29600", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        dist.all_reduce(value)
        assert value.item() == 2
        dist.destroy_process_group()
    """
    ddpsim_test("--ranks", "2", "-p", "xdist", "--dist", "each", test_suite=suite).assert_outcomes(passed=1)
    assert "leave -n out" in str(ddpsim_test("--ranks", "2", "-p", "xdist", "-n", "2").stderr)


REPEATS = """
import threading

def pytest_addoption(parser):
    parser.addoption("--reruns", type=int)

def pytest_configure(config):
    config.addinivalue_line("markers", "flaky: repeat the test")
    if hasattr(config, "workerinput"):
        config.workerinput["sock_port"]
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("each", [(), ("-p", "xdist", "--dist", "each")])
def test_ranks_repeat_no_tests(ddpsim_test, monkeypatch, each):
    """pytest-rerunfailures starts a thread in each session, or asks in a worker for the port of its main process."""
    monkeypatch.setenv("PYTHONPATH", ".")
    suite = "import pytest\n@pytest.mark.flaky\ndef test_it(): pass"
    options = ("--ranks", "2", "-p", "rerunfailures", "--reruns", "2", "--strict-markers", *each)
    ddpsim_test(*options, rerunfailures=REPEATS, test_suite=suite).assert_outcomes(passed=1)


@pytest.mark.tier("nightly")
def test_virtual_gpus_are_there_while_tests_are_collected(ddpsim_test):
    suite = f"""{HEAD}
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs GPUs")
def test_it():
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl")
    value = torch.ones(1, device="cuda")
    dist.all_reduce(value)
    assert value.item() == 2 and value.device.index == RANK
    dist.destroy_process_group()
"""
    ddpsim_test("--ranks", "2", "--gpus", "2", test_suite=suite).assert_outcomes(passed=1)
    ddpsim_test("--ranks", "2").assert_outcomes(skipped=1)


OF_TORCH = """
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.common_distributed import MultiThreadedTestCase
import torch, torch.distributed as dist

class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_sum(self):
        value = torch.ones(1)
        dist.all_reduce(value)
        self.assertEqual(value.item(), 2)

    def test_hangs(self):
        if dist.get_rank() == 0:
            dist.barrier()

def test_function():
    raise AssertionError("unittest does not run functions")

if __name__ == "__main__":
    run_tests()
"""


@pytest.mark.tier("nightly")
def test_unittest_and_files_of_torch(ddpsim_test):
    result = ddpsim_test("harness.py", "-k", "Threads", harness=OF_TORCH)
    result.assert_outcomes(passed=1, failed=1, deselected=1)
    assert result.ret == 1
    ddpsim_test("-m", "unittest", "harness.Threads.test_sum").assert_outcomes(passed=1)
    ddpsim_test("-m", "unittest", "discover", "-p", "harn*.py").assert_outcomes(passed=1, failed=1)


def test_arguments_of_unittest(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").touch()
    monkeypatch.chdir(tmp_path)
    own = ["-o", "python_functions=", "-o", "python_classes="]
    for words, expected in (
        (["tests.test_a"], [*own, f"tests{os.sep}test_a.py"]),
        (["-v", "-f", "tests.test_a.It.test_it"], ["-v", "-x", *own, "tests/test_a.py::It::test_it"]),
        (["tests/test_a.py", "-k", "one", "-k", "two"], ["-k", "one or two", *own, "tests/test_a.py"]),
        (["tests"], [*own, "tests"]),
        (["-k", "one", "-b"], ["-k", "one", *own, "-o", "python_files=test*.py", "."]),
        ([], [*own, "-o", "python_files=test*.py", "."]),
        (["discover", "-s", "tests", "-p", "*_it.py"], [*own, "-o", "python_files=*_it.py", "tests"]),
        (["discover", "tests", "t*.py"], [*own, "-o", "python_files=t*.py", "tests"]),
    ):
        assert pytest_arguments_of_unittest(words) == expected, words
    with pytest.raises(UsageError, match=r"there is no file for 'nowhere\.It', expected a module, class or method"):
        pytest_arguments_of_unittest(["nowhere.It"])
