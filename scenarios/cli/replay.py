"""`ddpsim replay`: repeat a recorded run, step by step if wanted, and compare it with its recording."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.options import Name, Opens, OwnOrEngine, ReportFolder, SimulatedTransport, WorldSize
from ddpsim.scenarios.cli.program_words import importing_simulator, note_trailing_options
from ddpsim.scenarios.cli.recording import Records, check_record_folders, write_and_show_records
from ddpsim.scenarios.cli.reporting import report_writer
from ddpsim.scenarios.cli.run import head_line
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError

if TYPE_CHECKING:
    from ddpsim.scenarios.cli.reporting import ReportWriter
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Expectation, Scenario
    from ddpsim.scenarios.running.replaying import ReplayedRun
    from ddpsim.simulator.transcript import TranscriptLine


@expand_option_sets
def replay(
    name: Name,
    token: Annotated[
        str | None,
        typer.Argument(
            metavar="TOKEN", help="The replay token at the end of a report; not needed for a file that has a schedule."
        ),
    ] = None,
    *,
    engine: OwnOrEngine = None,
    world_size: WorldSize = None,
    transport: SimulatedTransport = "memory",
    options: OptionsOfRun,
    step: Annotated[
        bool, typer.Option("--step", help="Show the run step by step; on a terminal, press Enter for the next.")
    ] = False,
    first: Annotated[int | None, typer.Option("--from", help="The first step to show; implies --step.")] = None,
    last: Annotated[int | None, typer.Option("--to", help="The last step to show; implies --step.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Continue if the run differs from its recording.")] = False,
    report: ReportFolder = None,
    opens: Opens = False,
    records: Records,
) -> int:
    """Run a scenario again exactly as recorded. A report ends with the command to paste.

    If the run differs from its recording, both are shown, and --report shows the rest of the run.
    """
    with importing_simulator():
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.replaying import replay_recorded_run
        from ddpsim.scenarios.running.run_as import with_run_options

    scenario = with_run_options(load(name), options)
    chosen = scenario.engine_named(engine)
    is_stepping = step or first is not None or last is not None
    check_record_folders(records, transport=transport)
    with report_writer(report, opens=opens) as reported:
        start = time.perf_counter()
        try:
            replayed = replay_recorded_run(
                scenario, token, chosen, transport=transport, world_size=world_size, keeps_choices=is_stepping
            )
        except KeyboardInterrupt as pressed:
            output.print_text(f"{scenario.name}  {pressed}")
            return ExitStatus.INTERRUPTED
        seconds = time.perf_counter() - start
        if is_stepping:
            show_steps(_select_steps(replayed.steps(as_recorded=not lenient), first, last))
        above = "\n" * is_stepping
        status = _show_replay(scenario, chosen, replayed, seconds, reported, is_strict=not lenient, above=above)
        write_and_show_records(records, replayed.result)
        note_trailing_options(scenario, replay, replayed.result)
    return status


def _show_replay(
    scenario: Scenario,
    engine: Engine,
    replayed: ReplayedRun,
    seconds: float,
    report: ReportWriter,
    *,
    is_strict: bool,
    above: str,
) -> ExitStatus:
    """Print the outcome of a replay, add the replay to the report, and return the exit status."""
    status, text = _judge_replay(scenario.expected_by(engine), replayed, is_strict=is_strict)
    if status is ExitStatus.USAGE_ERROR:
        output.print_note(str(replayed.divergence_error))
    else:
        waited = output.time_since_start(time.perf_counter() - seconds)
        start_line = f"{head_line(scenario, replayed.result, engine, 'replayed')}  {waited}"
        output.print_text(f"{above}{start_line}\n\n{replayed.result}\n\n{text}")
    report.add_run(scenario, engine, replayed.result, status, text, how="replayed", seconds=seconds)
    return status


def _select_steps(steps: list[TranscriptLine], first: int | None, last: int | None) -> list[TranscriptLine]:
    """Return the steps of a run with numbers from `first` to `last`. Raises UsageError if there are none."""
    chosen = [step for step in steps if (first or 0) <= step.number and (last is None or step.number <= last)]
    if steps and not chosen:
        asked = " ".join([f"--from {first}"] * (first is not None) + [f"--to {last}"] * (last is not None))
        raise UsageError(
            f"{asked} selects no step, expected numbers from {steps[0].number} to {steps[-1].number}: correct it"
        )
    return chosen


def _judge_replay(expected: Expectation, replayed: ReplayedRun, *, is_strict: bool) -> tuple[ExitStatus, str]:
    """Return the exit status of a replay, and the lines that explain it."""
    from ddpsim.scenarios.cli.judgement import divergence_line, judge_result

    if replayed.divergence is not None and is_strict:
        return ExitStatus.USAGE_ERROR, divergence_line(replayed.divergence)
    status, line = judge_result(expected, replayed.result)
    lines = [] if replayed.result.unlike else [line]
    if replayed.divergence is not None:
        lines.insert(0, divergence_line(replayed.divergence))
    elif replayed.difference:
        status = ExitStatus.OTHERWISE if is_strict else status
        lines.insert(0, f"not as recorded, though every recorded choice was possible: {replayed.difference}")
    return status, "\n".join(lines)


HELP = "Enter: next step; a number: that many steps; r N: to the next step of rank N; q: quit"


def show_steps(steps: Sequence[TranscriptLine]) -> None:
    """Show the steps of a run: interactively on a terminal, otherwise all at once."""
    from ddpsim.simulator.transcript import transcript_lines

    if sys.stdin.isatty() and sys.stdout.isatty():
        print(HELP)
        show_steps_interactively(steps, ask=_read_answer, show=print)
        return
    try:
        print("\n".join(transcript_lines(steps)), flush=True)
    except BrokenPipeError:  # the reader of the pipe, such as `less`, has quit; discard later output, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_steps_interactively(
    steps: Sequence[TranscriptLine], *, ask: Callable[[], str], show: Callable[[str], object]
) -> None:
    """Show the steps of a run. Ask after each stop how far to continue, until no step is left or the answer is `q`."""
    from ddpsim.simulator.transcript import transcript_lines

    head, *lines = transcript_lines(steps) or [""]
    show(head)
    stop = 0
    for index, line in enumerate(lines):
        show(line)
        if index < stop or index + 1 == len(lines):
            continue
        while (following := next_step_to_stop_at(ask().strip(), steps, index)) is None:
            show(HELP)
        if following == index:
            return
        stop = following


def next_step_to_stop_at(word: str, steps: Sequence[TranscriptLine], at: int) -> int | None:
    """Return the step at which to stop next, for the user's answer at step `at`.

    Return `at` itself if the user quits, and None for an invalid answer.
    """
    if word in ("", "q"):
        return at if word else at + 1
    command, _, rank = word.partition(" ")
    if command == "r" and rank.strip().isdecimal():
        later = (index for index in range(at + 1, len(steps)) if steps[index].rank == int(rank))
        return next(later, len(steps))
    return at + int(word) if word.isdecimal() and int(word) else None


def _read_answer() -> str:
    try:
        return input()
    except (EOFError, KeyboardInterrupt):
        return "q"
