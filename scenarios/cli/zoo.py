"""`ddpsim zoo`: run all scenarios that come with ddpsim, and show a table of expected and found outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import options, output
from ddpsim.scenarios.cli.reporting import report_writer
from ddpsim.scenarios.cli.status import ExitStatus, worst_status
from ddpsim.simulator.policies.named import DEFAULT

if TYPE_CHECKING:
    from ddpsim.scenarios.cli.zoo_outcome import ZooOutcome
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Scenario


def zoo(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these scenarios, each with its repaired twin.")
    ] = None,
    tags: options.Tags = None,
    engine: options.EngineOrBoth = "torch",
    policy: options.PolicyName = DEFAULT,
    seed: options.Seed = 0,
    transport: options.TransportName = "memory",
    timeout: options.Timeout = None,
    with_twins: Annotated[bool, typer.Option("--repaired/--no-repaired", help="Run the repaired twins, too.")] = True,
    report: options.ReportFolder = None,
    opens: options.Opens = False,
) -> int:
    """Run the zoo: scenarios of real bugs, their repaired twins, and the join matrix (cases of `join()` with uneven
    inputs).

    The whole report of each unexpected run follows the table.
    """
    from ddpsim import simulate
    from ddpsim.scenarios.cli.zoo_outcome import run_for_zoo
    from ddpsim.scenarios.files.loader import registry
    from ddpsim.scenarios.running.runner import check_transport_options

    engines = options.engines_named(engine)
    check_transport_options(transport, policy, seed, timeout)  # once, and not in every row
    simulate(lambda rank: None, 1, policy=policy, seed=seed)
    broken = () if names else registry.problems_of_files
    for problem in broken:
        output.print_note(problem)
    chosen = _chosen_scenarios(names, tags or (), with_twins=with_twins)
    pairs = [(scenario, each) for scenario in chosen for each in engines]
    with report_writer(report, opens=opens, title="ddpsim zoo") as reported:
        run = partial(
            run_for_zoo,
            report=reported,
            how=options.schedule_source_text(transport, policy, seed),
            policy=policy,
            seed=seed,
            transport=transport,
            timeout_seconds=timeout,
        )
        with options.keep_servers_for(transport):
            outcomes = _run_and_show_rows(pairs, run)
    statuses = [each.status for each in outcomes if each.status is not None]
    statuses += [ExitStatus.INTERRUPTED] if len(outcomes) < len(pairs) else []
    return worst_status(statuses + [ExitStatus.OTHERWISE] * len(broken))


def _run_and_show_rows(
    pairs: Sequence[tuple[Scenario, Engine]], run: Callable[[Scenario, Engine], ZooOutcome]
) -> list[ZooOutcome]:
    """Run the scenarios and print a table row for each. At the end, print the whole reports of the unexpected runs.

    Ctrl-C ends the table early; then what it interrupted is printed, too.
    """
    from ddpsim.scenarios.cli.zoo_outcome import ZooTable, reports_and_counts

    start = time.perf_counter()
    table = ZooTable(pairs)
    output.print_text(table.header_row())
    outcomes: list[ZooOutcome] = []
    try:
        for outcome in output.with_progress_bar((run(*pair) for pair in pairs), len(pairs)):
            output.print_text(table.row_of_outcome(outcome))
            outcomes.append(outcome)
    except KeyboardInterrupt as pressed:
        output.print_text(f"{pairs[len(outcomes)][0].name}  {pressed}")
    output.print_text(reports_and_counts(outcomes, time.perf_counter() - start))
    return outcomes


def _chosen_scenarios(names: Iterable[str] | None, tags: Iterable[str], *, with_twins: bool) -> list[Scenario]:
    """Return the scenarios to run, each bug followed by its repaired twin (the program without the bug).

    A twin that the user named is always run.
    """
    from ddpsim.scenarios.files.loader import load, registry

    named = {name: load(name) for name in names or ()}
    pool: Mapping[str, Scenario] = registry
    if named:
        pool = named | {name: scenario for name, scenario in registry.items() if scenario.repairs in named}
    found = options.scenarios_with_tags(pool, tags).items()
    chosen = [scenario for name, scenario in found if with_twins or name in named or not scenario.repairs]
    return sorted(chosen, key=lambda scenario: (scenario.repairs or scenario.name, bool(scenario.repairs)))
