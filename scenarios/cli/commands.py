"""The commands of `ddpsim`, and its exit status.

    0  as expected (also a scenario that is expected to deadlock, and does)
    1  another verdict or finding than expected
    2  usage error: one line on stderr says what was found, what was expected and what to do
    3  unknown: a budget ran out

`simulator` and the scenarios are imported inside the commands: they need torch, which takes a second to import, and
`--help` or a mistyped option need none of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli import output

if TYPE_CHECKING:
    from scenarios.model import Scenario
    from simulator import Result

_AS_EXPECTED, _OTHERWISE, _USAGE_ERROR, _UNKNOWN = range(4)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `ddpsim list`, or FILE.py:FUNCTION of your own.")
]
WorldSize = Annotated[
    int | None, typer.Option(help="How many ranks.  [default: the scenario's own]", show_default=False)
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ddpsim` with these arguments, by default those of the process, and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our few signs must not end the run
    try:
        status = app(args=None if arguments is None else list(arguments), prog_name="ddpsim", standalone_mode=False)
    except Exception as error:
        message = _usage_message(error)
        if message is None:
            raise
        print(f"ddpsim: {message}", file=sys.stderr)
        return _USAGE_ERROR
    return int(status or 0)


@app.callback()
def ddpsim() -> None:
    """Simulate data parallel training: every rank in one process, under a deterministic scheduler.

    Example: ddpsim run uneven-inputs-without-join
    """


@app.command("list")
def list_() -> None:
    """List the scenarios, each with what is expected of it.

    Example: ddpsim list
    """
    from scenarios.registry import registry

    output.show_scenarios(registry.values())


@app.command()
def run(
    name: Name,
    world_size: WorldSize = None,
    policy: Annotated[str, typer.Option(help="Who runs next: round_robin or random.")] = "round_robin",
    seed: Annotated[int, typer.Option(help="What a random policy draws from.")] = 0,
) -> int:
    """Run a scenario, or a function of yours, and say what came of it.

    Example: ddpsim run uneven-inputs --world-size 8 --policy random --seed 3

    Example: ddpsim run train.py:main, where main(rank) is a function in a file of yours
    """
    from scenarios.runner import run_scenario

    how = f"policy {policy}" + (f", seed {seed}" if policy != "round_robin" else "")
    return _run(name, how, lambda scenario: run_scenario(scenario, world_size=world_size, policy=policy, seed=seed))


@app.command()
def replay(
    name: Name,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The replay token at the end of a report.")],
    world_size: WorldSize = None,
) -> int:
    """Run a scenario again exactly as a report recorded it.

    The report ends with the command to paste.

    Example: ddpsim replay send-send s1:0:e2f90957
    """
    from scenarios.runner import replay_scenario

    return _run(name, "replayed", lambda scenario: replay_scenario(scenario, token, world_size=world_size))


def _run(name: str, how: str, simulate: Callable[[Scenario], Result]) -> int:
    from scenarios.loader import load
    from simulator import Verdict

    scenario = load(name)
    start = time.perf_counter()
    result = simulate(scenario)
    output.show_result(scenario, result, how, seconds=time.perf_counter() - start)
    if scenario.expected.is_met_by(result):
        return _AS_EXPECTED
    return _UNKNOWN if result.verdict is Verdict.UNKNOWN else _OTHERWISE


def _usage_message(error: Exception) -> str | None:
    """One line for an error of the caller's; None for any other error."""
    # typer carries a copy of click or imports it, depending on its version: its errors are known by what they have.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        context = getattr(error, "ctx", None)
        message = " ".join(str(error.format_message()).split()).rstrip(".?")
        if isinstance(commands := getattr(getattr(context, "command", None), "commands", None), dict):
            message += f"; expected one of {', '.join(commands)}" if "ommand" in message else ""
        return f"{message}; see `{context.command_path if context else 'ddpsim'} --help`"
    simulator = sys.modules.get("simulator")  # without it, nothing of ours has raised yet
    if simulator is not None and isinstance(error, (simulator.UsageError, simulator.ReplayDivergedError)):
        return str(error)
    return None
