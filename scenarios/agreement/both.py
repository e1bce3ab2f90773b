"""Programs on both: on the simulator, then on real gloo processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch.distributed as dist

from ddpsim import Result, Verdict
from ddpsim.scenarios.agreement.breaking import LabelledProgram
from ddpsim.scenarios.agreement.comparison import Comparison, compare, simulated
from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.pool import GlooPool, Job, PoolError
from ddpsim.scenarios.ranks.interpreter import run_steps
from ddpsim.simulator.errors import InjectedCrashError

MOST_RANKS = 64
"""Each is a process that is connected to all others."""
_PATIENCE_SECONDS = 10.0
"""For what the simulator passes: it ends by itself, and if it does not, that is to be beyond doubt."""

_DIST_ERRORS = (dist.DistError, dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)
_MADE = {
    Ending.DIED: {"SIGABRT", "SIGSEGV"},
    Ending.RAISED: {each.__name__ for each in (InjectedCrashError, RuntimeError, *_DIST_ERRORS)},
}
"""What gloo and programs end ranks with. Another signal was sent by the system, another error is one of ours: neither
says anything about the program.
"""


def compared(programs: Iterable[LabelledProgram], pool: GlooPool, *, still_seconds: float) -> Iterator[Comparison]:
    """Run each on both, and say whether they agree, in order.

    One that the simulator fails hangs on gloo once nothing in it has moved for `still_seconds`. Raises PoolError if a
    rank came to an end that neither gloo nor the program made.
    """
    simulations: deque[tuple[LabelledProgram, Result]] = deque()

    def jobs() -> Iterator[Job]:
        for labelled in programs:
            result = simulated(labelled.program)
            simulations.append((labelled, result))
            patience = max(still_seconds, _PATIENCE_SECONDS) if result.verdict is Verdict.PASS else still_seconds
            program = labelled.program
            yield Job(run_steps, program.world_size, (program,), still_seconds=patience)

    for _, outcomes in pool.run(jobs()):
        labelled, result = simulations.popleft()
        _check_made_by_gloo(labelled, outcomes)
        yield compare(labelled, result, outcomes)


def _check_made_by_gloo(labelled: LabelledProgram, outcomes: Sequence[RankOutcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        head, *_ = outcome.error.splitlines() or [""]
        if outcome.ending in _MADE and head.partition(":")[0] not in _MADE[outcome.ending]:
            raise PoolError(
                f"rank {rank} of seed {labelled.seed} {outcome.ending.value} ({head}), expected an ending that comes "
                "from gloo or the program: see whether the machine is short of memory or disk, and run it again"
            )
