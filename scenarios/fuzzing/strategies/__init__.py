"""Hypothesis strategies that generate scenarios and their parts, for `ddpsim fuzz` and for users' tests."""

from ddpsim.scenarios.fuzzing.strategies.parallel_trainings import parallel_trainings
from ddpsim.scenarios.fuzzing.strategies.programs import broken_programs, programs
from ddpsim.scenarios.fuzzing.strategies.schedules import policies, schedules
from ddpsim.scenarios.fuzzing.strategies.trainings import trainings
from ddpsim.scenarios.fuzzing.strategies.whole import scenarios

__all__ = ["broken_programs", "parallel_trainings", "policies", "programs", "scenarios", "schedules", "trainings"]
