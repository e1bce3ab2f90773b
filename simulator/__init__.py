"""ddpsim's simulator: N ranks in one process, one running at a time, under a scheduler that decides every hand-over."""

from simulator.api import replay, simulate
from simulator.budget import Budget
from simulator.choices import ChoiceKind, ChoicePoint, Policy, Schedule
from simulator.errors import (
    InjectedCrashError,
    InternalError,
    ReplayDivergedError,
    ReplayError,
    SimulatorError,
    UsageError,
    VerdictError,
)
from simulator.faults import Crash, Delay, EarlyReturn
from simulator.result import Result
from simulator.trace import Trace
from simulator.verdict import Code, Finding, Verdict

__all__ = [
    "Budget",
    "ChoiceKind",
    "ChoicePoint",
    "Code",
    "Crash",
    "Delay",
    "EarlyReturn",
    "Finding",
    "InjectedCrashError",
    "InternalError",
    "Policy",
    "ReplayDivergedError",
    "ReplayError",
    "Result",
    "Schedule",
    "SimulatorError",
    "Trace",
    "UsageError",
    "Verdict",
    "VerdictError",
    "replay",
    "simulate",
]
