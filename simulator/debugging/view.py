"""Takes the view of an execution, from which the debugger answers, out of the kernel's state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ddpsim.simulator.calls import Site
from ddpsim.simulator.debugging.answers import View
from ddpsim.simulator.debugging.stacks import brief_stack
from ddpsim.simulator.diagnosis.mismatch import early_mismatches
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.waits import ThreadWait


def view_of(run: Run, here: int | None, places: Mapping[int, Site], stacks: Mapping[int, str]) -> View:
    """Return the current view for a debugger in rank `here`. `places` and `stacks`: where each rank is."""
    early = tuple(finding for _, finding in early_mismatches(run.slots, run.steps, run.calls()))
    return View(
        run.snapshot(),
        None if run.running is None else run.running.rank_number,
        here,
        tuple(run.findings) or early,
        frozenset(rank.rank for rank in run.ranks if rank.main.is_enabled),
        places,
        {rank: brief_stack(stack, os.getcwd()) for rank, stack in stacks.items()},
    )


def why_not_visited(run: Run, rank: int, has_begun: Callable[[], bool]) -> str:
    """Return why a rank cannot be debugged; "" if it can. `has_begun` is called only for an existing rank."""
    if rank >= len(run.ranks):
        return f"there is no rank {rank}, expected 0 to {len(run.ranks) - 1}"
    main = run.ranks[rank].main
    if main.is_finished:
        how = "raised" if run.ranks[rank].error is not None else "returned"
        return f"rank {rank} has {how}: its program has no frame left to show"
    if isinstance(main.wait, ThreadWait) and main.wait.is_at_end:
        return f"rank {rank}'s program has ended and waits for its threads: it has no frame left to show"
    if not has_begun():
        return f"rank {rank} has not begun yet: it has no frame to show"
    return ""
