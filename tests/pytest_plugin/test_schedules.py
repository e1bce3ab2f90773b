"""Schedules: seeds, explorations, what is expected of them, and the options of the command line."""

import pytest

from ddpsim.simulator.policies.named import DRAWING, join_names
from tests.pytest_plugin.reading import HANGS, marked, replay_of


def with_options(options):
    return f"ranks(3{options and ', '}{options})"


def race(options=""):
    """It fails if rank 2's message is taken first: never under round robin."""
    body = """\
got = torch.zeros(1)
if rank:
    dist.send(torch.ones(1) * rank, 0)
else:
    dist.recv(got)
    print("first", int(got))
    assert got == 1
    dist.recv(got)"""
    return marked(body, with_options(options), name="test_race")


def hangs(options=""):
    return marked(HANGS, with_options(options), name="test_hangs")


def passes(options=""):
    return marked("dist.barrier()", with_options(options), name="test_passes")


def test_each_seed_is_a_test_of_its_own(run):
    result = run(race("seeds=range(8)"), "-v")

    found = result.parseoutcomes()
    assert (found["passed"] + found["failed"], found["passed"] > 0, found["failed"] > 0) == (8, True, True)
    result.stdout.fnmatch_lines(["*::test_race[[]seed0[]] *", "*::test_race[[]seed7[]] *"])
    run("", "-k", "seed3").assert_outcomes(
        **{("passed" if "test_race[seed3] PASSED" in result.stdout.str() else "failed"): 1}, deselected=7
    )


@pytest.mark.tier("ci")
def test_a_policy_is_repeated_by_its_seed_and_default_is_round_robin(run):
    run(race()).assert_outcomes(passed=1)
    for policy in ("random", "pct"):
        ways = [run(race(f"policy='{policy}', seed={seed}")).parseoutcomes() for seed in (*range(6), 0, 5)]
        assert ways[6:] == [ways[0], ways[5]]
        assert {"passed": 1} in ways
        assert {"failed": 1} in ways


def test_seeds_come_behind_parameters_and_can_be_asked_for(run):
    parameters = 'parametrize("n", ["a", "b"])\n@pytest.mark.ranks(2, seeds=[5, 1])'
    body = "assert ddpsim_seed in (1, 5)\ndist.barrier()"
    result = run(marked(body, parameters, arguments="n, ddpsim_seed, rank"), "-v")
    result.assert_outcomes(passed=4)
    names = [line.split()[0] for line in result.outlines if "PASSED" in line]
    assert names == [f"test_it.py::test_it[{n}-seed{seed}]" for n in "ab" for seed in (5, 1)]


def test_an_exploration_finds_the_order_that_fails_and_shows_only_its_output(fails):
    failure = fails(race("explore=True"))
    for line in (
        "E           assert tensor([2.]) == 1",
        "FAIL  test_it.py::test_race on 3 ranks",
        # one for each message that may be the first
        "  All interleavings covered, but for files, shared objects, hash order and time: 2 executions",
    ):
        assert line in failure.lines
    assert failure.stdout.str().count("\nfirst ") == 1
    failure.stdout.fnmatch_lines(["*Captured stdout rank 0 call*", "first 2"])

    again = fails("", "test_it.py::test_race", "--ddpsim-replay", failure.token)  # one run, no exploration
    assert "FAIL  test_it.py::test_race on 3 ranks" not in again.lines
    again.stdout.fnmatch_lines(["first 2"])


@pytest.mark.parametrize("explore", ["True", "'dpor'", "'dfs'", "{'policy': 'dfs', 'preemptions': 1}", "False", "None"])
def test_an_exploration_that_covers_all_passes_and_a_bounded_one_that_finds_something_fails(run, explore):
    run(passes(f"explore={explore}").replace("ranks(3", "ranks(2")).assert_outcomes(passed=1)
    if "preemptions" in explore:
        run(race("explore={'policy': 'dfs', 'preemptions': 0}")).assert_outcomes(failed=1)


