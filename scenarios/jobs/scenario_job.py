"""A scenario on its way to real processes: its program, its engine, its time-out, and their environment."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ddpsim import UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.python_file import SUFFIXES
from ddpsim.scenarios.files.registry import registry
from ddpsim.scenarios.model import Scenario

LONGEST_SECONDS = 1200.0
"""gloo itself gives up after half an hour, and it must not be the first to speak."""

_OF_A_LAUNCHER = re.compile(
    r"(?:LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|TORCH_)|(?:RANK|WORLD_SIZE|OMP_NUM_THREADS)$"
)
"""Names of variables that torch's launcher sets, or we do."""


@dataclass(frozen=True, slots=True)
class ScenarioJob:
    """A scenario on its way to the processes."""

    name: str
    """By which a process finds it, if it is not pickled."""
    pickled: bytes | None
    """The scenario's program and arguments."""
    engine: Engine
    timeout_seconds: float
    folder: str
    """Where a path in the name begins."""
    environment: Mapping[str, str] = field(repr=False)
    """That of the process that starts the run, which may have changed since the server of processes has copied it."""
    alike: bool = False
    """Ranks start with the same seeds."""

    @classmethod
    def of(cls, scenario: Scenario, engine: Engine, timeout_seconds: float) -> ScenarioJob:
        """The job of running a scenario. Raises UsageError if other processes cannot be given it."""
        check_timeout(timeout_seconds)
        own = registry.get(scenario.name)
        is_known = own is not None and own.program is scenario.program and own.args == scenario.args
        pickled = None if is_known else _pickled(scenario)
        seconds = float(timeout_seconds)
        return cls(scenario.name, pickled, engine, seconds, os.getcwd(), dict(os.environ), scenario.alike)

    def enter(self) -> None:
        """Give this process folder and environment of the one that starts the run; what a launcher sets, stays."""
        os.chdir(self.folder)
        for name in [name for name in os.environ if name not in self.environment and not _OF_A_LAUNCHER.match(name)]:
            del os.environ[name]
        for name, value in self.environment.items():
            if not _OF_A_LAUNCHER.match(name):
                os.environ[name] = value

    def scenario(self) -> Scenario:
        """The scenario, in the process that is to run it."""
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
            "say how long a rank may stand still before it counts as hung"
        )


def _pickled(scenario: Scenario) -> bytes | None:
    """The program and its arguments; None where the processes find them in the file that the name gives."""
    program = scenario.program
    is_of_a_file = scenario.name.endswith(SUFFIXES) or scenario.name.rpartition(":")[0].endswith(SUFFIXES)
    if is_of_a_file:
        return None
    try:
        return pickle.dumps((program, scenario.args))
    except Exception as error:
        raise UsageError(
            f"{scenario.name} cannot be given to other processes ({' '.join(str(error).split())}), expected a function "
            "at the top level of a module: move it there, or name it as FILE.py:FUNCTION"
        ) from error


# --- the environment of the processes ---------------------------------------------------------------------------


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Let this process, and those that it starts in the block, have a variable, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def own_cache() -> Iterator[None]:
    """Give torch's compiler a folder for its cache that is removed after the block, unless the user has named one.

    Otherwise torch makes one among the temporary files, as soon as an optimizer or DDP is imported, and leaves it.
    """
    folders = tempfile.TemporaryDirectory(prefix="ddpsim-", ignore_cleanup_errors=True)
    with folders as folder, variable("TORCHINDUCTOR_CACHE_DIR", folder):
        yield
