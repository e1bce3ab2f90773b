"""`ddpsim fuzz`: run random scenarios, or random schedules of one scenario, until the time is up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.options import (
    Backend,
    BothOrEngine,
    Cluster,
    Jobs,
    Opens,
    ReportFolder,
    WorldSize,
    engines_named,
    workers_named,
)
from ddpsim.scenarios.cli.program_words import note_trailing_options
from ddpsim.scenarios.cli.reporting import ReportWriter, report_writer
from ddpsim.scenarios.cli.status import ExitStatus, worst_status
from ddpsim.scenarios.fuzzing import CORPUS
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.run_options import OPTIONS

if TYPE_CHECKING:
    from ddpsim.scenarios.fuzzing.campaign import CampaignProgress
    from ddpsim.scenarios.fuzzing.named_scenario import FailsUnderEverySchedule
    from ddpsim.scenarios.fuzzing.plan import CampaignPlan
    from ddpsim.simulator.exploration.workers import Workers


@expand_option_sets
def fuzz(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A name from `ddpsim list`, FILE.toml, or FILE.py:FUNCTION; or a program that each rank runs, FILE.py "
            "or -m MODULE, followed by its own arguments: schedules and world sizes are random. Without NAME, the "
            "scenarios are random, too.",
        ),
    ] = None,
    *,
    generate: Annotated[bool, typer.Option("--generate", help="Generate random scenarios, as without NAME.")] = False,
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds.")] = 60.0,
    executions: Annotated[
        int | None, typer.Option(help="Stop after about so many runs.  [default: no limit but --seconds]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the first batch; later batches count up from it.")] = 0,
    engine: BothOrEngine = None,
    world_size: WorldSize = None,
    options: OptionsOfRun,
    documented: Annotated[
        bool, typer.Option("--documented", help="Generate everything that torch documents, also what is known to fail.")
    ] = False,
    corpus: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder where failures are kept; the next run tries them first.")
    ] = CORPUS,
    jobs: Jobs = None,
    backend: Backend = "loky",
    cluster: Cluster = None,
    report: ReportFolder = None,
    opens: Opens = False,
) -> int:
    """Run random scenarios and schedules, and keep the failures.

    Each run is compared with its expectation, with training on one process, and with the other engine. Failures are
    shrunk and saved as scenario files. Exit status: 0 nothing found, 1 something found, 2 usage error, 3 nothing ran.
    """
    from ddpsim.scenarios.files.loader import load
    from ddpsim.scenarios.files.program_line import split_program_line
    from ddpsim.scenarios.fuzzing.campaign import check_campaign_budget
    from ddpsim.scenarios.fuzzing.corpus import check_corpus_folder
    from ddpsim.scenarios.fuzzing.named_scenario import name_from_corpus, world_sizes_to_draw
    from ddpsim.scenarios.fuzzing.plan import CampaignPlan
    from ddpsim.scenarios.running.run_as import with_run_options

    _check_option_combination(name, options, world_size, generate=generate, documented=documented)
    workers = workers_named(jobs, backend, cluster)
    is_program = name is not None and split_program_line(name)
    engines = engines_named(engine or ("torch" if is_program else "both"))
    if name is None:
        plan = CampaignPlan(seed, engines, executions, for_torch="documented" if documented else True)
    else:
        saved_as = name_from_corpus(name, corpus)
        sizes = world_sizes_to_draw(with_run_options(load(name), options), world_size)
        plan = CampaignPlan(seed, engines, executions, name, saved_as, {"poison": True, **options}, sizes)
    check_campaign_budget(plan, seconds)
    check_corpus_folder(corpus)
    with report_writer(report, opens=opens, title="ddpsim fuzz") as reported:
        return _run_and_report_campaign(plan, seconds, workers, corpus, reported)


def _check_option_combination(
    name: str | None, options: Mapping[str, Any], world_size: int | None, *, generate: bool, documented: bool
) -> None:
    """Raise UsageError for an option that is allowed only with a scenario's name, or only without one."""
    of_a_name = ["--world-size"] if world_size is not None else []
    of_a_name += [OPTIONS[each].console_flag(each) for each in options if each != "poison"]
    if name is None and of_a_name:
        raise UsageError(f"found {of_a_name[0]} without NAME, but random scenarios have their own: leave it out")
    if name is not None and generate:
        raise UsageError(f"found NAME {name!r} and --generate, expected only one: leave one of them out")
    if name is not None and documented:
        raise UsageError(
            f"found NAME {name!r} and --documented, which is for random scenarios only: leave one of them out"
        )


