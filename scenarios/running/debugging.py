"""Run a scenario in the debugger up to the requested stop. To go back, run it again from the start."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim import Result, Schedule, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.replaying import check_token_not_after_program, recorded_schedule
from ddpsim.scenarios.running.runner import replay_command, run_scenario
from ddpsim.simulator.debugging.director import Goal, GoBackError, PauseAtStart, PauseAtStep, RunDirector
from ddpsim.simulator.debugging.session_host import DebuggerCommandError
from ddpsim.simulator.launching.script import Script, program_seeds
from ddpsim.simulator.runtime.prompt_server import DebuggerStreams, ReadLine, read_edited_line, write_text
from ddpsim.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class DebuggedRun:
    """The result of a run that was debugged to its end."""

    result: Result
    missed: str
    """The requested stop that the run did not reach; "" if it did, or if the stop was a finding and there is none."""


def debug_run(
    scenario: Scenario,
    token: str | None,
    goal: Goal | None,
    *,
    engine: Engine,
    world_size: int | None,
    save_as: Callable[[Scenario, Path], None],
    read: ReadLine = read_edited_line,
) -> DebuggedRun:
    """Run a scenario under a token's schedule, or its own, and let debuggers stop in it; goal None stops at a finding.

    `save_as` writes a scenario to a file. Raises ReplayError for a token of another scenario, UsageError for a wrong
    rank, and BdbQuit if the user quits.
    """
    scenario = replace(scenario.with_world_size(world_size), one_at_a_time=True, engine=engine)
    if token is None:
        check_token_not_after_program(scenario)
    if isinstance(goal, PauseAtStart) and goal.rank >= scenario.world_size:
        raise UsageError(
            f"--rank is {goal.rank}, expected one of 0 to {scenario.world_size - 1}: {scenario.name} has no other"
        )
    recorded = recorded_schedule(scenario, token, scenario.world_size)
    choices, start = recorded.choices, recorded.start
    if start is None and isinstance(scenario.program, Script):
        start = program_seeds(scenario.alike, scenario.nnodes, scenario.launcher, scenario.max_restarts)

    def save(made: tuple[int, ...], file: str) -> str:
        if not file:
            schedule = Schedule(made, recorded.program, start)
            unfinished = Result(scenario.world_size, (), (), {}, schedule, trace=Trace(()))
            return replay_command(unfinished, scenario, engine, "memory")
        try:
            save_as(replace(scenario, choices=made), Path(file))
        except UsageError as error:
            raise DebuggerCommandError(str(error)) from None
        return f"saved in {file}; to run it: ddpsim run {file}"

    while True:
        director = RunDirector(goal, choices, start=start, read=read, save=save)
        try:
            result = run_scenario(scenario, engine, policy=director)
        except GoBackError as back:
            goal, choices = back.goal, back.choices
        else:
            steps = result.trace.events[-1].choice_points if result.trace.events else 0
            return DebuggedRun(result, director.missed_goal_text(steps))


def read_commands_from_file(path: Path) -> ReadLine:
    """Return a function that answers the debugger's prompts with the lines of a file. Raises UsageError."""
    try:
        lines = iter(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--commands is {str(path)!r}, which cannot be read ({error}), expected a file with a command on each "
            "line: correct the path"
        ) from None

    def read(text: str, streams: DebuggerStreams) -> str:
        line = next(lines, None)
        write_text(f"{text}{line or ''}\n", streams)
        if line is None:
            raise EOFError
        return line

    return read


def goal_of_options(at: str | None, rank: int | None, *, finding: bool) -> Goal | None:
    """Return the debugger's first stop as options ask, by default rank 0's first line. Raises UsageError."""
    is_given = {"--at": at is not None, "--rank": rank is not None, "--finding": finding}
    given = [option for option, is_it in is_given.items() if is_it]
    if len(given) > 1:
        raise UsageError(f"found {given[0]} and {given[1]}, expected one first stop: leave one of them out")
    if at is not None:
        word = at.removeprefix("step").strip()
        if not word.isdecimal():
            raise UsageError(f"--at is {at!r}, expected the number of a step: as in --at 41 or --at 'step 41'")
        return PauseAtStep(int(word))
    return None if finding else PauseAtStart(rank or 0)
