"""Run a scenario in the debugger: up to the requested stop, and again from the start to go back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim import Result, Schedule, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.replaying import check_no_token_behind
from ddpsim.scenarios.running.runner import replay_command, run_scenario
from ddpsim.simulator.choices import Start, program_on
from ddpsim.simulator.debugging.director import Director
from ddpsim.simulator.debugging.goals import AtStart, AtStep, Goal, GoBackError
from ddpsim.simulator.debugging.session_host import CannotError
from ddpsim.simulator.launching.script import Script, start_of_programs
from ddpsim.simulator.runtime.prompt_server import ReadLine, Streams, read_line, show
from ddpsim.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class Debugged:
    """The result of a run that was debugged to its end."""

    result: Result
    missed: str
    """The requested stop that was not reached; "" if it was, or if the run found nothing."""


def debug_run(
    scenario: Scenario,
    token: str | None,
    goal: Goal | None,
    *,
    engine: Engine,
    world_size: int | None,
    save_as: Callable[[Scenario, Path], None],
    read: ReadLine = read_line,
) -> Debugged:
    """Run a scenario under a token's schedule, or its own, and let debuggers stop in it; goal None stops at a finding.

    `save_as` writes a scenario to a file, and raises UsageError if it cannot.

    Raises ReplayError for a token of another scenario, BdbQuit if the user quits, and UsageError for an invalid rank.
    """
    scenario = replace(scenario.with_world_size(world_size), one_at_a_time=True, engine=engine)
    if token is None:
        check_no_token_behind(scenario)
    if isinstance(goal, AtStart) and goal.rank >= scenario.world_size:
        raise UsageError(
            f"--rank is {goal.rank}, expected one of 0 to {scenario.world_size - 1}: {scenario.name} has no other"
        )
    program = program_on(scenario.name, scenario.world_size)
    recorded = Schedule(scenario.choices, program) if token is None else Schedule.parse(token, program=program)
    choices, start = recorded.choices, recorded.start or _own_start(scenario)

    def save(made: tuple[int, ...], file: str) -> str:
        if not file:
            return _command(scenario, engine, Schedule(made, program, start))
        try:
            save_as(replace(scenario, choices=made), Path(file))
        except UsageError as error:
            raise CannotError(str(error)) from None
        return f"saved in {file}; to run it: ddpsim run {file}"

    while True:
        director = Director(goal, choices, start=start, read=read, save=save)
        try:
            result = run_scenario(scenario, engine, policy=director)
        except GoBackError as back:
            goal, choices = back.goal, back.choices
        else:
            return Debugged(result, director.missed(_steps(result)))


def _steps(result: Result) -> int:
    return result.trace.events[-1].choice_points if result.trace.events else 0


def _own_start(scenario: Scenario) -> Start | None:
    return start_of_programs(scenario.alike) if isinstance(scenario.program, Script) else None


def _command(scenario: Scenario, engine: Engine, schedule: Schedule) -> str:
    """Return the command that runs a schedule again."""
    result = Result(scenario.world_size, (), (), {}, schedule, trace=Trace(()))
    return replay_command(result, scenario, engine, "memory")


class CommandsFile:
    """Answers the debugger prompts with the lines of a file and shows them there, until the end of the file."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if it cannot be read."""
        try:
            self._lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read ({error}), expected a file with a command on each line") from None

    def __call__(self, text: str, streams: Streams) -> str:
        """The next line."""
        if not self._lines:
            show(f"{text}\n", streams)
            raise EOFError
        line = self._lines.pop(0)
        show(f"{text}{line}\n", streams)
        return line


def goal_of(at: str | None, rank: int | None, *, finding: bool) -> Goal | None:
    """Return the first stop that the options ask for; by default the program's first line on rank 0.

    Raises UsageError for an invalid step, and for more than one option.
    """
    if sum((at is not None, rank is not None, finding)) > 1:
        raise UsageError("give only one of --at, --rank and --finding")
    if at is not None:
        word = at.removeprefix("step").strip()
        if not word.isdecimal():
            raise UsageError(f"--at is {at!r}, expected the number of a step: as in --at 41 or --at 'step 41'")
        return AtStep(int(word))
    return None if finding else AtStart(rank or 0)