def test_an_exploration_that_runs_out_of_budget_is_no_pass(fails):
    assert fails(race("explore='dfs', budget={'executions': 1}")).lines[:2] == [
        "UNKNOWN  test_it.py::test_race on 3 ranks",
        "  Not all interleavings covered: the budget ran out after 1 execution",
    ]


def test_what_is_expected_passes_if_it_is_found(run):
    run(hangs("expect='deadlock.missing_rank'")).assert_outcomes(passed=1)
    run("from ddpsim import Code\n" + hangs("expect=Code.DEADLOCK_MISSING_RANK")).assert_outcomes(passed=1)
    run(hangs("expect='deadlock.missing_rank', explore=True")).assert_outcomes(passed=1)
    run(race("expect='rank_error', explore=True")).assert_outcomes(passed=1)
    found = run(race("expect='rank_error', seeds=range(8)")).parseoutcomes()
    assert run(race("seeds=range(8)")).parseoutcomes() == {"passed": found["failed"], "failed": found["passed"]}


@pytest.mark.parametrize("policy", DRAWING)
def test_drawn_schedules_may_look_for_what_is_expected(run, policy):
    run(race(f"expect='rank_error', explore='{policy}', seed=3")).assert_outcomes(passed=1)


def test_something_else_than_expected_is_one_text(fails):
    failure = fails(hangs("expect='deadlock.cycle'"))
    assert failure.lines[:3] == [
        "not as expected: found fail, deadlock.missing_rank, rank 0; expected fail, deadlock.cycle",
        "",
        "DEADLOCK  deadlock.missing_rank  at step 6",
    ]
    assert failure.token
    assert failure.summary.startswith("not as expected: found fail, deadlock")
    assert fails(passes("expect='rank_error'")).lines[:3] == [
        "not as expected: found pass; expected fail, rank_error",
        "",
        "PASS  test_it.py::test_passes on 3 ranks  11 events",
    ]


def test_the_text_of_an_unexpected_error_has_the_lines_of_the_test_only(fails):
    fixture = "\n@per_rank\ndef model(rank):\n    assert rank != 1\n"
    lines = fails(fixture + marked("dist.barrier()", 'ranks(2, expect="deadlock.cycle")', arguments="model")).lines
    start = lines.index("  Traceback (the user's frames):")
    assert lines[start + 1].endswith(", line 8, in model")
    assert lines[start + 3].strip() == "AssertionError: assert 1 != 1"


def test_an_exploration_without_what_is_expected_tells_its_outcomes(fails):
    failure = fails(race("expect='deadlock.cycle', explore=True"))
    assert failure.lines[0] == "not as expected: found fail; expected fail, deadlock.cycle"
    assert "        1  fail  deadlock.dead_rank rank 0  rank_error rank 0" in failure.lines
    assert failure.token


def test_a_hazard_is_expected_of_a_run_that_passes(run):
    body, mark = "dist.all_reduce(torch.ones(1), async_op=True)\n", 'ranks(2, expect="hazard.unwaited_work")'
    run(marked(body, mark)).assert_outcomes(passed=1)
    run(marked(body + HANGS, mark)).assert_outcomes(failed=1)


@pytest.mark.tier("ci")
def test_a_policy_and_a_seed_for_all(run):
    run(race()).assert_outcomes(passed=1)
    ways = [run("", f"--ddpsim-seed={seed}").parseoutcomes() for seed in range(6)]
    assert ways == [run("", f"--ddpsim-seed={seed}", "--ddpsim-policy=random").parseoutcomes() for seed in range(6)]
    assert {"failed": 1} in ways
    failing = race(f"policy='random', seed={ways.index({'failed': 1})}")
    run(failing).assert_outcomes(failed=1)
    run(failing, "--ddpsim-policy=round_robin").assert_outcomes(passed=1)


def test_round_robin_for_all_leaves_tests_with_seeds_as_they_are(run):
    source = race("seeds=range(6)")
    drawn = run(source).parseoutcomes()
    assert drawn.keys() == {"passed", "failed"}
    assert run("", "--ddpsim-policy=round_robin").parseoutcomes() == drawn


