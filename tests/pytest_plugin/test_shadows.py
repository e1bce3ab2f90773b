"""Files of the user's that are called as packages of ours: one line, where they are in the way, and none elsewhere."""

import subprocess
import sys

import pytest

from tests.pytest_plugin.conftest import ROOT

TESTS = """
import pytest

@pytest.mark.ranks(2)
def test_marked(rank):
    pass

def test_plain():
    pass
"""
IN_A_FILE = 'ddpsim = 1\nscenario = "send-send"\n'


def line(name, package):
    return (
        f"{name} shadows the package '{package}' of ddpsim, expected no other module of that name: rename it, or run "
        "from another folder"
    )


def session(pytester, *arguments):
    """Plain pytest: the folder of the first test file stands first where Python looks for modules."""
    pytester.makepyfile(test_it=TESTS)
    return pytester.runpytest_subprocess("-p", "scenarios.pytest_plugin", "-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("package", ["simulator", "ddp"])
def test_a_marked_test_is_refused_in_one_line(pytester, package):
    pytester.makepyfile(**{package: "x = 1"})

    result = session(pytester)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [each for each in result.errlines if each] == [f"ERROR: {line(f'{package}.py', package)}"]
    result.stdout.no_fnmatch_line("*Error*")
    session(pytester, "-k", "plain").assert_outcomes(passed=1, deselected=1)


def test_reports_are_missed_only_where_they_are_asked_for(pytester):
    pytester.makepyfile(reports="x = 1")

    session(pytester).assert_outcomes(passed=2)
    for conftest in (False, True):  # with one the folder is found from the start
        if conftest:
            pytester.makeconftest("")
        result = session(pytester, "--ddpsim-report", "made")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert [each for each in result.errlines if each] == [f"ERROR: {line('reports.py', 'reports')}"]


def test_under_xdist_each_marked_test_says_so(pytester):
    pytester.makepyfile(simulator="x = 1")

    result = session(pytester, "-p", "xdist", "-n", "1")

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([f"@pytest.mark.ranks: {line('simulator.py', 'simulator')}"])


def test_a_scenario_file_is_refused_in_one_line(pytester):
    pytester.mkpydir("simulator")
    pytester.makeconftest("")
    pytester.makefile(".toml", saved=IN_A_FILE)

    result = session(pytester, "saved.toml")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([line("simulator", "simulator")])


def test_a_scenario_file_needs_no_reports(pytester):
    pytester.makepyfile(reports="x = 1")
    pytester.makeconftest("")
    pytester.makefile(".toml", saved=f"{IN_A_FILE}summary = 'everybody sends first'")

    session(pytester, "saved.toml").assert_outcomes(passed=1)


def ddpsim(pytester, *words):
    command = [sys.executable, "-c", "import sys; from scenarios.cli import main; sys.exit(main())", *words]
    return subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["simulator", "ddp", "reports"])
def test_the_console_says_so_in_one_line(pytester, package):
    pytester.makepyfile(**{package: "x = 1"})

    done = ddpsim(pytester, "run", "send-send")  # from where `-c` is called stands first

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ddpsim: {line(f'{package}.py', package)}\n"


def test_the_console_says_so_of_a_file_that_is_found_later(pytester):
    """An editable installation is found last, after what lies beside the program."""
    folder = pytester.mkdir("program")
    (folder / "reports.py").write_text("")
    (folder / "program.py").write_text("def f(rank):\n    pass\n")
    start = f"""
import importlib.machinery, sys
class Last:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path or [{str(ROOT)!r}], target)
sys.path[:] = [entry for entry in sys.path if entry not in ("", {str(ROOT)!r})]
sys.meta_path.append(Last)
from scenarios.cli import main
sys.exit(main(["run", "program/program.py:f", *sys.argv[1:]]))
"""
    for words, status in (([], 0), (["--report", "made"], 2)):
        command = [sys.executable, "-c", start, *words]
        done = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
        assert done.returncode == status, done
    assert done.stderr == f"ddpsim: {line('program/reports.py', 'reports')}\n"
