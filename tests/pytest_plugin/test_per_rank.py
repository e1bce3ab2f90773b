"""Fixtures of a rank's own: made on each rank, inside the simulation, and taken down there."""

import pytest

from tests.pytest_plugin.reading import marked

PASSING = {
    ("each rank makes its own with communication", 1): """
@pytest.fixture
def width():
    return 3

@per_rank
def model(rank, width):
    torch.manual_seed(rank)
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, 1))

@per_rank
def trained(model, world_size):
    model(torch.ones(world_size, 3)).sum().backward()
    return model

@pytest.mark.ranks(4)
def test_model(trained, model, rank):
    assert trained is model
    weights = [torch.zeros(1, 3) for _ in range(4)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights)
    assert model.module.weight.grad.tolist() == [[4.0, 4.0, 4.0]]
""",
    ("in a class and by usefixtures", 1): """
made = []

class TestIt:
    @per_rank
    def own(self, rank):
        assert isinstance(self, TestIt)
        self.rank = rank
        return rank + 10

    @per_rank
    def noted(self, own):
        made.append(own)

    @pytest.mark.usefixtures("noted")
    @pytest.mark.ranks(2)
    def test_it(self, own, rank):
        dist.barrier()
        assert own == rank + 10 and sorted(made) == [10, 11]
""",
    ("an ordinary rank fixture of ones own wins", 1): """
@pytest.fixture
def rank():
    return "mine"

@pytest.mark.ranks(2)
def test_it(rank):
    assert rank == "mine"
""",
}
"""What tests on ranks may rely on, and how many of them pass to show it."""


@pytest.mark.parametrize(("name", "passed"), PASSING)
def test_it_passes(run, name, passed):
    run(PASSING[name, passed]).assert_outcomes(passed=passed)


def test_what_stands_behind_yield_runs_in_turn_whatever_happens(run):
    run("""
told = {}

@per_rank
def outer(rank):
    own = told.setdefault(rank, [])
    own.append("outer")
    yield own
    own.append("outer gone")

@per_rank
def inner(outer):
    outer.append("inner")
    yield
    outer.append("inner gone")

@pytest.mark.ranks(3)
def test_all_ways_out(rank, inner):
    if rank == 0:
        dist.barrier()  # is unwound
    assert rank != 1
    # rank 2 returns

def test_all_are_gone():
    assert told == {rank: ["outer", "inner", "inner gone", "outer gone"] for rank in range(3)}
""").assert_outcomes(failed=1, passed=1)


def model(body):
    """A fixture of the rank's own of these statements, and a test that asks for it."""
    return f"@per_rank\ndef model(rank):\n    {body}\n" + marked("dist.barrier()", arguments="model")


def test_a_failure_in_one_is_shown_where_it_is(fails):
    failure = fails(model('assert rank != 1, "no model"'))
    assert '>       assert rank != 1, "no model"' in failure.lines
    assert failure.lines[-3] == "  rank 1 raised AssertionError: no model at test_it.py:7"
    failure.stdout.no_fnmatch_line("*fixtures.py*")


def test_a_failure_behind_the_yield_fails_the_test_on_that_rank(fails):
    failure = fails(model('yield\n    assert rank != 1, "still in use"'))
    assert failure.lines[-2] == "  rank 1 raised AssertionError: still in use at test_it.py:8"


def test_an_ordinary_fixture_that_asks_for_one_is_told_about_per_rank(fails):
    fixtures = "".join(
        f"@pytest.fixture\ndef {name}({below}):\n    return {below}\n\n"
        for name, below in [("model", "rank"), ("trained", "model")]
    )
    assert fails(fixtures + marked("pass", arguments="trained")).lines == [
        "@pytest.mark.ranks: fixture 'model' is made once for all ranks, but requests 'rank', which each rank makes: "
        "write @per_rank (from ddpsim.scenarios import per_rank) instead of @pytest.fixture"
    ]


