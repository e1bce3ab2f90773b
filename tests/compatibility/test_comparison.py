"""What counts as the same output, and what does not."""

import pytest

from tests.compatibility.cases import CASES, FOLDER, Case
from tests.compatibility.comparison import difference
from tests.compatibility.running import Ran
from tests.compatibility.table import BEGIN, END, Row, in_page


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([], []),
        (["a", "b"], ["b", "a"]),
        (["loss 0.12345"], ["loss 0.12346"]),
        (["loss 123456.0"], ["loss 123456.4"]),
        (["rank 0 x 0.50", "rank 1 x 0.49"], ["rank 1 x 0.50", "rank 0 x 0.51"]),
        (["1e-7"], ["1e-7"]),
        (["float32 v2"], ["float32 v2"]),
    ],
)
def test_the_same(expected, found):
    assert difference(expected, found) is None


@pytest.mark.parametrize(
    ("expected", "found", "text"),
    [
        (["a"], [], "without 'a'"),
        ([], ["a"], "with 'a'"),
        (["a", "c"], ["a", "b"], "with 'b'"),
        (["loss 0.12345"], ["loss 0.12347"], "'loss 0.12347' for 'loss 0.12345'"),
        (["steps 100000"], ["steps 100001"], "'steps 100001' for 'steps 100000'"),
        (["float32"], ["float16"], "with 'float16'"),
        (["loss 1.0", "loss 1.0"], ["loss 1.0"], "without 'loss 1.0'"),
        (["loss nan"], ["loss 1.0"], "with 'loss 1.0'"),
    ],
)
def test_not_the_same(expected, found, text):
    assert difference(expected, found) == text


def test_each_program_is_run_and_told():
    modules = {path for path in FOLDER.glob("*/*.py") if "__main__" in path.read_text()}
    assert {case.path for case in CASES} == {*FOLDER.glob("*.py")} | modules
    assert len({case.path for case in CASES}) >= 40
    assert not [case.command for case in CASES if len(case.about) < 20]


def test_no_program_knows_of_us():
    assert not [path.name for path in FOLDER.rglob("*.py") if "ddpsim" in path.read_text()]


def ran(status=0, output=(), said="", seconds=2.0):
    return Ran(status, tuple(output), said, seconds)


@pytest.mark.parametrize(
    ("simulated", "problem"),
    [
        (ran(output=["loss 1.50"]), None),
        (ran(output=["loss 1.60"]), "prints 'loss 1.60' for 'loss 1.50'"),
        (ran(None), "ends not in time: nothing said"),
        (ran(2, said="ddpsim: no such thing\n"), "ends with status 2: ddpsim: no such thing"),
        (
            ran(1, said="x\n\nRANK ERROR  rank_error\n  rank 0 raised ValueError: no\n"),
            "ends with status 1: rank 0 raised ValueError: no",
        ),
    ],
)
def test_what_is_told_of_a_program(simulated, problem):
    row = Row(Case("ring.py"), ran(output=["loss 1.50"]), simulated)
    assert (row.problem, row.passes) == (problem, problem is None)


def test_what_fails_under_torchrun_is_told_as_such():
    row = Row(Case("ring.py"), ran(1, said="Traceback\nValueError: no\n\n"), ran())
    assert row.problem == "torchrun ends with status 1: ValueError: no"


def test_the_table_in_its_page():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    rows = [Row(Case("ring.py"), ran(output=["1"], seconds=4.0), ran(output=["1"])), Row(Case("gan.py"), ran(), ran(1))]
    made = in_page(page, rows)
    assert made.startswith(f"before\n{BEGIN}\n\n1 of 2 commands pass. Median of the seconds, to torchrun's: 0.50.\n\n")
    assert f"| `ring.py` | {Case('ring.py').about} | passes | equal | 2.0 | 4.0 |\n" in made
    assert "| fails | ends with status 1: nothing said | 2.0 | 2.0 |" in made
    assert made.endswith(f"{END}\nafter\n")
    assert in_page(made, rows) == made
