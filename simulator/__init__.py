"""ddpsim's simulator: N ranks in one process, one running at a time, under a scheduler that decides every hand-over."""

from simulator.api import explore, replay, simulate
from simulator.budget import Budget
from simulator.calls import Call, Site
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
from simulator.events import Event, EventKind
from simulator.exploration.exploration import Exploration, Progress
from simulator.faults import Crash, Delay, EarlyReturn
from simulator.policies.pct import Pct
from simulator.result import Result
from simulator.shrinking.function import ShrunkSchedule, shrink
from simulator.shrinking.greedy import ShrinkProgress
from simulator.trace import Trace
from simulator.verdict import Code, Finding, Verdict
from simulator.waits import Waiting

__all__ = [
    "Budget",
    "Call",
    "ChoiceKind",
    "ChoicePoint",
    "Code",
    "Crash",
    "Delay",
    "EarlyReturn",
    "Event",
    "EventKind",
    "Exploration",
    "Finding",
    "InjectedCrashError",
    "InternalError",
    "Pct",
    "Policy",
    "Progress",
    "ReplayDivergedError",
    "ReplayError",
    "Result",
    "Schedule",
    "ShrinkProgress",
    "ShrunkSchedule",
    "SimulatorError",
    "Site",
    "Trace",
    "UsageError",
    "Verdict",
    "VerdictError",
    "Waiting",
    "explore",
    "replay",
    "shrink",
    "simulate",
]