def test_a_fixture_that_asks_by_name_at_run_time_is_told_too(run):
    fixture = "@pytest.fixture\ndef model(request):\n    return request.getfixturevalue('rank')\n"
    result = run(fixture + marked("pass", arguments="model"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'rank' is made on each rank, expected*from ddpsim.scenarios import per*"])


ASKS_BY_NAME = """
@per_rank
def own(rank):
    return rank

@per_rank
def model(own):
    return own

@pytest.mark.ranks(2)
def test_it(request):
    request.getfixturevalue("model")
"""


def test_a_test_that_asks_by_name_on_a_rank_is_told_to_take_an_argument(run, fails):
    failure = fails(ASKS_BY_NAME)
    assert failure.lines[0] == (
        "@pytest.mark.ranks: fixture 'model' is requested by name (getfixturevalue), but must be made before that: "
        "write model as an argument of the test, and use that"
    )
    failure.stdout.no_fnmatch_line("*outcomes.py*")
    run(ASKS_BY_NAME.replace("test_it(request)", "test_it(request, model)")).assert_outcomes(failed=1)
    run(
        ASKS_BY_NAME.replace("(request)", "(model)").replace(
            '    request.getfixturevalue("model")', "    assert model in range(2)"
        )
    ).assert_outcomes(passed=1)


def test_a_test_that_is_not_marked_is_told_the_name_it_asked_for(fails):
    fails(ASKS_BY_NAME.replace("@pytest.mark.ranks(2)", "")).stdout.fnmatch_lines(
        ["fixture 'model' is made on each rank, expected in a test marked @pytest.mark.ranks*"]
    )


@pytest.mark.parametrize("way", ["fail('on purpose', pytrace=False)", "fail('on purpose')"])
def test_the_place_of_pytests_own_failures_is_the_tests_line(fails, way):
    failure = fails(marked(f"if rank:\n    pytest.{way}"))
    assert failure.lines[-2] == "  rank 1 raised Failed: on purpose at test_it.py:9"


def test_a_test_without_the_marker_is_told_to_be_marked(run):
    result = run("""
def test_a(rank):
    pass

def test_again(rank):
    pass

def test_b(world_size):
    pass
""")

    result.assert_outcomes(errors=3)
    told = "*'rank' is made on each rank, expected in a test marked @pytest.mark.ranks*"
    result.stdout.fnmatch_lines([told, told, "*'world_size' is for tests*"])


def test_a_conftest_has_them_for_many_and_they_take_parametrized_fixtures(run, pytester):
    pytester.makeconftest("""
import pytest
from ddpsim.scenarios import per_rank

@pytest.fixture(params=[2, 3])
def size(request):
    return request.param

@per_rank
def box(size, rank):
    return [rank] * size
""")
    run("""
@pytest.mark.ranks(2)
def test_boxes(box, rank):
    assert box in ([rank] * 2, [rank] * 3)

class TestOwn:
    @per_rank
    def box(self, rank):
        return [rank]

    @pytest.mark.ranks(2)
    def test_replaced(self, box, rank):
        assert box == [rank]
""").assert_outcomes(passed=3)


def test_one_that_asks_for_the_one_it_replaces_is_told_so(fails, pytester):
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef box():\n    return []\n")
    source = "@per_rank\ndef box(box, rank):\n    return [*box, rank]\n"
    assert fails(source + marked("pass", arguments="box")).lines == [
        "@pytest.mark.ranks: fixture 'box' requests the fixture that it overrides, which @per_rank does not support: "
        "rename it"
    ]


@pytest.mark.parametrize(
    ("body", "found", "remedy"),
    [
        ("yield\n    yield", "yields twice", "remove the second"),
        ("if False:\n        yield", "did not yield", "add it, or return the value"),
    ],
)
def test_yielding_twice_or_never_is_one_line(fails, body, found, remedy):
    assert fails(model(body).replace("ranks(2)", "ranks(1)")).lines == [
        f"@pytest.mark.ranks: fixture 'model' {found}, expected one yield: {remedy}"
    ]
