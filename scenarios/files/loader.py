"""Find a scenario by its name in the registry, or in a file of the user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddpsim import UsageError
from ddpsim.scenarios.files.catalogue import read_catalogue
from ddpsim.scenarios.files.program_line import split_program_line
from ddpsim.scenarios.files.python_file import SUFFIXES, load_function, load_scenarios
from ddpsim.scenarios.files.registry import registry
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.simulator.launching.script import Script, environment_hash_seed

_EXPECTED = "expected a name in `ddpsim list`, FILE.toml, FILE.py:FUNCTION, or a program: FILE.py or -m MODULE"


def load(name: str) -> Scenario:
    """Return the scenario called `name`; or the scenario in a file, `FILE.toml` or `FILE.py:FUNCTION`; or a program.

    A plain function that takes the rank or nothing, and a program, become scenarios that are expected to pass. A
    program is a command line as for python: `FILE.py ...` or `-m MODULE ...`. Raises UsageError for an unknown name.
    """
    if not isinstance(name, str):
        raise UsageError(f"scenario is {name!r}, expected a name: see `ddpsim list`")
    if words := split_program_line(name):
        program = Script(tuple(words), counts_ranks=True)
        program.check_source()
        return Scenario(name, "", program, min_world_size=1, hash_seed=environment_hash_seed())
    file, _, function = name.rpartition(":")
    if name.endswith(SUFFIXES):
        file, function = name, ""
    if file.endswith(SUFFIXES):
        return _load_from_file(name, Path(file), function)
    if name not in registry:
        if problem := registry.problem_of_file(name):
            raise UsageError(problem)
        advice = suggest_nearest_name(name, read_catalogue().entries) or "see `ddpsim list`"
        raise UsageError(f"scenario is {name!r}, {_EXPECTED}: {advice}")
    return registry[name]


def _load_from_file(name: str, path: Path, function: str) -> Scenario:
    if path.suffix == ".toml" and function:
        raise UsageError(f"scenario is {name!r}, but a TOML file has one scenario: leave out {f':{function}'!r}")
    if not _is_file(path):
        raise UsageError(f"scenario is {name!r}, but there is no file {str(path)!r}: correct the path")
    if path.suffix == ".toml":
        (scenario,) = load_scenarios(path, load).values()
        return replace(scenario, name=name)  # the replay line needs it to find the scenario again
    program = load_function(path, function)
    if isinstance(program, Scenario):
        return replace(program, name=name)
    return Scenario(name, program.__doc__ or "", program, min_world_size=1)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as for a name that is not possible for a file
        return False
