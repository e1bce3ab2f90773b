"""Mutants are the same at every run, differ from their file in one place, and are found again after a move."""

import ast
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.mutants.__main__ import Noticed, measure, mirror, product_folders
from tests.mutants.generating import ROOT, Mutant, choose, find_again, mutants_of, text_with, text_with_probes
from tests.mutants.session import Wanted

FOLDER = "simulator/policies"
BOUND = Mutant(f"{FOLDER}/dfs.py", "_PathChoice.option_count", "changed constant", "1", "2", 0)


def lines_of(file):
    return (ROOT / file).read_text(encoding="utf-8").splitlines()


def test_twenty_of_a_folder_each_with_one_change_that_keeps_the_lines():
    chosen = choose(FOLDER, 20, 0)
    assert len(set(chosen)) == 20
    assert choose(FOLDER, 20, 1) != chosen
    for mutant in chosen:
        text = text_with(mutant)
        lines = lines_of(mutant.file)
        changed = [new for new, old in zip(text.splitlines(), lines, strict=True) if new != old]
        assert 1 <= len(changed) <= mutant.old.count("\n") + 1
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse("\n".join(lines)))


@pytest.mark.tier("ci")
def test_a_mutant_is_found_where_its_function_has_moved():
    assert find_again(BOUND, [FOLDER]) == BOUND
    assert find_again(replace(BOUND, file="simulator/gone/dfs.py"), product_folders()) == BOUND
    assert find_again(replace(BOUND, file="simulator/gone/other.py"), product_folders()) == BOUND
    assert find_again(replace(BOUND, old="2"), product_folders()) is None


def test_probes_tell_which_mutants_run_and_change_nothing_else():
    file = "simulator/clock.py"
    mutants = {mutant: number for number, mutant in enumerate(mutants_of(file))}
    text = text_with_probes(file, mutants)
    assert len(text.splitlines()) == len(lines_of(file))
    assert text.count("mutant_reached(") == len(mutants) > 10
    reached: list[int] = []
    functions = [(mutant.function, number) for mutant, number in mutants.items()]
    names = {"__name__": "probed", "mutant_reached": reached.append}
    exec(compile(text, file, "exec"), names)
    clock = names["VirtualClock"]()  # type: ignore[operator]
    reached.clear()
    clock.add_seconds(1.0)
    assert [function for function, number in functions if number in reached] == ["VirtualClock.add_seconds"]


def test_every_folder_has_tests():
    assert all((ROOT / test).exists() for folder in product_folders() for test in mirror(folder))
    assert mirror("simulator/runtime/threads") == ("tests/runtime/threads",)
    assert mirror("simulator/transport") == ("tests/transport", "tests/semantics")


@pytest.mark.tier("ci")
def test_a_mutant_is_noticed_by_day():
    (noticed,) = measure({BOUND: ["tests/policies/test_dfs.py"]}, ["default"])
    assert noticed == Noticed(BOUND, "default", noticed.test, noticed.candidates)
    assert noticed.test.startswith("tests/policies/test_dfs.py::")


@pytest.mark.tier("ci")
def test_tests_that_start_processes_run_there_too():
    """In a process that has run no other test: a worker's is not as the tool's."""
    wanted = Wanted(("tests/jobs/test_runs.py::test_returns_come_back",), {}, "ci")
    program = f"from tests.mutants.session import Wanted, run_tests\nprint(run_tests({wanted!r}).failed)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.stdout.splitlines()[-1:] == ["()"], ended.stdout + ended.stderr
