"""`ddpsim bench`: measure how long scenarios take on this machine, on each engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import EngineOrBoth, SimulatedTransport, engines_named
from ddpsim.scenarios.cli.status import ExitStatus, worst_status
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.wording import count_with_noun

if TYPE_CHECKING:
    from ddpsim.scenarios.running.measuring import Measurement

_NAMES = ("join-baseline", "uneven-inputs-without-join")
"""The scenarios measured by default: a training that passes, and one that deadlocks."""
_MOST_ROUNDS = 10_000


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help=f"Names from `ddpsim list`, FILE.toml, or FILE.py:FUNCTION.  [default: {' '.join(_NAMES)}]",
        ),
    ] = None,
    engine: EngineOrBoth = "both",
    world_size: Annotated[
        list[int] | None,
        typer.Option(help="Number of ranks; repeat the option to measure several.  [default: the scenario's own]"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measured runs of each scenario, after one warm-up.")] = 9,
    transport: SimulatedTransport = "memory",
) -> int:
    """Measure how long scenarios take.

    The time of a run is from the start of its simulation until its report is rendered. Each round runs every scenario
    once. Compare the ratios of rows: absolute times hold for this machine only.
    """
    import os
    import platform

    import torch

    from ddpsim.scenarios.files.loader import load
    from ddpsim.scenarios.running.measuring import MeasuredCase, collect_measurements, measure_runs
    from ddpsim.scenarios.running.runner import check_is_simulated

    if not 1 <= rounds <= _MOST_ROUNDS:
        raise UsageError(f"rounds is {rounds}, expected 1 to {_MOST_ROUNDS}: correct it")
    check_is_simulated(transport, "bench measures only the simulation")
    sizes: Sequence[int | None] = world_size or [None]
    cases = [
        MeasuredCase(load(name).with_world_size(size), each)
        for name in dict.fromkeys(names or _NAMES)
        for size in dict.fromkeys(sizes)
        for each in engines_named(engine)
    ]
    machine = f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores"
    output.print_text(f"{machine}, on {transport}, {count_with_noun(rounds, 'alternating round')}\n")
    runs = output.with_progress_bar(measure_runs(cases, rounds, transport), rounds * len(cases))
    measured = collect_measurements(runs)
    output.print_text("\n".join(_table_rows(measured)))
    return worst_status(_statuses_of_runs(measured))


def _table_rows(measured: Sequence[Measurement]) -> Iterable[str]:
    """Yield the table's header, and a row per measurement, with its time relative to the first row of the same scenario
    and world size."""
    width = max(4, *(len(each.case.scenario.name) for each in measured))
    yield f"{'name':<{width}}  by     ranks   events  events/s   median ms    least     most  ratio"
    first: dict[tuple[str, int], float] = {}
    for each in measured:
        scenario = each.case.scenario
        base = first.setdefault((scenario.name, scenario.world_size), each.median)
        median, least, most = (1000 * value for value in (each.median, min(each.seconds), max(each.seconds)))
        yield (
            f"{scenario.name:<{width}}  {each.case.engine.value:<5}  {scenario.world_size:>5}  {each.events:>7,}  "
            f"{each.events_per_second:>8,.0f}  {median:>10.1f}  {least:>7.1f}  {most:>7.1f}  {each.median / base:>5.2f}"
        )


def _statuses_of_runs(measured: Sequence[Measurement]) -> Iterable[ExitStatus]:
    """Yield the exit status of each measured run.

    Print each run with an unexpected outcome, because its time means little.
    """
    from ddpsim.scenarios.cli.judgement import judge_result

    for each in measured:
        expected = each.case.scenario.expected_by(each.case.engine)
        for result in each.results:
            status, line = judge_result(expected, result)
            if status is not ExitStatus.AS_EXPECTED:
                output.print_note(f"{each.case.scenario.name}, engine {each.case.engine.value}: {line}")
            yield status
