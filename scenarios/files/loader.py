"""Find a scenario by its name in the registry, or in a file of the user."""

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

from ddpsim import UsageError
from ddpsim.scenarios.files.catalogue import FOLDERS, PACKAGE, read_catalogue, scenario_files
from ddpsim.scenarios.files.program_line import split_program_line
from ddpsim.scenarios.files.python_file import (
    SUFFIXES,
    import_problem,
    load_function,
    load_scenarios,
    scenarios_in_module,
)
from ddpsim.scenarios.model import TWIN, Scenario
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.ranks.function import makes_own_group
from ddpsim.simulator.launching.script import Script, environment_hash_seed

_EXPECTED = "expected a name in `ddpsim list`, FILE.toml, FILE.py:FUNCTION, or a program: FILE.py or -m MODULE"
_FUNCTION = re.compile(r"^@scenario\(.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def load(name: str) -> Scenario:
    """Return the scenario called `name`; or the scenario in a file, `FILE.toml` or `FILE.py:FUNCTION`; or a program.

    A program is a command line as for python: `FILE.py ...` or `-m MODULE ...`. A program, or a plain function of the
    rank or of no argument, becomes a scenario that is expected to pass. Raises UsageError for an unknown name.
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
    has_group = not makes_own_group(program)
    return Scenario(name, program.__doc__ or "", program, min_world_size=1, default_group=has_group)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as for a name that is not possible for a file
        return False


class Registry(Mapping[str, Scenario]):
    """The scenarios of some folders, by default of this package, in the order of their names."""

    def __init__(self, root: Path = PACKAGE, folders: Iterable[str] = FOLDERS) -> None:
        self._root, self._folders = root, tuple(folders)

    @cached_property
    def _paths(self) -> Mapping[str, Path]:
        """The file of each scenario that repairs no other."""
        return {name: path for path in scenario_files(self._root, self._folders) for name in _names_in(path)}

    @property
    def _files(self) -> Iterable[Path]:
        return dict.fromkeys(self._paths.values())

    @property
    def problems_of_files(self) -> tuple[str, ...]:
        """For each file that could not be loaded, the reason."""
        return tuple(problem for path in self._files if (problem := _load_file(path)[1]))

    def problem_of_file(self, name: str) -> str:
        """Return why the file with this scenario name cannot be loaded; "" if it can be loaded or does not exist."""
        return _load_file(self._paths[name])[1] if name in self._paths else ""

    def __getitem__(self, name: str) -> Scenario:
        path = self._paths.get(name) or self._paths.get(name.removesuffix(TWIN))
        for scenario in _load_file(path)[0] if path else ():
            if scenario.name == name:
                return scenario
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(scenario.name for path in self._files for scenario in _load_file(path)[0]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _names_in(path: Path) -> list[str]:
    """Return the names that scenarios have by the text of their file: those of the functions below a `@scenario`, or
    that of the file. Importing all files takes seconds."""
    functions = _FUNCTION.findall(path.read_text(encoding="utf-8")) if path.suffix == ".py" else ()
    return [name.replace("_", "-") for name in functions or [path.stem]]


@cache
def _load_file(path: Path) -> tuple[tuple[Scenario, ...], str]:
    """Return the scenarios in a file and ""; or no scenarios, and the reason why the file cannot be loaded."""
    try:
        found = load_scenarios(path) if path.suffix != ".py" else scenarios_in_module(_import_file(path))
    except UsageError as error:
        return (), str(error)
    names = _names_in(path)
    for scenario in found.values():
        if scenario.name.removesuffix(TWIN) not in names:  # it could not be found by this name
            problem = f"{path} has a scenario named {scenario.name!r}, expected {' or '.join(map(repr, names))}"
            return (), f"{problem}: rename the scenario or the file"
    return tuple(found.values()), ""


def _import_file(path: Path) -> ModuleType:
    try:
        return importlib.import_module(f"ddpsim.scenarios.{path.parent.name}.{path.stem}")
    except (Exception, SystemExit) as error:
        raise UsageError(import_problem(path, error)) from error


registry = Registry()
"""The scenarios that come with ddpsim."""
