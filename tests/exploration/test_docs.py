"""What docs/exploring.md shows is what one gets: its files, its commands in their order, its Python sessions."""

import doctest
import re
from pathlib import Path

from hypothesis import settings

from scenarios.cli import main
from simulator import explore
from simulator.exploration.named import NAMES

TEXT = (Path(__file__).parents[2] / "docs" / "exploring.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
FIRST = next(block for language, block in BLOCKS if language == "python")


def normal(text):
    """Without times, which differ from one run to the next."""
    text = re.sub(r"\d+ ms$", "[] ms", text, flags=re.MULTILINE)
    return re.sub(r"\d+\.\d s\b", "[] s", text)


def is_shown(said, shown):
    """True if a command said what is shown, in which `...` stands for more."""
    return doctest.OutputChecker().check_output(normal(shown), normal(said), doctest.ELLIPSIS)


def write(folder, block):
    """Write a file that is shown, or compare it with what a command has saved."""
    path = folder / re.match(r"# (\S+)\n", block)[1]
    if "-shrunk" in path.name:
        assert block.partition("\n")[2] == path.read_text()
    else:
        path.write_text(block)


def test_the_files_and_commands(tmp_path, monkeypatch, capsys):
    # If a text has become better: paste what the command prints now.
    monkeypatch.chdir(tmp_path)
    for language, block in BLOCKS:
        if language in ("python", "toml"):
            write(tmp_path, block)
        elif language == "console":
            command, shown = block.split("\n", 1)
            if command.startswith("$ ddpsim shrink collect"):
                write(tmp_path, FIRST)  # as it says there
            main(command.removeprefix("$ ddpsim ").split())
            said = capsys.readouterr()
            assert is_shown(said.out + said.err, shown), f"{command}\n{said.out}{said.err}"


def test_the_python_sessions():
    session = "\n".join(block for language, block in BLOCKS if language == "pycon")
    test = doctest.DocTestParser().get_doctest(session, {}, "exploring.md", "exploring.md", 0)
    problems = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=problems.append)
    assert results.attempted > 8
    assert not problems, "".join(problems)


def test_how_many_executions_a_search_without_classes_takes():
    program = {}
    exec(FIRST, program)
    classes, schedules = re.search(r"has (\d+) classes of .*? in (\d+) executions", TEXT, re.DOTALL).groups()
    covered = explore(program["collect"], 4, keep_going=True)
    assert (covered.executions, covered.complete) == (int(classes), True)
    searched = explore(program["collect"], 4, policy="dfs", preemptions=0, keep_going=True)
    assert searched.executions == int(schedules)
    assert set(searched.outcomes) == set(covered.outcomes)


def test_the_tests_of_ones_own():
    tests = {}
    exec(next(block for _, block in BLOCKS if block.startswith("# test_sums.py")), tests)
    own = [test for name, test in tests.items() if name.startswith("test_")]
    for test in own:
        settings(max_examples=15, database=None, deadline=None, derandomize=True)(test)()
    assert len(own) == 2


def test_every_policy_has_its_row():
    assert sorted(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == sorted(NAMES)


def test_every_option_is_one(capsys):
    taken = {"--bugs"}  # of the benchmark
    for command in ("explore", "replay", "shrink", "fuzz"):
        main([command, "--help"])
        taken |= set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"--[a-z][\w-]+", TEXT)) <= taken
