"""What several commands take, and how they say what is wrong with it.

No torch here: `--help` shows these. What has to know the scenarios imports them when it is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer.models import OptionInfo

from ddpsim.simulator.backend_semantics import BACKENDS
from ddpsim.simulator.policies.named import DEFAULT, DRAWING, RUNNING, draws, listed

if TYPE_CHECKING:
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.files.catalogue import Listed

Each = TypeVar("Each", bound="Listed")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A name from `ddpsim list`, FILE.toml, or FILE.py:FUNCTION, where FUNCTION takes the rank, or nothing; or "
        "a program that each rank runs, FILE.py or -m MODULE, followed by its own arguments.",
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(
        "--world-size",
        "--nproc-per-node",
        "--nproc_per_node",
        help="How many ranks.  [default: the scenario's own, and 4 for a program]",
        show_default=False,
    ),
]
_SYNCHRONISES = "The engine that synchronises the replicas:"
_OWN_ENGINE = "[default: torch, unless a file says otherwise]"
EngineOrBoth = Annotated[str, typer.Option("--engine", help=f"{_SYNCHRONISES} torch, ddp or both.")]
BothOrEngine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help=f"{_SYNCHRONISES} torch, ddp or both.  [default: both, and torch for a program]",
        show_default=False,
    ),
]
OwnOrEngines = Annotated[
    str | None, typer.Option("--engine", help=f"{_SYNCHRONISES} torch, ddp or both.  {_OWN_ENGINE}", show_default=False)
]
OwnOrEngine = Annotated[
    str | None, typer.Option("--engine", help=f"{_SYNCHRONISES} torch or ddp.  {_OWN_ENGINE}", show_default=False)
]
PolicyName = Annotated[
    str, typer.Option("--policy", help=f"The policy that chooses which rank runs next: {listed(RUNNING)}.")
]
OwnOrPolicy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help=f"The policy that chooses which rank runs next: {listed(RUNNING)}.  "
        f"[default: the schedule of a file, or {DEFAULT}]",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help=f"What {listed(DRAWING, 'and')} draw from.")]
TransportName = Annotated[
    str,
    typer.Option(
        "--transport", help="How bytes move: memory or gloo under the simulator, or processes, real and free-running."
    ),
]
SimulatedTransport = Annotated[str, typer.Option("--transport", help="How bytes move: memory or gloo.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="On processes: a rank without progress for so long counts as hung.  [default: 10]",
        show_default=False,
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only those with this tag; given again, those with all of them.", show_default=False),
]


def _folder(text: str) -> Path:
    """An empty text, as of a variable of the shell that is not set, is not the working folder."""
    if not text:
        raise typer.BadParameter("it is empty, expected a folder: give one, or . for the working folder")
    return Path(text)


ReportFolder = Annotated[
    Path | None,
    typer.Option(
        "--report",
        parser=_folder,
        metavar="DIR",
        help="Write reports into this folder: HTML, text, JSON and a Chrome trace.",
        show_default=False,
    ),
]
FlightRecorderFolder = Annotated[
    Path | None,
    typer.Option(
        "--flight-recorder",
        parser=_folder,
        metavar="DIR",
        help="Write what torch's flight recorder would have left into this folder: a dump of each rank.",
        show_default=False,
    ),
]
ClogFolder = Annotated[
    Path | None,
    typer.Option(
        "--clog",
        parser=_folder,
        metavar="DIR",
        help="Write what torchcomms' clog would have left into this folder: a log of each rank.",
        show_default=False,
    ),
]
ChakraFolder = Annotated[
    Path | None,
    typer.Option(
        "--chakra",
        parser=_folder,
        metavar="DIR",
        help="Write Chakra execution traces into this folder, one of each rank: for those who simulate speed.",
        show_default=False,
    ),
]
Opens = Annotated[
    bool, typer.Option("--open", help="Show the report in a browser; without --report, from a temporary folder.")
]


def saved_as(what: str) -> OptionInfo:
    """The option that names the file of a scenario to save."""
    option: OptionInfo = typer.Option("--output", "-o", metavar="OUT.toml", help=what, show_default=False)
    return option


def engines_named(name: str) -> tuple[Engine, ...]:
    """The engine of that name, or all of them for "both". Raises UsageError if there is none."""
    from ddpsim import UsageError
    from ddpsim.scenarios.engines import Engine

    names = [*(engine.value for engine in Engine), "both"]
    if name not in names:
        raise UsageError(f"engine is {name!r}, expected one of {', '.join(names)}: give one of these names")
    return tuple(Engine) if name == "both" else (Engine(name),)


def backends_named(names: str | None, own: str) -> tuple[str, ...]:
    """The backends of these names, or all of them for "all". Raises UsageError for one that there is not."""
    from ddpsim import UsageError

    if names is None:
        return (own,)
    chosen = tuple(each.strip() for each in names.split(","))
    if chosen == ("all",):
        return tuple(BACKENDS)
    for name in chosen:
        if name not in BACKENDS:
            raise UsageError(
                f"backend semantics are {name!r}, expected one of {', '.join(BACKENDS)}, all: give one of these names, "
                "or several with commas between"
            )
    if twice := [name for name, times in Counter(chosen).items() if times > 1]:
        raise UsageError(f"backend semantics are {names!r}, which has {twice[0]} twice: name each once")
    return chosen


def how_text(transport: str, policy: str | None, seed: int | range, choices: Sequence[int] = ()) -> str:
    """Transport and policy, as a head line names them."""
    if transport == "processes":
        return "on processes"
    on = "" if transport == "memory" else f"on {transport}  "
    if policy is None and choices:
        from ddpsim.simulator.choices import choices_text

        return f"{on}schedule {choices_text(choices)}"
    policy = policy or DEFAULT
    seeds = f"seeds {seed[0]} to {seed[-1]}" if isinstance(seed, range) else f"seed {seed}"
    return f"{on}policy {policy}" + (f", {seeds}" if draws(policy) else "")


def by_text(engine: Engine) -> str:
    """The engine, as a head line names it where it is not the one that people expect."""
    return "" if engine.value == "torch" else f"engine {engine.value}  "


@contextmanager
def prepared_for(transport: str) -> Iterator[None]:
    """Keep what several runs on a transport share."""
    if transport != "processes":
        yield
        return
    from ddpsim.scenarios.jobs.job_launcher import standing_by

    with standing_by():
        yield


def tagged(scenarios: Mapping[str, Each], tags: Iterable[str]) -> dict[str, Each]:
    """Those that have all the tags. Raises UsageError for a tag that none has, and if none is left."""
    from ddpsim import UsageError
    from ddpsim.scenarios.names import nearest

    wanted = list(tags)
    known = sorted({tag for scenario in scenarios.values() for tag in scenario.tags})
    for tag in wanted:
        if tag not in known:
            advice = nearest(tag, known) or "give one of these"
            raise UsageError(f"tag is {tag!r}, expected one of {', '.join(known) or 'none'}: {advice}")
    found = {name: scenario for name, scenario in scenarios.items() if set(wanted) <= set(scenario.tags)}
    if wanted and not found:
        raise UsageError(f"tags are {', '.join(wanted)}, expected some that one scenario has all of: leave one out")
    return found
