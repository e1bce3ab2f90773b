"""`subtests` of pytest on ranks: each says its rank, and the test how to see it again."""

import pytest

from tests.pytest_plugin.reading import marked, replay_of, report_of

pytestmark = pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest has subtests from 9 on")

VALUES = """
@pytest.mark.ranks(3{options})
def test_values(rank, subtests):
    for i in range(3):
        with subtests.test("value", i=i):
            dist.barrier()
            assert i != 1 or rank == 0
    print("behind", rank)
"""


def values(options=""):
    return VALUES.replace("{options}", options and f", {options}")


def test_a_failing_subtest_says_its_rank_and_the_test_how_to_replay_it(run):
    result = run(values("policy='random', seed=1"))

    for rank in (1, 2):
        lines = report_of(result, f"test_values [value] (i=1, rank={rank})")
        assert f"E               assert (1 != 1 or {rank} == 0)" in lines
        result.stdout.fnmatch_lines([f"SUBFAILED[[]value[]] (i=1, rank={rank}) test_it.py::test_values - assert*"])
    first, _, second, _ = report_of(result, "test_values")
    assert first == "contains 1 failed subtest"
    assert second == "  ranks 1, 2 raised Failed: contains 1 failed subtest"
    result.stdout.fnmatch_lines(["*Captured stdout rank 2 call*", "behind 2"])
    node, token = replay_of(result, "test_values")

    again = run("", node, "--ddpsim-replay", token)

    assert replay_of(again, "test_values") == (node, token)


def test_subtests_that_pass_and_skip_change_nothing(run):
    body = "with subtests.test():\n    dist.barrier()\nwith subtests.test():\n    pytest.skip('no')\ndist.barrier()"
    result = run(marked(body, arguments="rank, subtests"), "-v")
    assert result.parseoutcomes() == {"passed": 1, "skipped": 2, "subtests": 2}


def test_a_deadlock_in_a_subtest_is_told_once(run):
    body = "with subtests.test('meets'):\n    if rank:\n        dist.barrier()"
    result = run(marked(body, "ranks(3)", name="test_hangs", arguments="rank, subtests"), "-v")
    assert result.parseoutcomes() == {"failed": 1, "skipped": 2, "subtests": 1}
    assert report_of(result, "test_hangs")[0] == "DEADLOCK  deadlock.missing_rank  at step 6"
    result.stdout.no_fnmatch_line("*RankUnwound*")


def test_an_exploration_ends_at_the_first_execution_with_a_failed_subtest(run):
    body = """\
got = torch.zeros(1)
if rank:
    dist.send(torch.ones(1) * rank, 0)
for _ in range(0 if rank else 2):
    dist.recv(got)
if not rank:
    with subtests.test("last"):
        assert got == 2"""
    result = run(marked(body, "ranks(3, explore=True)", name="test_race", arguments="rank, subtests"))
    assert result.parseoutcomes() == {"failed": 2}  # the subtest, and the test
    lines = report_of(result, "test_race")
    assert "        1  fail  rank_error rank 0" in lines
    assert "  rank 0 raised Failed: contains 1 failed subtest" in lines


def test_at_the_first_failure_a_subtest_ends_the_session_on_request(run):
    result = run(values() + "\ndef test_never():\n    pass\n", "-x")

    lines = report_of(result, "test_values")
    assert "E               assert (1 != 1 or 1 == 0)" in lines
    assert lines[-4:-1] == [
        "  rank 1 raised AssertionError: assert (1 != 1 or 1 == 0) at test_it.py:11",
        "  rank 2 raised AssertionError: assert (1 != 1 or 2 == 0) at test_it.py:11",
        "  rank 0 waits in barrier #2 at test_it.py:10 for ranks 1, 2, which raised",
    ]
    result.stdout.no_fnmatch_line("*test_never*")


def test_a_report_is_written_for_failed_subtests(run, pytester):
    run(values(), "--ddpsim-report", "made").stdout.fnmatch_lines(["ddpsim: 1 report in *made/index.html"])


def test_what_another_fixture_calls_subtests_is_left_alone(run):
    fixture = "@pytest.fixture\ndef subtests():\n    return ['a', 'b']\n"
    run(fixture + marked("assert subtests == ['a', 'b']", arguments="rank, subtests")).assert_outcomes(passed=1)
