"""What a failing test shows: pytest's own traceback and the rank, or the diagnosis; and last the replay line."""

import shlex

import pytest

from ddpsim.scenarios.pytest_plugin import running
from tests.pytest_plugin.reading import HANGS, marked


def test_an_assertion_shows_pytests_message_and_the_rank(fails):
    failure = fails("""
@pytest.mark.ranks(4)
def test_sum(rank):
    each = torch.ones(2) * rank
    dist.all_reduce(each)
    if rank == 2:
        assert each.tolist() == [6, 5]
    dist.barrier()
""")
    for line in (
        "rank = 2",
        "E           assert [6.0, 6.0] == [6, 5]",
        "E             At index 1 diff: 6.0 != 5",
        "test_it.py:11: AssertionError",
    ):
        assert line in failure.lines
    assert failure.lines[-4].strip("-") == " ddpsim "
    assert failure.lines[-3:-1] == [
        "  rank 2 raised AssertionError: assert [6.0, 6.0] == [6, 5] at test_it.py:11",
        "  ranks 0, 1, 3 wait in barrier #1 at test_it.py:12 for rank 2, which raised",
    ]
    assert failure.token
    assert failure.summary == "rank 2: assert [6.0, 6.0] == [6, 5]"
    failure.stdout.no_fnmatch_line("*running.py*")


def test_the_same_assertion_on_several_ranks_is_told_once(fails):
    failure = fails(marked('assert rank > 3 or rank % 2, "even"\ndist.barrier()', "ranks(4)"))
    assert failure.lines[-3:-1] == [
        "  ranks 0, 2 raised AssertionError: even at test_it.py:8",
        "  ranks 1, 3 wait in barrier #0 at test_it.py:9 for ranks 0, 2, which raised",
    ]


def test_different_errors_are_all_told_the_first_with_its_traceback(fails):
    lines = fails(marked('assert rank == 3, f"I am {rank}"', "ranks(3)")).lines
    assert [line for line in lines if line.startswith("E ")] == [
        "E       AssertionError: I am 0",
        "E       assert 0 == 3",
    ]
    assert lines[-4:-1] == [f"  rank {rank} raised AssertionError: I am {rank} at test_it.py:8" for rank in range(3)]


def test_known_errors_come_with_their_cause_and_what_to_try(fails):
    failure = fails("""
@pytest.mark.ranks(2)
def test_unused(rank):
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

        def forward(self, batch):
            return self.used(batch)

    model = torch.nn.parallel.DistributedDataParallel(Half())
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
""")
    *_, summary, cause, remedy, _ = failure.lines
    assert summary.startswith("  ranks 0, 1 raised RuntimeError: Expected to have finished reduction in the prior")
    assert cause.startswith("  cause   ")
    assert "unused.weight, unused.bias" in cause
    assert remedy.startswith("  try     ")
    *_, heading, summary, _ = fails(marked("raise ValueError('of its own')")).lines
    assert heading.strip("-") == " ddpsim "
    assert summary == "  ranks 0, 1 raised ValueError: of its own at test_it.py:8"


FOR_EVER = "from ddpsim import Budget\n" + marked("while True:\n    dist.barrier()", "ranks(2{options})")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ("", 1000),
        (", budget={'seconds': 60}", 1000),
        (", budget={'steps': 2000}", 2000),
        (", budget=Budget(steps=3000)", 3000),
    ],
)
def test_a_budget_that_ran_out_is_no_pass_and_a_test_has_so_many_steps(fails, monkeypatch, options, steps):
    assert running.MOST_STEPS == 1_000_000
    monkeypatch.setattr(running, "MOST_STEPS", 1000)
    lines = fails(FOR_EVER.replace("{options}", options)).lines
    assert lines[:2] == ["UNKNOWN  budget", f"  the run took more than {steps} steps"]


def test_an_exploration_of_a_program_that_never_ends_takes_as_many_in_each_run(fails, monkeypatch):
    monkeypatch.setattr(running, "MOST_STEPS", 1000)
    assert "        1  unknown  budget rank 0" in fails(FOR_EVER.replace("{options}", ", explore=True")).lines


