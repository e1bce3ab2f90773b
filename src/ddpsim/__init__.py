"""ddpsim runs the N ranks of a distributed program in one process, one rank at a time.

A scheduler decides every context switch. This package has the functions `simulate`, `explore` and `replay`, which run a
program, and the classes of their arguments and results. The other parts are packages of their own: `ddpsim.simulator`,
`ddpsim.ddp` (ddpsim's implementation of DistributedDataParallel), `ddpsim.scenarios` and `ddpsim.reports`.
"""

import os
import typing

# In a checkout the parts lie at the top level, and links here lead to them; a path through a link would be a second
# name for each file. So the package is where its parts are; installed from a wheel, that is here. `python -m ddpsim`
# looks for __main__.py, which lies here in a checkout, too.
__path__[:] = dict.fromkeys([os.path.dirname(os.path.realpath(os.path.join(__path__[0], "simulator"))), __path__[0]])

if typing.TYPE_CHECKING:
    from ddpsim.simulator.agreeing import agree
    from ddpsim.simulator.api import explore, replay, simulate, simulate_program
    from ddpsim.simulator.budget import Budget
    from ddpsim.simulator.calls import Call, Site
    from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Policy, Schedule
    from ddpsim.simulator.errors import (
        InjectedCrashError,
        InternalError,
        RankLostError,
        ReplayDivergedError,
        ReplayError,
        SimulatorError,
        UsageError,
        VerdictError,
    )
    from ddpsim.simulator.events import Event, EventKind
    from ddpsim.simulator.exploration.exploration import Exploration, Progress
    from ddpsim.simulator.faults import Crash, Delay, EarlyReturn
    from ddpsim.simulator.policies.pct import Pct
    from ddpsim.simulator.result import Result
    from ddpsim.simulator.shrinking.greedy import ShrinkProgress
    from ddpsim.simulator.shrinking.shrunk_schedule import ShrunkSchedule, shrink
    from ddpsim.simulator.trace import Trace
    from ddpsim.simulator.verdict import Code, Finding, Verdict
    from ddpsim.simulator.waits import Waiting

_HOMES = {
    "Budget": "simulator.budget",
    "Call": "simulator.calls",
    "ChoiceKind": "simulator.choices",
    "ChoicePoint": "simulator.choices",
    "Code": "simulator.verdict",
    "Crash": "simulator.faults",
    "Delay": "simulator.faults",
    "EarlyReturn": "simulator.faults",
    "Event": "simulator.events",
    "EventKind": "simulator.events",
    "Exploration": "simulator.exploration.exploration",
    "Finding": "simulator.verdict",
    "InjectedCrashError": "simulator.errors",
    "InternalError": "simulator.errors",
    "Pct": "simulator.policies.pct",
    "Policy": "simulator.choices",
    "Progress": "simulator.exploration.exploration",
    "RankLostError": "simulator.errors",
    "ReplayDivergedError": "simulator.errors",
    "ReplayError": "simulator.errors",
    "Result": "simulator.result",
    "Schedule": "simulator.choices",
    "ShrinkProgress": "simulator.shrinking.greedy",
    "ShrunkSchedule": "simulator.shrinking.shrunk_schedule",
    "SimulatorError": "simulator.errors",
    "Site": "simulator.calls",
    "Trace": "simulator.trace",
    "UsageError": "simulator.errors",
    "Verdict": "simulator.verdict",
    "VerdictError": "simulator.errors",
    "Waiting": "simulator.waits",
    "agree": "simulator.agreeing",
    "explore": "simulator.api",
    "replay": "simulator.api",
    "shrink": "simulator.shrinking.shrunk_schedule",
    "simulate": "simulator.api",
    "simulate_program": "simulator.api",
}

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
    "RankLostError",
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
    "agree",
    "explore",
    "replay",
    "shrink",
    "simulate",
    "simulate_program",
]


def __getattr__(name: str) -> object:
    # torch takes a second to import, and neither `ddpsim --help` nor a saved report needs it: a public name is imported
    # when it is first asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ddpsim.simulator.imports import import_public_name

    value = globals()[name] = import_public_name(f"{__name__}.{_HOMES[name]}", name)
    return value
