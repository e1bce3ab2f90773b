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
    from ddpsim.simulator.api import compare, explore, replay, simulate, simulate_program
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

_PUBLIC_NAMES = {
    "agreeing": ("agree",),
    "api": ("compare", "explore", "replay", "simulate", "simulate_program"),
    "budget": ("Budget",),
    "calls": ("Call", "Site"),
    "choices": ("ChoiceKind", "ChoicePoint", "Policy", "Schedule"),
    "errors": (
        "InjectedCrashError",
        "InternalError",
        "RankLostError",
        "ReplayDivergedError",
        "ReplayError",
        "SimulatorError",
        "UsageError",
        "VerdictError",
    ),
    "events": ("Event", "EventKind"),
    "exploration.exploration": ("Exploration", "Progress"),
    "faults": ("Crash", "Delay", "EarlyReturn"),
    "policies.pct": ("Pct",),
    "result": ("Result",),
    "shrinking.greedy": ("ShrinkProgress",),
    "shrinking.shrunk_schedule": ("ShrunkSchedule", "shrink"),
    "trace": ("Trace",),
    "verdict": ("Code", "Finding", "Verdict"),
    "waits": ("Waiting",),
}
_HOMES = {name: f"{__name__}.simulator.{home}" for home, names in _PUBLIC_NAMES.items() for name in names}

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
    "compare",
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

    value = globals()[name] = import_public_name(_HOMES[name], name)
    return value