def _run_and_report_campaign(
    plan: CampaignPlan, seconds: float, workers: Workers, corpus: Path, report: ReportWriter
) -> ExitStatus:
    """Run the campaign and print what it found.

    A named scenario that fails under every schedule is reported instead.
    """
    from ddpsim.scenarios.cli.fuzz_reports import report_campaign_failures
    from ddpsim.scenarios.fuzzing.campaign import campaign_summary, run_campaign
    from ddpsim.simulator.result import RunInterrupted

    try:
        status = _report_if_always_failing(plan.name, plan, seconds, report) if plan.name else None
    except RunInterrupted as cut:
        output.print_text(f"{plan.name}  {cut}")
        return ExitStatus.INTERRUPTED
    if status is not None:
        return status
    with output.progress_bar("fuzzing", seconds, _progress_of_campaign) as on_progress:
        campaign = run_campaign(
            plan,
            seconds=seconds,
            workers=workers,
            corpus=corpus,
            on_tried=lambda tried: output.print_text(str(tried)),
            on_progress=on_progress,
        )
    output.print_text(campaign_summary(campaign))
    report_campaign_failures(campaign, report)
    if campaign.interrupted:
        return ExitStatus.INTERRUPTED
    if campaign.has_failures:
        return ExitStatus.OTHERWISE
    return ExitStatus.AS_EXPECTED if campaign.totals.execution_count else ExitStatus.UNKNOWN


def _report_if_always_failing(name: str, plan: CampaignPlan, seconds: float, report: ReportWriter) -> ExitStatus | None:
    """Report a scenario that fails under every schedule, or that never ends, and return the exit status.

    Return None for any other scenario.
    """
    from ddpsim.scenarios.files.loader import load
    from ddpsim.scenarios.fuzzing.named_scenario import FailsUnderEverySchedule, run_under_few_schedules
    from ddpsim.scenarios.running.run_as import with_run_options

    size = plan.world_sizes[0] if plan.world_sizes[0] == plan.world_sizes[1] else None
    scenario = with_run_options(load(name), plan.options)
    deadline, left, found = time.monotonic() + seconds, seconds, list[FailsUnderEverySchedule]()
    for engine in plan.engines:
        look = run_under_few_schedules(scenario, engine, left, world_size=size) if left > 0 else None
        if not isinstance(look, FailsUnderEverySchedule):
            if look is not None and look.not_struck:
                output.print_text(f"note  in the first passing run {look.not_struck}")
            return None
        found.append(look)
        left = deadline - time.monotonic()
        if look.does_not_end:
            break
    for engine, look in zip(plan.engines, found, strict=False):
        line = f"{scenario.name} {look}"
        output.print_text(f"--- {engine.value}\n{look.result}\n\n{line}")
        report.add_run(scenario, engine, look.result, _status_of_failing_scenario(look), line, how="policy round_robin")
    note_trailing_options(scenario, fuzz, found[-1].result)
    last = _status_of_failing_scenario(found[-1])
    return last if last is ExitStatus.UNKNOWN else worst_status(map(_status_of_failing_scenario, found))


def _status_of_failing_scenario(look: FailsUnderEverySchedule) -> ExitStatus:
    from ddpsim import Verdict

    if look.result.verdict is Verdict.UNKNOWN:
        return ExitStatus.UNKNOWN
    return ExitStatus.AS_EXPECTED if look.is_expected else ExitStatus.OTHERWISE


def _progress_of_campaign(progress: CampaignProgress) -> tuple[float, str]:
    """Return the seconds spent so far, and a progress text: runs per second, passed runs and failures found."""
    passed = sum(count for outcome, count in progress.totals.outcomes.items() if outcome.startswith("pass"))
    return progress.seconds, (
        f"{progress.doing}, {progress.totals.execution_count} runs, {progress.executions_per_second:.0f}/s, "
        f"{passed} passed, {len(progress.totals.failures)} found"
    )
