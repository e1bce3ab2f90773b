"""A scenario to run on real processes: its program, engine, time-out, and environment."""

import os
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from ddpsim import UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load, registry
from ddpsim.scenarios.files.python_file import SUFFIXES
from ddpsim.scenarios.model import Scenario
from ddpsim.simulator.launching.script import with_variable

LONGEST_SECONDS = 1200.0
"""The longest time-out allowed. It is shorter than gloo's own time-out of half an hour."""

_OF_A_LAUNCHER = re.compile(
    r"(?:LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|TORCH_)|(?:RANK|WORLD_SIZE|OMP_NUM_THREADS)$"
)
"""The environment variables that torch's launcher or ddpsim sets for each rank."""


@dataclass(frozen=True, slots=True)
class ScenarioJob:
    """A scenario in a form that can be sent to other processes."""

    name: str
    """The name by which another process loads the scenario, if the program is not pickled."""
    pickled: bytes | None
    """The scenario's program and arguments, pickled."""
    engine: Engine
    timeout_seconds: float
    folder: str
    """The folder to which a relative path in `name` refers."""
    environment: Mapping[str, str] = field(repr=False)
    """The environment of the process that starts the run, because the fork server may have an older copy."""
    alike: bool = False
    """True if all ranks start with the same seeds."""

    @classmethod
    def from_scenario(cls, scenario: Scenario, engine: Engine, timeout_seconds: float) -> "ScenarioJob":
        """Return the job that runs a scenario. Raises UsageError if it cannot be sent to other processes."""
        check_timeout(timeout_seconds)
        own = registry.get(scenario.name)
        is_known = own is not None and own.program is scenario.program and own.args == scenario.args
        pickled = None if is_known else _pickle_program(scenario)
        seconds = float(timeout_seconds)
        return cls(scenario.name, pickled, engine, seconds, os.getcwd(), dict(os.environ), scenario.alike)

    def apply_environment(self) -> None:
        """Use the folder and environment of the process that started the run, without a launcher's variables."""
        os.chdir(self.folder)
        for name in [name for name in os.environ if name not in self.environment and not _OF_A_LAUNCHER.match(name)]:
            del os.environ[name]
        for name, value in self.environment.items():
            if not _OF_A_LAUNCHER.match(name):
                os.environ[name] = value

    def load_scenario(self) -> Scenario:
        """Return the scenario, in the rank process that runs it."""
        if self.pickled is None:
            return load(self.name)
        program, args = pickle.loads(self.pickled)
        return Scenario(self.name, "", program, args=args)


def check_timeout(seconds: float) -> None:
    """Raise UsageError for a time-out that no process can wait for."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= LONGEST_SECONDS:
        raise UsageError(
            f"timeout is {seconds!r}, expected more than 0 and at most {LONGEST_SECONDS:g} seconds: "
            "say how long a rank may make no progress before it counts as hung"
        )


def _pickle_program(scenario: Scenario) -> bytes | None:
    """Return the scenario's program and arguments, pickled.

    Return None if other processes load the program from the file in the scenario's name.
    """
    if scenario.name.endswith(SUFFIXES) or scenario.name.rpartition(":")[0].endswith(SUFFIXES):
        return None
    try:
        return pickle.dumps((scenario.program, scenario.args))
    except Exception as error:
        raise UsageError(
            f"{scenario.name} cannot be given to other processes ({' '.join(str(error).split())}), expected a function "
            "at the top level of a module: move it there, or name it as FILE.py:FUNCTION"
        ) from error


def set_variable(name: str, value: str) -> AbstractContextManager[None]:
    """In this block, set a variable for this process and those that it starts, unless the user has set it."""
    return nullcontext() if name in os.environ else with_variable(name, value)


@contextmanager
def use_own_compiler_cache() -> Iterator[None]:
    """In this block, give torch's compiler a temporary cache folder, unless the user has named a folder.

    Otherwise torch makes a folder when an optimizer or DDP is imported, and never removes it.
    """
    folders = tempfile.TemporaryDirectory(prefix="ddpsim-", ignore_cleanup_errors=True)
    with folders as folder, set_variable("TORCHINDUCTOR_CACHE_DIR", folder):
        yield
