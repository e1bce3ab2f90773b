"""Options of a command that stand behind a program, and so are the program's: told if it has no use for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from typer.models import OptionInfo

from ddpsim.scenarios.cli import output

if TYPE_CHECKING:
    from ddpsim.scenarios.model import Scenario
    from ddpsim.simulator.launching.misplaced import Misplaced


@contextmanager
def own_arguments(scenario: Scenario, command: Callable[..., Any]) -> Iterator[Scenario]:
    """The scenario to run, by a command. Raises UsageError if options of the command turn out to stand behind it.

    Of those behind a program that ended too early to show whose they are, a line is said, and of other arguments
    that it does not look at: a word such as --ranks may have been meant for the command, too.
    """
    from ddpsim import UsageError
    from ddpsim.simulator.launching.misplaced import Misplaced
    from ddpsim.simulator.launching.program import Program

    program = scenario.program
    if not isinstance(program, Program) or not program.arguments:
        yield scenario
        return
    ours = misplaced_words(program.arguments, options_of(command))
    misplaced = Misplaced(ours or program.arguments)
    try:
        try:
            yield replace(scenario, program=replace(program, misplaced=misplaced))
        except UsageError:
            if not (ours and misplaced.why):
                raise
        if ours:
            _tell(misplaced, program.target, command.__name__)
        elif misplaced.is_unseen:
            output.note(
                f"{' '.join(program.arguments)} stands behind {program.target}, which does not look at its arguments: "
                "it changes nothing"
            )
    finally:
        misplaced.close()


def _tell(misplaced: Misplaced, program: str, command: str) -> None:
    """Say of options of the command behind the program that they are not the program's, or may not be."""
    from ddpsim import UsageError

    words = " ".join(misplaced.words)
    if misplaced.why:
        raise UsageError(
            f"{words} stands behind {program}, which {misplaced.why}; ddpsim {command} has such an option: put {words} "
            f"before {program}"
        )
    if misplaced.is_open:
        output.note(
            f"{words} stands behind {program}, which ended before it looked at its arguments: if it is meant "
            f"for ddpsim {command}, put it before {program}"
        )


def misplaced_words(arguments: Sequence[str], options: Mapping[str, bool]) -> list[str]:
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
