"""Turn a hang in production into a test: a file for pytest, or a scenario that ddpsim can run and shrink."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Sequence
from pathlib import Path

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import Program
from ddpsim.simulator.records.as_program import program_of
from ddpsim.simulator.records.record_diagnosis import Diagnosis
from ddpsim.simulator.verdict import Code, Finding, Verdict


def check_form(path: Path) -> None:
    """Raise UsageError for a file type that cannot be written."""
    if path.suffix not in (".py", ".toml"):
        raise UsageError(f"--write-test is {str(path)!r}, expected OUT.py for pytest, or OUT.toml for ddpsim")


def written_test(diagnosis: Diagnosis, paths: Sequence[str], path: Path) -> str:
    """Write the test, and return a text on what it finds. Raises UsageError if the records show no failure."""
    if diagnosis.verdict is not Verdict.FAIL:
        raise UsageError("the records show no failure to reproduce in a test: leave --write-test out")
    program = program_of(diagnosis, folder=str(Path.cwd()))
    write = _written_for_pytest if path.suffix == ".py" else _written_scenario
    return write(program, diagnosis.findings[0], paths, path)


def _written_scenario(program: Program, leading: Finding, paths: Sequence[str], path: Path) -> str:
    from ddpsim.scenarios.files.saving import save
    from ddpsim.scenarios.files.value_scenarios import of_program

    scenario = of_program(program, name=str(path))
    expected = scenario.expected
    save(scenario, path, summary=f"the last calls of {' '.join(paths)}", cause=leading.summary)
    ranks = expected.ranks(scenario.world_size) if callable(expected.ranks) else expected.ranks
    odd = _odd(leading, expected.code, ranks)
    quoted = shlex.quote(str(path))
    found = expected.text(scenario.world_size)
    return f"test    {path} finds {found}{odd}\n  ddpsim run {quoted}\n  ddpsim shrink {quoted}"


def _written_for_pytest(program: Program, leading: Finding, paths: Sequence[str], path: Path) -> str:
    """Write a test for pytest, and return a text on what it finds and how to run it."""
    from ddpsim import simulate
    from ddpsim.scenarios.model import CLEAN, finds
    from ddpsim.scenarios.records.failing_test import test_of
    from ddpsim.simulator.whole_file import write_whole

    function = "test_" + re.sub(r"\W", "_", path.stem).removeprefix("test_")
    command = f"ddpsim diagnose {shlex.join(paths)} --write-test {shlex.quote(str(path))}"
    text = test_of(program, function=function, summary=f"{leading.summary}.", command=command)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): give a writable file") from None
    result = simulate(runpy.run_path(str(path))[function], program.world_size)
    first = next(iter(result.findings), None)
    expected = CLEAN if first is None else finds(first.code, first.ranks)
    odd = _odd(leading, expected.code, () if first is None else first.ranks)
    found = expected.text(program.world_size)
    return f"test    {path} finds {found}{odd}\n  pytest {shlex.quote(str(path))}"


def _odd(leading: Finding, code: Code | None, ranks: Sequence[int]) -> str:
    is_same = code is leading.code and tuple(ranks) == leading.ranks
    return "" if is_same else f", but the records show {leading.code}: they lack details that the test needs"
