"""`ddpsim shrink`: reduce a failing scenario to a minimal one, and save it as a file."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.options import Name, OwnOrEngine, Seed, WorldSize, output_option
from ddpsim.scenarios.cli.program_words import importing_simulator, note_trailing_options
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.named import RUNNING, join_names
from ddpsim.simulator.wording import count_with_noun

if TYPE_CHECKING:
    from ddpsim import ShrinkProgress
    from ddpsim.scenarios.fuzzing.shrinking.shrinker import ShrunkScenario
    from ddpsim.scenarios.model import Scenario


@expand_option_sets
def shrink(
    name: Name,
    token: Annotated[
        str | None,
        typer.Argument(
            metavar="TOKEN",
            help="Replay token of the failure; not needed if round robin fails, or if the file has a schedule.",
        ),
    ] = None,
    *,
    engine: OwnOrEngine = None,
    world_size: WorldSize = None,
    policy: Annotated[str | None, typer.Option(help=f"The policy under which it fails: {join_names(RUNNING)}.")] = None,
    seed: Seed = 0,
    options: OptionsOfRun,
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds.")] = 60.0,
    out: Annotated[
        Path | None, output_option("Save to this file.  [default: FILE-shrunk.toml or NAME-shrunk.toml]")
    ] = None,
) -> int:
    """Reduce a failing scenario to a minimal one, and save it.

    The scenario gets fewer ranks, iterations, calls, options and context switches, as long as it fails with the same
    finding. Exit status: 0 saved, 1 it does not fail every time, 2 usage error.
    """
    with importing_simulator():
        from ddpsim import Budget
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.fuzzing.shrinking.saved import check_output_file, default_output_path
        from ddpsim.scenarios.fuzzing.shrinking.shrinker import shrink_scenario
        from ddpsim.scenarios.running.run_as import with_run_options

    path = out or default_output_path(name)
    budget = Budget(executions=sys.maxsize, seconds=seconds)
    check_output_file(path)
    own = with_run_options(load(name).with_world_size(world_size), options)
    with output.progress_bar("shrinking", seconds, _progress_of_shrinking) as on_progress:
        scenario = _with_failing_schedule(own, token, engine, policy, seed)
        shrunk = shrink_scenario(scenario, engine, budget=budget, on_progress=on_progress)
    return _save_and_rerun(shrunk, own, name, path)


def _save_and_rerun(shrunk: ShrunkScenario, own: Scenario, name: str, path: Path) -> ExitStatus:
    """Save the shrunk scenario, run the saved file, and print this run. Delete the file if the run does not fail."""
    from ddpsim import Verdict
    from ddpsim.scenarios.files.program_line import quote_for_command_line
    from ddpsim.scenarios.fuzzing.shrinking.saved import shrunk_scenario_text
    from ddpsim.scenarios.fuzzing.shrinking.shrinker import size_text
    from ddpsim.scenarios.running.runner import run_scenario

    result = None
    if shrunk.end.value != "flaky":
        _save_scenario_or_print(shrunk_scenario_text(shrunk.scenario, name, path), path)
        result = run_scenario(str(path))  # of the file, as the user will run it
        note_trailing_options(own, shrink, result)
    if result is None or result.verdict is not Verdict.FAIL:
        path.unlink(missing_ok=True)
        output.print_text(
            f"{name} failed, but not again under the same schedule, so nothing is saved: the program is not "
            "deterministic (time, random numbers); to find the cause: ddpsim explore --check-determinism "
            + quote_for_command_line(name)
        )
        return ExitStatus.OTHERWISE
    before, after = (size_text(shrunk.scenario, size) for size in (shrunk.size_before, shrunk.size))
    spent = f"{count_with_noun(shrunk.executions, 'execution')}, {shrunk.seconds:.1f} s"
    output.print_text(f"{before}  ->  {after}   {spent}\n{_END[shrunk.end.value]}\n\n{result}\n")
    output.print_text(f"saved in {path}; to run it:\n  ddpsim run {shlex.quote(str(path))}")
    return ExitStatus.AS_EXPECTED


def _save_scenario_or_print(text: str, path: Path) -> None:
    """Save the shrunk scenario. If the file cannot be written, print the scenario, so that the work is not lost."""
    from ddpsim.scenarios.files.saving import write_text

    try:
        write_text(path, text)
    except UsageError:
        output.print_text(f"# save this as {path}\n{text}")
        raise


def _with_failing_schedule(
    scenario: Scenario, token: str | None, engine: str | None, policy: str | None, seed: int
) -> Scenario:
    """Return the scenario with the schedule under which it should fail: that of the replay token or of the policy."""
    from ddpsim.scenarios.running.replaying import check_token_not_after_program
    from ddpsim.scenarios.running.runner import replay_scenario, run_scenario
    from ddpsim.scenarios.running.silence import hide_program_output

    if token is not None and policy is not None:
        raise UsageError(f"policy is {policy!r}, but a replay token already has a schedule: leave one of them out")
    if token is None:
        check_token_not_after_program(scenario)
    if token is None and policy is None:
        return scenario
    with hide_program_output(scenario):
        if token is not None:
            result = replay_scenario(scenario, token, engine)
        else:
            result = run_scenario(scenario, engine, policy=policy, seed=seed)
    start = result.schedule.start
    alike = start.is_alike if start is not None else scenario.alike
    hash_seed = scenario.hash_seed if start is None else start.own_hash_seed
    if start is not None:
        scenario = replace(scenario, nnodes=start.nodes, launcher=start.launcher, max_restarts=start.max_restarts)
    return replace(scenario, choices=result.schedule.choices, alike=alike, hash_seed=hash_seed)


_END = {
    "minimal": "minimal: no single step makes it simpler",
    "budget": "the time ran out: a simpler scenario may exist; increase --seconds",
    "interrupt": "interrupted: a simpler scenario may exist",
}


def _progress_of_shrinking(progress: ShrinkProgress) -> tuple[float, str]:
    """Return the seconds spent so far, and a progress text: number of executions and current size of the scenario."""
    ranks, switches = progress.size.ranks, progress.size.switches
    sizes = f"{count_with_noun(ranks, 'rank')}, {count_with_noun(switches, 'switch', 'switches')}"
    return progress.seconds, f"shrinking, {progress.executions} executions: {sizes}"
