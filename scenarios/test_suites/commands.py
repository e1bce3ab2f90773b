"""Runs commands of a test that start ranks, such as torchrun, by `ddpsim run`: launcher and program as they are.

The command's exit status and output are those of `ddpsim run`, so that a finding fails the test as a failed command.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from ddpsim.scenarios.test_suites.outside import OutsideProcesses
from ddpsim.scenarios.test_suites.ranks_of_test import RanksOfTest
from ddpsim.simulator.rank_processes.in_children.sitecustomize import NAME
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_MODULES = {
    ("torchrun",): "torch.distributed.run",
    ("accelerate", "launch"): "accelerate.commands.launch",
    ("accelerate-launch",): "accelerate.commands.launch",
}
"""The commands that start ranks, each with the module that Python would run for it."""

_OTHER_MODULES = [[name] for name in ("torch.distributed.launch", *_MODULES.values())]


def words_of_launcher(words: Sequence[str]) -> list[str]:
    """Return a command as `-m MODULE ARGUMENTS` if it starts ranks, or [] if it does not."""
    name, *rest = words or [""]
    if PurePath(name).name.startswith("python"):
        options = next((number for number, word in enumerate(rest) if word not in ("-u", "-B")), len(rest))
        is_launcher = rest[options : options + 1] == ["-m"] and rest[options + 1 : options + 2] in _OTHER_MODULES
        return rest[options:] if is_launcher else []
    for command, module in _MODULES.items():
        if (PurePath(name).name, *rest[: len(command) - 1]) == command:
            return ["-m", module, *rest[len(command) - 1 :]]
    return []


class CommandsOfTest:
    """The commands that the test which runs now starts."""

    def __init__(self, ranks: RanksOfTest, replaced: ReplacedAttributes, outside: OutsideProcesses) -> None:
        self._ranks = ranks
        self._outside = outside
        replaced.replace_attribute(subprocess.Popen, "__init__", self._start_replacement)

    def _start_replacement(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(popen: Any, args: Any, *rest: Any, **named: Any) -> None:
            if self._ranks.attempt is None or len(rest) > 9:  # the environment by position: nobody writes that
                original(popen, args, *rest, **named)
                return
            words = _words(args, is_shell=bool(named.get("shell")))
            launched = words_of_launcher(words)
            given = named.get("env")
            environment = dict(os.environ if given is None else given)
            if launched:
                args = [sys.executable, "-m", "ddpsim", "run", *launched]
                named["shell"] = False
                environment.pop(NAME, None)
            elif NAME in environment:
                environment[NAME] = self._outside.starter("subprocess", str(self._ranks.attempt.item.path))
            original(popen, args, *rest, **{**named, "env": environment})

        return start


def _words(args: Any, *, is_shell: bool) -> list[str]:
    try:
        words = shlex.split(args) if isinstance(args, str) else [os.fsdecode(each) for each in args]
    except (TypeError, ValueError):
        return []
    return [] if is_shell and set("".join(words)) & set("|&;<>$`") else words
