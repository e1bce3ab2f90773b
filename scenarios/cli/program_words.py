"""A program in the words of a command line: what follows its name is its own, as with python and torchrun."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from typer.models import OptionInfo

from ddpsim.scenarios.cli import output

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.model import Scenario

_TOKEN = re.compile(r"s\d+:")
_REFUSED = 2
"""The exit status of a program that argparse, click or fire has ended because of its arguments."""


def with_program_as_one_word(words: Sequence[str], taking_values: Collection[str] = ()) -> list[str]:
    """The words of a command as typer takes them: the program and all that follows it are one argument, the first.

    `taking_values` are the options of the command whose next word is their value, and no program.

    `run --world-size 2 train.py --epochs 1` becomes `run --world-size 2 -- "train.py --epochs 1"`, with a replay token
    after it.
    """
    for index, word in enumerate(words):
        if words[index - 1] in taking_values:
            continue
        if word == "-m" or (word.endswith(".py") and not word.startswith("-")):
            tokens = [word for word in words[:index] if _TOKEN.match(word)]
            options = [word for word in words[:index] if word not in tokens]
            return [*options, "--", shlex.join(words[index:]), *tokens]
    return list(words)


def note_trailing_options(scenario: Scenario, command: Callable[..., Any], result: Result | None) -> None:
    """Say which options of the command are written after the program, if it refused them or cannot have read them.

    The program may have an option of the same name, so this says what the words are, not that they are wrong.
    """
    from ddpsim.simulator.launching.script import Script

    program = scenario.program
    if result is None or not isinstance(program, Script):
        return
    trailing = trailing_options(program.arguments, options_of(command))
    text = program.text()
    names = [word.partition("=")[0] for word in trailing if word.startswith("-")]
    if not names or all(name in text for name in names):
        return
    if program.ignores_arguments() or _is_refused(names, result.errors.values()):
        output.note(
            f"{shlex.join(trailing)} is written after {program.target}, so the program receives it; if it is for "
            f"ddpsim {command.__name__}, write it before {program.target}"
        )


def _is_refused(names: Sequence[str], errors: Iterable[BaseException]) -> bool:
    return any(
        error.code == _REFUSED if isinstance(error, SystemExit) else any(name in str(error) for name in names)
        for error in errors
    )


def trailing_options(arguments: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """The options among the arguments, with their values."""
    found: list[str] = []
    takes_value = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if takes_value or name in options:
            found.append(word)
        takes_value = name in options and options[name] and not equals
    return found


def options_of(command: Callable[..., Any]) -> dict[str, bool]:
    """The options of a command by name; True for those that take a value."""
    found = {}
    # Not by get_type_hints: in Python 3.10 it makes something else of what may be left out.
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, *marks = get_args(parameter.annotation)
        for mark in marks:
            if isinstance(mark, OptionInfo):
                # Beside Annotated, typer takes the first name of an option for its default.
                names = [each for each in (mark.default, *(mark.param_decls or ())) if isinstance(each, str)]
                for name in names or [f"--{parameter.name.replace('_', '-')}"]:
                    found[name] = kind is not bool
    return found
