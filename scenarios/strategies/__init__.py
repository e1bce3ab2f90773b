"""Hypothesis strategies: scenarios and what they are made of, for `ddpsim fuzz` and for tests of one's own."""

from scenarios.strategies.programs import broken_programs, programs
from scenarios.strategies.schedules import policies, schedules
from scenarios.strategies.trainings import trainings
from scenarios.strategies.whole import scenarios

__all__ = ["broken_programs", "policies", "programs", "scenarios", "schedules", "trainings"]
