"""The arguments and options that several commands share, and the checks of their values.

`--help` shows the options without importing torch: functions that need the scenarios import them when called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ddpsim.simulator.backend_semantics import BACKENDS
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.named import DEFAULT, DRAWING, RUNNING, join_names, uses_seed

if TYPE_CHECKING:
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.files.catalogue import Listed
    from ddpsim.simulator.exploration.workers import Workers

Each = TypeVar("Each", bound="Listed")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A name from `ddpsim list`, FILE.toml, or FILE.py:FUNCTION, a function of rank, of rank and world_size or "
        "of nothing; or a program that each rank runs, FILE.py or -m MODULE, followed by its own arguments.",
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(
        "--world-size",
        "--nproc-per-node",
        "--nproc_per_node",
        help="Number of ranks; with --nproc-per-node, of those on each of --nnodes.  [default: the scenario's own; 4 "
        "for a program]",
    ),
]


def _engine_option(values: str) -> Any:
    return typer.Option(help=f"The engine that synchronises the replicas: {values}")


EngineOrBoth = Annotated[str, _engine_option("torch, ddp or both.")]
BothOrEngine = Annotated[str | None, _engine_option("torch, ddp or both.  [default: both; torch for a program]")]
OwnOrEngines = Annotated[str | None, _engine_option("torch, ddp or both.  [default: the scenario file's, or torch]")]
OwnOrEngine = Annotated[str | None, _engine_option("torch or ddp.  [default: the scenario file's, or torch]")]
PolicyName = Annotated[str, typer.Option(help=f"The policy that chooses which rank runs next: {join_names(RUNNING)}.")]
OwnOrPolicy = Annotated[
    str | None,
    typer.Option(
        help=f"The policy that chooses which rank runs next: {join_names(RUNNING)}.  "
        f"[default: the scenario file's schedule, or {DEFAULT}]"
    ),
]
Seed = Annotated[int, typer.Option(help=f"The random seed of policies {join_names(DRAWING, 'and')}.")]
TransportName = Annotated[
    str, typer.Option(help="How bytes move: memory or gloo (simulated), or processes (real ones, not scheduled).")
]
SimulatedTransport = Annotated[str, typer.Option(help="How bytes move: memory or gloo.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="With --transport processes: a rank without progress for so long counts as hung.  [default: 10]",
    ),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", help="Only those with this tag; given again, those with all of them.")
]


def _parse_folder(text: str) -> Path:
    """Return the folder of an option.

    Refuse "", for instance from an unset shell variable, because Path would read it as the working folder.
    """
    if not text:
        raise typer.BadParameter("it is empty, expected a folder: give one, or . for the working folder")
    return Path(text)


def folder_option(flag: str, text: str) -> Any:
    """Return an option whose value is a folder to write into."""
    return typer.Option(flag, parser=_parse_folder, metavar="DIR", help=text)


ReportFolder = Annotated[
    Path | None, folder_option("--report", "Write reports into this folder: HTML, text, JSON and a Chrome trace.")
]
Opens = Annotated[
    bool, typer.Option("--open", help="Show the report in a browser; without --report, from a temporary folder.")
]


def output_option(what: str) -> Any:
    """Return the option `--output` with this help text. Its value is the file to save a scenario to."""
    return typer.Option("--output", "-o", metavar="OUT.toml", help=what)


Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", help="Number of worker processes.  [default: 1; on a cluster, all]")
]
Backend = Annotated[str, typer.Option(help="What runs the workers: loky (this machine), dask or ray.")]
Cluster = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of a running cluster's scheduler.")]


def workers_named(jobs: int | None, backend: str, cluster: str | None) -> Workers:
    """Return the workers of these options. Raises UsageError for options that do not fit together."""
    from ddpsim.simulator.exploration.workers import WorkerBackend, Workers

    backends = [each.value for each in WorkerBackend]
    if backend not in backends:
        raise UsageError(f"backend is {backend!r}, expected one of {', '.join(backends)}: give one of these names")
    return Workers(jobs, WorkerBackend(backend), cluster or "")


def engines_named(name: str) -> tuple[Engine, ...]:
    """Return the engine of that name, or both engines for "both". Raises UsageError for another name."""
    from ddpsim.scenarios.engines import Engine

    names = [*(engine.value for engine in Engine), "both"]
    if name not in names:
        raise UsageError(f"engine is {name!r}, expected one of {', '.join(names)}: give one of these names")
    return tuple(Engine) if name == "both" else (Engine(name),)


def backends_named(names: str | None, own: str) -> tuple[str, ...]:
    """Return the backends in a list like "gloo,nccl", or every one for "all". Raises UsageError for an unknown name."""
    if names is None:
        return (own,)
    chosen = tuple(each.strip() for each in names.split(","))
    if chosen == ("all",):
        return tuple(BACKENDS)
    for name in chosen:
        if name not in BACKENDS:
            raise UsageError(
                f"backend semantics are {name!r}, expected one of {', '.join(BACKENDS)}, all: give one of these names, "
                "or several separated by commas"
            )
        if chosen.count(name) > 1:
            raise UsageError(f"backend semantics are {names!r}, which has {name} twice: name each once")
    return chosen


def schedule_source_text(transport: str, policy: str | None, seed: int | range, choices: Sequence[int] = ()) -> str:
    """Return the transport and the scheduling policy as the head line of a run shows them."""
    if transport == "processes":
        return "on processes"
    on = "" if transport == "memory" else f"on {transport}  "
    if policy is None and choices:
        from ddpsim.simulator.choices import choices_text

        return f"{on}schedule {choices_text(choices)}"
    policy = policy or DEFAULT
    seeds = f"seeds {seed[0]} to {seed[-1]}" if isinstance(seed, range) else f"seed {seed}"
    return f"{on}policy {policy}" + (f", {seeds}" if uses_seed(policy) else "")


def engine_text(engine: Engine) -> str:
    """Return the engine as the head line of a run shows it; "" for torch's engine, the default."""
    return "" if engine.value == "torch" else f"engine {engine.value}  "


def keep_servers_for(transport: str) -> AbstractContextManager[object]:
    """Return a context that keeps the fork servers, from which the ranks of runs on real processes are forked."""
    if transport != "processes":
        return nullcontext()
    from ddpsim.scenarios.jobs.job_launcher import keep_fork_servers

    return keep_fork_servers()


def scenarios_with_tags(scenarios: Mapping[str, Each], tags: Iterable[str]) -> dict[str, Each]:
    """Return the scenarios that have all these tags.

    Raises UsageError for an unknown tag, and if no scenario has all tags.
    """
    from ddpsim.scenarios.names import suggest_nearest_name

    wanted = list(tags)
    known = sorted({tag for scenario in scenarios.values() for tag in scenario.tags})
    for tag in wanted:
        if tag not in known:
            advice = suggest_nearest_name(tag, known) or "give one of these"
            raise UsageError(f"tag is {tag!r}, expected one of {', '.join(known) or 'none'}: {advice}")
    found = {name: scenario for name, scenario in scenarios.items() if set(wanted) <= set(scenario.tags)}
    if wanted and not found:
        raise UsageError(f"tags are {', '.join(wanted)}, but no scenario has all of them: leave one out")
    return found