def test_a_seed_for_round_robin_is_one_line(run):
    result = run(race(), "--ddpsim-policy=round_robin", "--ddpsim-seed=3")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: --ddpsim-seed is given, but --ddpsim-policy round_robin uses no seed, "
            f"expected {join_names(DRAWING)}: "
            "leave one of them out"
        ]
    )
    run("", "--ddpsim-policy=pct", "--ddpsim-seed=3").stdout.fnmatch_lines(["*1 *ed in *"])


def test_a_replay_takes_no_heed_of_a_policy(run):
    failed = run(race("seeds=range(6)"))
    name = next(line.split("::")[1].split()[0] for line in failed.outlines if line.startswith("FAILED"))
    node, token = replay_of(failed, name)
    run("", node, "--ddpsim-replay", token, "--ddpsim-policy=round_robin").assert_outcomes(failed=1)


def test_one_seed_takes_the_place_of_many_and_stands_in_the_line(fails):
    *_, last = fails(hangs("seeds=range(3)"), "--ddpsim-seed", "17").lines
    assert last.startswith("  replay  pytest 'test_it.py::test_hangs[seed17]' --ddpsim-seed 17 --ddpsim-replay s1:")
    fails("", *last.replace("'", "").split()[2:])


def test_a_replay_runs_only_what_the_token_belongs_to(fails):
    token = fails(hangs() + passes(), passed=1).token
    fails("", "--ddpsim-replay", token, deselected=1)


def test_a_damaged_token_is_one_line(run):
    result = run(hangs(), "--ddpsim-replay", "s1:0:00000000")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [each for each in result.errlines + result.outlines if each.startswith("ERROR")] == [
        "ERROR: --ddpsim-replay: replay token 's1:0:00000000' does not match its checksum, so it was changed: "
        "copy it again from the report"
    ]


def test_a_token_of_no_test_here_is_one_line(run, fails):
    token = fails(hangs()).token
    result = run(passes(), "--ddpsim-replay", token)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert [each for each in result.errlines + result.outlines if token in each] == [
        f"ddpsim: replay token {token} matches none of the collected tests, expected one: give the file and "
        "the test as in the replay line"
    ]


def test_a_token_of_several_tests_runs_all_and_says_so(run, fails, pytester):
    for folder in ("one", "two"):
        (pytester.mkdir(folder) / "test_same.py").write_text(
            "import pytest\nimport torch.distributed as dist\n" + hangs(), encoding="utf-8"
        )
    token = fails("", "one", "--import-mode=importlib").token
    both = run("", "--import-mode=importlib", "--ddpsim-replay", token)
    both.assert_outcomes(failed=2)
    both.stdout.fnmatch_lines(
        [
            f"ddpsim: replay token {token} matches 2 tests, which were all run, expected one: give the "
            "file and the test as in the replay line"
        ]
    )
    one = fails("", "one/test_same.py", "--import-mode=importlib", "--ddpsim-replay", token)
    one.stdout.no_fnmatch_line("*which were all run*")


def test_a_test_that_has_changed_shows_both_sides(fails):
    token = fails(race("explore=True")).token
    diverged, recorded, *_ = fails(marked("pass", "ranks(3)", name="test_race"), "--ddpsim-replay", token).lines
    assert diverged.startswith("replay diverged: the run ended after 2 choices, but the schedule has 6 more")
    assert recorded == "  recorded   continues with 0x5.1"


@pytest.mark.parametrize(("option", "value"), [("--ddpsim-policy", "robin"), ("--ddpsim-seed", "one")])
def test_an_option_that_is_no_such_thing_is_refused_by_pytest(run, option, value):
    result = run(passes(), option, value)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option}*{value}*"])


def test_help_tells_the_options(run):
    run("", "--help").stdout.fnmatch_lines(
        ["*--ddpsim-policy=*", "*--ddpsim-seed=N*", "*--ddpsim-replay=TOKEN*", "*--ddpsim-report=DIR*"]
    )
