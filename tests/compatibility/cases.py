"""The programs of examples/programs, each with the command that starts it."""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.outside import FRAMEWORKS, not_installed

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"

WORLD_SIZE = 2

_BY_PYTHON = frozenset({"spawn.py", "start_processes.py", "tutorial_processes.py"})
"""Those that start their ranks themselves."""

_OTHER_COMMANDS = {
    "train.py": ("train.py --workers 0", "train.py --workers 2 --epochs 2"),
    "sys_exit.py": ("sys_exit.py", "sys_exit.py --check"),
    "three_dimensions.py": ("three_dimensions.py --mesh 2 1 1", "three_dimensions.py --mesh 1 1 2"),
}
"""How they are started where that is not by their name alone."""

_PROJECTS = ("-m project.train --epochs 2",)


@dataclass(frozen=True, slots=True)
class Case:
    """A command line without what starts it."""

    command: str

    def __str__(self) -> str:
        return self.command

    @property
    def words(self) -> list[str]:
        """As a shell splits it."""
        return shlex.split(self.command)

    @property
    def path(self) -> Path:
        """The file that runs."""
        first, *others = self.words
        return FOLDER / (f"{others[0].replace('.', '/')}.py" if first == "-m" else first)

    @property
    def about(self) -> str:
        """What the program is: the first sentence of its file."""
        text = ast.get_docstring(ast.parse(self.path.read_text())) or ""
        return text.partition("\n")[0].removesuffix(".")

    @property
    def lacks(self) -> str | None:
        """Why the program cannot run here; None if it can."""
        return lacking(self.path.read_text())

    @property
    def starts_its_ranks(self) -> bool:
        """True if plain Python runs it."""
        return self.path.name in _BY_PYTHON


def lacking(source: str) -> str | None:
    """The frameworks that a program imports and that are not installed, in a line; None if there are none."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in names}
    return not_installed(*(name for name in FRAMEWORKS if name in imported))


def _cases() -> tuple[Case, ...]:
    commands = [*_PROJECTS, *(f"frameworks/{path.name}" for path in FOLDER.glob("frameworks/*.py"))]
    for path in FOLDER.glob("*.py"):
        commands += _OTHER_COMMANDS.get(path.name, (path.name,))
    return tuple(Case(command) for command in sorted(commands))


CASES = _cases()
