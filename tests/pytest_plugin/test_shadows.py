"""A file of the user's that has our name: one line where it is in the way, and none elsewhere."""

import os
import subprocess
import sys

import pytest

TESTS = """
import pytest

@pytest.mark.ranks(2)
def test_marked(rank):
    pass

def test_plain():
    pass
"""
IN_A_FILE = 'ddpsim = 1\nscenario = "send-send"\n'
FOLDERS = ("simulator", "ddp", "scenarios", "reports")
"""Names of folders of ours, which users give to files of theirs; they are nobody's but theirs."""


def line(name):
    return (
        f"{name} shadows the package 'ddpsim', expected no other module of that name: rename it, or run from another "
        "folder"
    )


def python(pytester, start, *arguments):
    """A process that finds in the current folder nothing that `start` does not let it find."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = f"import os, sys; sys.path[:] = [each for each in sys.path if each not in ('', os.getcwd())]; {start}"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=pytester.path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def session(pytester, *arguments):
    """Plain pytest: the folder of the first test file stands first where Python looks for modules."""
    pytester.makepyfile(test_it=TESTS)
    start = "import ddpsim.scenarios.pytest_plugin as plugin, pytest; sys.exit(pytest.main(sys.argv[1:], [plugin]))"
    return python(pytester, start, "-p", "no:cacheprovider", "-p", "no:ddpsim", "--rootdir=.", *arguments)


def console(pytester, *words):
    return python(pytester, "from ddpsim.scenarios.cli import main; sys.exit(main())", *words)


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_a_marked_test_is_refused_in_one_line(pytester, is_folder):
    if is_folder:
        pytester.mkpydir("ddpsim")
    else:
        pytester.makepyfile(ddpsim="x = 1")

    done = session(pytester)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.split("\n") == [f"ERROR: {line('ddpsim' if is_folder else 'ddpsim.py')}", "", ""]
    assert "Error" not in done.stdout
    assert "1 passed, 1 deselected" in session(pytester, "-k", "plain").stdout


def test_a_scenario_file_is_refused_in_one_line(pytester):
    pytester.makepyfile(ddpsim="x = 1")
    pytester.makeconftest("")
    pytester.makefile(".toml", saved=IN_A_FILE)

    done = session(pytester, "saved.toml")

    assert "1 error" in done.stdout
    assert f"\n{line('ddpsim.py')}\n" in done.stdout


@pytest.mark.tier("ci")
def test_names_of_our_folders_are_free(pytester):
    """All of them at once: each is imported by the test, and none is ours."""
    own = {name: f"mine = {name!r}" for name in FOLDERS}
    imports = "".join(f"import {name}\nassert {name}.mine == {name!r}\n" for name in FOLDERS)
    pytester.makepyfile(**own, test_own=imports + TESTS)
    pytester.makefile(".toml", saved=f"{IN_A_FILE}summary = 'everybody sends first'")

    assert "3 passed" in session(pytester, "test_own.py", "saved.toml", "--ddpsim-report", "made").stdout


@pytest.mark.tier("nightly")
def test_the_console_takes_a_program_with_such_files_beside_it(pytester):
    folder = pytester.mkdir("program")
    for name in FOLDERS:
        (folder / f"{name}.py").write_text(f"mine = {name!r}\n")
    names = ", ".join(FOLDERS)
    (folder / "program.py").write_text(f"import {names}\ndef f(rank):\n    print([each.mine for each in ({names})])\n")

    done = console(pytester, "run", "program/program.py:f", "--world-size", "2", "--report", "made")

    assert done.returncode == 0, done
    assert done.stdout.count(str(list(FOLDERS))) == 2


def test_the_console_names_what_lies_first_on_the_path(pytester):
    pytester.makepyfile(ddpsim="x = 1")

    done = python(
        pytester,
        "from ddpsim.scenarios.cli import main; sys.path.insert(0, ''); sys.exit(main())",
        "run",
        "send-send",
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ddpsim: {line('ddpsim.py')}\n"
