"""Replay a scenario. Report its steps, where the run left the recorded schedule, and how its result differs."""

from dataclasses import dataclass

from ddpsim import ReplayDivergedError, Result, Schedule, UsageError
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.recorded_outcome import read_recorded_outcome, recorded_outcome_of
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.runner import NO_REPLAY, check_is_simulated, run_scenario
from ddpsim.simulator.choices import is_token, program_identity
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.policies.schedule_replay import (
    ReplayDivergence,
    ReplayPolicy,
    divergence_error,
    steps_until_divergence,
)
from ddpsim.simulator.transcript import TakenChoice, TranscriptLine, transcript_of


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """The result of a replay. The run continues to its end even if it leaves the recorded schedule."""

    result: Result
    choices: tuple[TakenChoice, ...]
    """All scheduling choices with the options offered and the option taken, if they were kept."""
    divergence: ReplayDivergence | None
    """The point where the run left the recorded schedule; None if it did not."""
    difference: str
    """How the result differs from the recorded result; "" if it does not differ, or if no result was recorded."""

    @property
    def divergence_error(self) -> ReplayDivergedError | None:
        """The error that a strict replay raises."""
        return None if self.divergence is None else divergence_error(self.divergence, self.result.trace, self.choices)

    def steps(self, *, as_recorded: bool = True) -> list[TranscriptLine]:
        """The steps of the run; with `as_recorded`, only the steps until the run left the recording."""
        if self.divergence is None or not as_recorded:
            return transcript_of(self.result.trace, self.choices)
        return transcript_of(*steps_until_divergence(self.divergence, self.result.trace, self.choices))


def replay_recorded_run(
    scenario: Scenario,
    token: str | None = None,
    engine: Engine | None = None,
    *,
    transport: str = "memory",
    world_size: int | None = None,
    keeps_choices: bool = False,
) -> ReplayedRun:
    """Run a scenario again under a token's schedule, or under the schedule in its file, and compare the two results.

    Raises ReplayError for a token of another scenario, and UsageError if there is neither token nor schedule.
    """
    recorded = read_recorded_outcome(scenario.name)
    if token is None and not scenario.choices and recorded is None:
        check_token_not_after_program(scenario)
        raise UsageError(f"{scenario.name} has no schedule of its own: give the TOKEN from its report")
    check_is_simulated(transport, NO_REPLAY)
    size = scenario.with_world_size(world_size).world_size
    schedule = recorded_schedule(scenario, token, size)
    policy = ReplayPolicy(schedule, keeps_choices=keeps_choices)
    result = run_scenario(
        scenario, engine, transport=transport, world_size=world_size, policy=policy, names_parting=True
    )
    result = result.compared_with(schedule)
    is_same = token is None and size == scenario.world_size and engine in (None, scenario.engine)
    difference = recorded.first_difference(recorded_outcome_of(result)) if recorded is not None and is_same else ""
    if result.unlike:
        now = ", ".join(str(finding.code) for finding in result.findings) or "none"
        difference = f"findings: recorded {schedule.found}; now {now}"
    return ReplayedRun(result, tuple(policy.choices), policy.divergence, difference)


def check_token_not_after_program(scenario: Scenario) -> None:
    """Raise UsageError if a replay token was written after a program, which would receive it as an argument."""
    if not isinstance(program := scenario.program, Script):
        return
    for word in filter(is_token, program.arguments):
        raise UsageError(
            f"{word} is after {program.target}, so the program receives it: put the token before the program"
        )


def recorded_schedule(scenario: Scenario, token: str | None, world_size: int) -> Schedule:
    """Return the schedule of a token, or of the scenario's file. Raises ReplayError for a token of another scenario."""
    program = program_identity(scenario.name, world_size)
    return Schedule(scenario.choices, program) if token is None else Schedule.parse(token, program=program)
