"""`ddpsim explore`: run one scenario under many schedules."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import options as cli_options
from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.program_words import importing_simulator, note_trailing_options
from ddpsim.scenarios.cli.recording import Records, check_record_folders, write_and_show_records
from ddpsim.scenarios.cli.reporting import report_writer
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.named import DEFAULT_EXPLORING, exploring_policies_text, policy_option_text

if TYPE_CHECKING:
    from ddpsim import Exploration, Progress
    from ddpsim.reports.document import Document
    from ddpsim.scenarios.cli.reporting import ReportWriter
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Expectation, Scenario
    from ddpsim.simulator.exploration.divergence_point import DivergencePoint


@expand_option_sets
def explore(
    name: cli_options.Name,
    *,
    engine: cli_options.OwnOrEngine = None,
    world_size: cli_options.WorldSize = None,
    transport: cli_options.SimulatedTransport = "memory",
    options: OptionsOfRun,
    policy: Annotated[str, typer.Option(help=f"{exploring_policies_text()}.")] = DEFAULT_EXPLORING,
    seed: cli_options.Seed = 0,
    depth: Annotated[int | None, typer.Option(help=policy_option_text("pct"))] = None,
    preemptions: Annotated[int | None, typer.Option(help=policy_option_text("dfs"))] = None,
    executions: Annotated[int, typer.Option(help="Stop after so many schedules.")] = 1000,
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds.")] = 60.0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a failure, and count outcomes.")
    ] = False,
    check_determinism: Annotated[
        bool,
        typer.Option("--check-determinism", help="Run each schedule twice and compare; ranks get different seeds."),
    ] = False,
    jobs: cli_options.Jobs = None,
    backend: cli_options.Backend = "loky",
    cluster: cli_options.Cluster = None,
    out: Annotated[
        Path | None, cli_options.output_option("Save the first failure to this file: the scenario and its schedule.")
    ] = None,
    report: cli_options.ReportFolder = None,
    opens: cli_options.Opens = False,
    records: Records,
) -> int:
    """Run a scenario under many schedules, until one fails or all are covered.

    If it fails under some schedules only, the deciding choice is shown, with a run that passes. Exit status: 0 as
    expected, 1 not as expected, 2 usage error, 3 if the budget ran out first.
    """
    with importing_simulator():
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.exploring import explore_scenario, explore_with_closest_pass
        from ddpsim.scenarios.running.run_as import with_run_options

    workers = cli_options.workers_named(jobs, backend, cluster)
    scenario = with_run_options(load(name), options)
    chosen = scenario.engine_named(engine)
    if out is not None:
        _check_output_file(out, scenario, check_determinism=check_determinism)
    check_record_folders(records, transport=transport)
    with report_writer(report, opens=opens) as reported:
        with output.progress_bar("exploring", executions, _progress_of_exploration) as on_progress:
            exploration = explore_scenario(
                scenario,
                chosen,
                policy=policy,
                seed=seed,
                depth=depth,
                preemptions=preemptions,
                transport=transport,
                world_size=world_size,
                budget=output.ShownBudget(executions=executions, seconds=seconds),
                keep_going=keep_going,
                check_determinism=check_determinism,
                on_progress=on_progress,
                jobs=workers,
            )
            output.print_text(f"{exploration}\n")
            exploration, parting = explore_with_closest_pass(
                exploration, scenario, chosen, transport=transport, policy=policy, seconds=seconds
            )
        how = cli_options.engine_text(chosen) + cli_options.schedule_source_text(transport, policy, seed)
        status = _show_exploration(scenario, chosen, exploration, parting, how, reported)
        if out is not None:
            _save_first_failure(scenario, chosen, exploration, name, out)
        write_and_show_records(records, exploration.first_failure)
        note_trailing_options(scenario, explore, exploration.first_failure or exploration.first_pass)
    return status


def _check_output_file(path: Path, scenario: Scenario, *, check_determinism: bool) -> None:
    from ddpsim.scenarios.fuzzing.shrinking.saved import check_output_file
    from ddpsim.simulator.launching.script import Script

    check_output_file(path)
    if check_determinism and not scenario.alike and not isinstance(scenario.program, Script):
        raise UsageError(
            f"output is {str(path)!r} with --check-determinism, which gives ranks different seeds; the file of a "
            "function cannot store seeds: leave one out and use the replay line, or give --alike"
        )


def _show_exploration(
    scenario: Scenario,
    engine: Engine,
    exploration: Exploration,
    parting: DivergencePoint | None,
    how: str,
    report: ReportWriter,
) -> ExitStatus:
    """Print the outcome of an exploration, add it to the report, and return the exit status.

    `parting` is the point where the failing run diverges from a passing run.
    """
    status, text = _judge_exploration(scenario.expected_by(engine), exploration)

    def document() -> Document:
        from ddpsim.reports.making.exploration_document import document_of_exploration

        is_expected, name = status is ExitStatus.AS_EXPECTED, scenario.name
        return document_of_exploration(
            exploration, name=name, how=how, is_expected=is_expected, conclusion=text, parting=parting
        )

    if parting is not None:
        from ddpsim.reports.forms.first_difference import difference_lines

        output.print_text("\n".join([*difference_lines(document()), ""]))
    output.print_text(text)
    if report.is_wanted:
        report.write_document(document())
    return status


def _save_first_failure(scenario: Scenario, engine: Engine, exploration: Exploration, name: str, path: Path) -> None:
    from ddpsim.scenarios.files.saving import write_text
    from ddpsim.scenarios.fuzzing.shrinking.saved import shrunk_scenario_text

    failure = exploration.first_failure
    if failure is None:
        output.print_text(f"no failed run to save: {path} is not written")
        return
    found = scenario.with_world_size(failure.world_size)
    found = replace(found, choices=failure.schedule.choices, engine=engine)
    write_text(path, shrunk_scenario_text(found, name, path, how="what failed first in an exploration of"))
    output.print_text(f"saved in {path}; to run it:\n  ddpsim run {shlex.quote(str(path))}")


def _judge_exploration(expected: Expectation, exploration: Exploration) -> tuple[ExitStatus, str]:
    """Return the exit status of an exploration and a line about it.

    An expected failure has to occur under one schedule only.
    """
    from ddpsim import Verdict
    from ddpsim.scenarios.cli.judgement import judge_result
    from ddpsim.scenarios.model import outcome_text

    failure = exploration.first_failure
    if exploration.interrupted:
        found = "nothing failed" if exploration.verdict is not Verdict.FAIL else "found a failure"
        found = found if failure is None else f"found {outcome_text(failure)}"
        return ExitStatus.INTERRUPTED, f"interrupted: {found} so far; expected {expected.verdict.value}"
    if failure is not None:
        return judge_result(expected, failure)
    wanted = expected.verdict
    if exploration.verdict is Verdict.UNKNOWN:
        return ExitStatus.UNKNOWN, f"unknown: nothing failed so far; expected {wanted.value}"
    if wanted is Verdict.PASS:
        return ExitStatus.AS_EXPECTED, "as expected: pass under every schedule that was run"
    why_unseen = "which may depend on files or objects that the ranks share: try --policy random"
    return ExitStatus.OTHERWISE, f"not as expected: found pass; expected {wanted.value}, {why_unseen}"


def _progress_of_exploration(progress: Progress) -> tuple[float, str]:
    """Return the number of runs so far, and a progress text: runs per second, coverage and failures."""
    covered = "" if progress.coverage is None else f", {progress.coverage:.0%} covered"
    return progress.executions, f"exploring, {progress.rate:.0f}/s{covered}, {progress.failures} failed"
