"""Stacks of the process of a rank, without the outermost frames, which belong to ddpsim and the launcher."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from ddpsim.scenarios.jobs.rank_report import RankPosition
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.ranks.function import BETWEEN
from ddpsim.simulator.calls import Site
from ddpsim.simulator.runtime.call_sites import is_user_code


def call_program(scenario: Scenario, rank: int) -> Any:
    """Run the program of a rank. In a stack, the frames of the program begin below the frame of this function."""
    return scenario.program(rank, *scenario.args)


def traceback_below_call(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the program; the whole traceback if no frame is of the program."""
    below = trace
    while below is not None and below.tb_frame.f_code is not call_program.__code__:
        below = below.tb_next
    return below.tb_next if below is not None and below.tb_next is not None else trace


def program_stack_text(frame: FrameType | None) -> str:
    """Return the stack that ends in `frame` as text: from the program on, innermost frame last, without torch's own
    frames.

    If the stack has only torch frames, return all of them. `position_of_death` keeps torch's frames, because they show
    the operation in which a rank died.
    """
    frames = list(traceback.walk_stack(frame))
    own = next((n for n, (each, _) in enumerate(frames) if _is_above_program(each.f_code)), len(frames))
    below = frames[:own][::-1]
    users = [(each, line) for each, line in below if is_user_code(each.f_code)]
    return "".join(traceback.StackSummary.extract(iter(users or below)).format())


def _is_above_program(code: CodeType) -> bool:
    return code is call_program.__code__ or code.co_filename == BETWEEN


_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.*)')


def position_of_death(lines: Sequence[str]) -> RankPosition | None:
    """Return where the program of a dead rank was, from the output of faulthandler; None if the output does not show
    it."""
    sites: list[Site] = []
    for line in lines:
        found = _FRAME.fullmatch(line)
        if found is None:
            sites = []  # the stack of another thread begins
        elif (found["function"], found["path"]) == (call_program.__name__, __file__) or found["path"] == BETWEEN:
            return _position_of_sites(sites)
        else:
            sites.append(Site(found["path"], int(found["line"]), found["function"]))
    return None


def _position_of_sites(sites: Sequence[Site]) -> RankPosition:
    own = next((site for site in sites if is_user_code(compile("", site.path, "exec"))), None)
    stack = traceback.StackSummary.from_list([(site.path, site.line, site.function, None) for site in sites[::-1]])
    return RankPosition(0.0, own, "".join(stack.format()), ())
