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

from ddpsim.simulator.imports import importer_of_public_names as _importer_of_public_names  # noqa: E402

if typing.TYPE_CHECKING:
    from ddpsim.simulator.agreeing import agree as agree
    from ddpsim.simulator.api import compare as compare
    from ddpsim.simulator.api import explore as explore
    from ddpsim.simulator.api import replay as replay
    from ddpsim.simulator.api import simulate as simulate
    from ddpsim.simulator.api import simulate_program as simulate_program
    from ddpsim.simulator.budget import Budget as Budget
    from ddpsim.simulator.calls import Call as Call
    from ddpsim.simulator.calls import Site as Site
    from ddpsim.simulator.choices import ChoiceKind as ChoiceKind
    from ddpsim.simulator.choices import ChoicePoint as ChoicePoint
    from ddpsim.simulator.choices import Policy as Policy
    from ddpsim.simulator.choices import Schedule as Schedule
    from ddpsim.simulator.crashing.sweep import crash as crash
    from ddpsim.simulator.crashing.values import BadPoint as BadPoint
    from ddpsim.simulator.crashing.values import CrashCode as CrashCode
    from ddpsim.simulator.crashing.values import CrashSweep as CrashSweep
    from ddpsim.simulator.errors import InjectedCrashError as InjectedCrashError
    from ddpsim.simulator.errors import InternalError as InternalError
    from ddpsim.simulator.errors import RankLostError as RankLostError
    from ddpsim.simulator.errors import ReplayDivergedError as ReplayDivergedError
    from ddpsim.simulator.errors import ReplayError as ReplayError
    from ddpsim.simulator.errors import SimulatorError as SimulatorError
    from ddpsim.simulator.errors import UsageError as UsageError
    from ddpsim.simulator.errors import VerdictError as VerdictError
    from ddpsim.simulator.events import Event as Event
    from ddpsim.simulator.events import EventKind as EventKind
    from ddpsim.simulator.exploration.exploration import Exploration as Exploration
    from ddpsim.simulator.exploration.exploration import Progress as Progress
    from ddpsim.simulator.faults import Crash as Crash
    from ddpsim.simulator.faults import Delay as Delay
    from ddpsim.simulator.faults import EarlyReturn as EarlyReturn
    from ddpsim.simulator.faults import How as How
    from ddpsim.simulator.faults import Strike as Strike
    from ddpsim.simulator.policies.pct import Pct as Pct
    from ddpsim.simulator.result import Result as Result
    from ddpsim.simulator.shrinking.greedy import ShrinkProgress as ShrinkProgress
    from ddpsim.simulator.shrinking.shrunk_schedule import ShrunkSchedule as ShrunkSchedule
    from ddpsim.simulator.shrinking.shrunk_schedule import shrink as shrink
    from ddpsim.simulator.trace import Trace as Trace
    from ddpsim.simulator.verdict import Code as Code
    from ddpsim.simulator.verdict import Finding as Finding
    from ddpsim.simulator.verdict import Verdict as Verdict
    from ddpsim.simulator.waits import Waiting as Waiting

_PUBLIC_NAMES = {
    "agreeing": ("agree",),
    "api": ("compare", "explore", "replay", "simulate", "simulate_program"),
    "budget": ("Budget",),
    "calls": ("Call", "Site"),
    "choices": ("ChoiceKind", "ChoicePoint", "Policy", "Schedule"),
    "crashing.sweep": ("crash",),
    "crashing.values": ("BadPoint", "CrashCode", "CrashSweep"),
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
    "faults": ("Crash", "Delay", "EarlyReturn", "How", "Strike"),
    "policies.pct": ("Pct",),
    "result": ("Result",),
    "shrinking.greedy": ("ShrinkProgress",),
    "shrinking.shrunk_schedule": ("ShrunkSchedule", "shrink"),
    "trace": ("Trace",),
    "verdict": ("Code", "Finding", "Verdict"),
    "waits": ("Waiting",),
}
_HOMES = {name: f"{__name__}.simulator.{home}" for home, names in _PUBLIC_NAMES.items() for name in names}

__all__ = list(_HOMES)

__getattr__ = _importer_of_public_names(__name__, _HOMES)
