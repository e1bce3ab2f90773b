"""Options that several commands have in common: each set is declared once, and is one parameter of a command.

Under `@with_sets` typer, and whoever else reads the signature of the command, sees the options of the set in the place
of that parameter; the command is given what is made of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args

from ddpsim.scenarios.cli.options import (
    Alike,
    BackendName,
    BackendNames,
    ChakraFolder,
    Checks,
    ClogFolder,
    Faults,
    FlightRecorderFolder,
    Gpus,
    IsolationName,
    OneAtATime,
    Poison,
    Preload,
)
from ddpsim.simulator.imports import without_collections

if TYPE_CHECKING:
    from ddpsim.scenarios.records.writing import RecordFolders
    from ddpsim.scenarios.running.run_as import RunAs

Command = TypeVar("Command", bound=Callable[..., Any])


class OptionSet(NamedTuple):
    """Marks a parameter that stands for several options."""

    make: Callable[..., Any]
    """Makes the value; its parameters are the options."""
    without: tuple[str, ...] = ()
    """Those that the command does not have."""
    kinds: Mapping[str, Any] = {}
    """What is another option in the command, by name."""

    def options(self) -> list[Parameter]:
        """The parameters that the command has in the place of the marked one."""
        every = inspect.signature(self.make, eval_str=True).parameters.values()
        own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in every if each.name not in self.without]
        return [each.replace(annotation=self.kinds.get(each.name, each.annotation)) for each in own]


def with_sets(command: Command) -> Command:
    """The command, with the options of its sets in the place of the sets."""
    made: dict[str, tuple[OptionSet, list[Parameter]]] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        marked = [mark for mark in get_args(parameter.annotation) if isinstance(mark, OptionSet)]
        if marked:
            made[parameter.name] = marked[0], marked[0].options()
        parameters += marked[0].options() if marked else [parameter]

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        for name, (option_set, options) in made.items():
            given[name] = option_set.make(**{each.name: given.pop(each.name, each.default) for each in options})
        return command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called  # type: ignore[return-value]


def _run_as(
    isolation: IsolationName = None,
    gpus: Gpus = None,
    alike: Alike = False,
    preload: Preload = None,
    one_at_a_time: OneAtATime = False,
    backend_semantics: BackendName = None,
    check: Checks = None,
    poison: Poison = None,
    faults: Faults = None,
) -> Any:
    with without_collections():
        from ddpsim.scenarios.running.run_as import RunAs

    return RunAs(isolation, gpus, check, alike, preload or (), one_at_a_time, poison, backend_semantics, faults or ())


def _record_folders(
    flight_recorder: FlightRecorderFolder = None, clog: ClogFolder = None, chakra: ChakraFolder = None
) -> Any:
    with without_collections():
        from ddpsim.scenarios.records.writing import RecordFolders

    return RecordFolders(flight_recorder, clog, chakra)


HowRun = Annotated["RunAs", OptionSet(_run_as)]
HowRunOnBackends = Annotated["RunAs", OptionSet(_run_as, kinds={"backend_semantics": BackendNames})]
"""The same with several backends, as `backends_named` reads them."""
HowReplayed = Annotated["RunAs", OptionSet(_run_as, without=("alike",))]
HowDebugged = Annotated["RunAs", OptionSet(_run_as, without=("alike", "one_at_a_time", "poison"))]
Records = Annotated["RecordFolders", OptionSet(_record_folders)]
