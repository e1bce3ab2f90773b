"""Sets of options that several commands share.

Each set is one parameter of a command function, marked by an `OptionSet`. `@expand_option_sets` replaces this parameter
in the function's signature by the options of the set, so that typer parses them. The function receives one value, made
from all options of the set. The options of a run come from the fields of `RunOptions`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer

from ddpsim.simulator.run_options import DEFAULTS, OPTIONS, OptionForms, RunOptions

Command = TypeVar("Command", bound=Callable[..., Any])


class OptionSet(NamedTuple):
    """Marks a parameter of a command function: the parameter's value is made from several command-line options."""

    make: Callable[..., Any]
    """Makes the parameter's value; it is called with the options as keywords."""
    options: Callable[[str], Sequence[Parameter]]
    """Returns the options of the set, for the command of the given name."""


def expand_option_sets(command: Command) -> Command:
    """Return the command with each marked parameter replaced by the options of its set."""
    made: dict[str, tuple[OptionSet, Sequence[Parameter]]] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        marks = [mark for mark in get_args(parameter.annotation) if isinstance(mark, OptionSet)]
        if marks:
            made[parameter.name] = marks[0], marks[0].options(command.__name__)
        parameters += made[parameter.name][1] if marks else [parameter]

    @functools.wraps(command)
    def call_with_option_sets(**given: Any) -> Any:
        for name, (option_set, options) in made.items():
            given[name] = option_set.make(**{each.name: given.pop(each.name, each.default) for each in options})
        return command(**given)

    call_with_option_sets.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call_with_option_sets.__annotations__ = {each.name: each.annotation for each in parameters}
    return call_with_option_sets  # type: ignore[return-value]


def _parameters_of_run_options(command: str) -> list[Parameter]:
    """Return the options of a run that the named command takes, as parameters for typer."""
    hints = get_type_hints(RunOptions)
    taken = {name: each for name, each in OPTIONS.items() if each.help and command not in each.not_of}
    return [_parameter_of_option(name, each, hints[name], command) for name, each in taken.items()]


def _parameter_of_option(name: str, option: OptionForms, hint: Any, command: str) -> Parameter:
    flag, kind = option.console_flag(name), hint if hint is bool else hint | None
    metavar, text = option.metavar, option.help
    if get_origin(hint) is tuple:
        kind = list[str] | None
    if hint == bool | None:
        flag += f"/--no-{flag.removeprefix('--')}"
    if option.takes_several_in == command:
        metavar, text = f"{metavar},...", f"{text.rstrip('.')}; several, or `all`, one after another."
    text += f"  [default: {option.default}]" if option.default else ""
    declared = typer.Option(flag, metavar=metavar, help=text)
    default = False if hint is bool else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared])


def _given_run_options(**options: Any) -> Mapping[str, Any]:
    """Return the options that the user gave. A flag that is off by default counts as given only if it is on."""
    is_off = {name for name, value in options.items() if value is False and DEFAULTS[name] is False}
    return {name: value for name, value in options.items() if name not in is_off and value not in (None, [])}


OptionsOfRun = Annotated[Mapping[str, Any], OptionSet(_given_run_options, _parameters_of_run_options)]
"""The type of a command's parameter that receives the given options of a run, by name."""
