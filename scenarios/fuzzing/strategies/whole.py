"""Hypothesis strategy of complete scenarios: a program or a training, with a schedule and an engine."""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Literal

from hypothesis import strategies as st

from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.value_scenarios import scenario_of_program, scenario_of_training
from ddpsim.scenarios.fuzzing.strategies.parallel_trainings import parallel_trainings
from ddpsim.scenarios.fuzzing.strategies.programs import broken_programs, programs
from ddpsim.scenarios.fuzzing.strategies.schedules import schedules
from ddpsim.scenarios.fuzzing.strategies.trainings import trainings
from ddpsim.scenarios.model import Scenario


class Kind(Enum):
    """The kind of program that a drawn scenario runs."""

    TRAINING = "training"
    """A declared training that must pass and agree with the oracle."""
    PARALLEL_TRAINING = "parallel training"
    """A training with shards, tensor parallelism or pipelines that must pass and agree with the oracle."""
    PROGRAM = "program"
    """A program of communication calls that must pass."""
    BROKEN_PROGRAM = "broken program"
    """A program of communication calls that is broken in one place. The static analysis
    `ddpsim.simulator.programs.check` predicts its findings."""


_WEIGHTS = {Kind.TRAINING: 4, Kind.PARALLEL_TRAINING: 1, Kind.PROGRAM: 2, Kind.BROKEN_PROGRAM: 2}


@st.composite
def scenarios(
    draw: st.DrawFn,
    *,
    kinds: Sequence[Kind] = tuple(Kind),
    engines: Sequence[Engine] = tuple(Engine),
    for_torch: Literal[True, "documented"] = True,
    max_choices: int = 60,
) -> Scenario:
    """Draw a scenario of one of the kinds, with a schedule and, for a training, one of the engines.

    On engine "torch" a training is within `trainings(for_torch=...)`; the fuzzer runs these on both engines. Of nine
    drawn scenarios, four are trainings, one is a parallel training, which has no engine, two are programs, and two are
    broken programs.

        @given(scenarios())
        def test_what_is_expected(scenario):
            assert scenario.expected_by(scenario.engine).is_met_by(run_scenario(scenario))

    (Under a schedule a broken program may show another finding first than `check` names.)
    """
    kind = draw(st.sampled_from([kind for kind in kinds for _ in range(_WEIGHTS[kind])]))
    scenario = _draw_scenario_of_kind(draw, kind, engines, for_torch)
    return replace(scenario, choices=draw(schedules(max_choices=max_choices)))


def _draw_scenario_of_kind(
    draw: st.DrawFn, kind: Kind, engines: Sequence[Engine], for_torch: Literal[True, "documented"]
) -> Scenario:
    if kind is Kind.TRAINING:
        engine = draw(st.sampled_from(engines))
        training, world_size = draw(trainings(for_torch=for_torch if engine is Engine.TORCH else False))
        return scenario_of_training(training, world_size, name=kind.value, engine=engine)
    if kind is Kind.PARALLEL_TRAINING:
        return scenario_of_training(*draw(parallel_trainings()), name=kind.value)
    program = draw(programs(min_rounds=1)) if kind is Kind.PROGRAM else draw(broken_programs())[0]
    return scenario_of_program(program, name=kind.value)