def test_a_line_with_parameters_that_need_quotes_can_be_pasted(fails):
    parameters = 'parametrize("text", ["it\'s; $(rm -r)"])\n@pytest.mark.ranks(2)'
    *_, last = fails(marked(HANGS, parameters, arguments="rank, text")).lines
    words = shlex.split(last)
    assert words[:3] == ["replay", "pytest", "test_it.py::test_it[it's; $(rm -r)]"]
    fails("", *words[2:])


def test_an_error_made_in_a_helper_or_with_a_cause_keeps_all_of_it(run):
    result = run("""
def helper(rank):
    try:
        {}["key"]
    except KeyError as error:
        raise RuntimeError("helped") from error

@pytest.mark.ranks(2)
def test_fails(rank):
    if rank:
        helper(rank)
    dist.barrier()
""")
    result.stdout.fnmatch_lines(
        [
            "E           KeyError: 'key'",
            "The above exception was the direct cause of the following exception:",
            ">           helper(rank)",
            "E           RuntimeError: helped",
            "  rank 1 raised RuntimeError: helped at test_it.py:10",
            "  replay  pytest test_it.py::test_fails --ddpsim-replay s1:*",
        ]
    )


def test_the_replicas_of_a_model_are_compared_on_request(run, fails):
    body = """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + rank)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()"""
    run(marked(body)).assert_outcomes(passed=1)
    assert fails(marked(body, "ranks(2, check='replicas')")).lines[0].startswith("DIVERGENCE  divergence.parameters")


def test_faults_strike_the_ranks_they_name(run, fails):
    source = "from ddpsim import Crash\n" + marked(
        "dist.barrier()\ndist.barrier()", "ranks(2, faults=[Crash(rank=1, before_call=1)])"
    )
    fails(source).stdout.fnmatch_lines(["  rank 1 raised InjectedCrashError: injected crash*"])
    run(source.replace("before_call=1", "before_call=2")).assert_outcomes(passed=1)


def test_a_passing_test_tells_its_hazards_on_request(run):
    source = marked("dist.all_reduce(torch.ones(1), async_op=True)")
    result = run(source, "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*Captured findings call*", "*hazard.unwaited_work*"])
    run(source).stdout.no_fnmatch_line("*hazard.*")


PLACES = "".join(
    [
        marked(HANGS, name="test_hangs"),
        marked("dist.barrier()", 'ranks(2, expect="deadlock.cycle")', name="test_expects"),
        marked("assert not rank", name="test_raises"),
        marked("pass", "ranks(0)", name="test_unusable"),
        marked("import library\nlibrary.leaves(rank)", name="test_elsewhere"),
    ]
)
LIBRARY = "import torch.distributed as dist\n\ndef leaves(rank):\n    if rank:\n        dist.barrier()\n"


def test_in_one_line_a_failure_stands_where_the_user_wrote_it(run, pytester):
    """The call to blame, or the test where there is none, or it is a library's."""
    installed = pytester.mkdir("site-packages")
    (installed / "library.py").write_text(LIBRARY)
    pytester.syspathinsert(installed)

    result = run(PLACES, "--tb=line")

    start = next(index for index, line in enumerate(result.outlines) if "= FAILURES =" in line)
    end = next(index for index, line in enumerate(result.outlines) if "= short test summary" in line)
    path = pytester.path / "test_it.py"
    assert result.outlines[start + 1 : end] == [
        f"{path}:9: deadlock.missing_rank: rank 1 waits for rank 0, which returned",
        f"{path}:11: not as expected: found pass; expected fail, deadlock.cycle",
        "E   assert not 1",  # as pytest has it for every test
        f"{path}:17: rank 1: assert not 1",
        f"{path}:19: @pytest.mark.ranks: world size is 0, expected a whole number from 1: the number of ranks",
        f"{path}:23: deadlock.missing_rank: rank 1 waits for rank 0, which returned",
    ]
