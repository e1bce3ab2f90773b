"""Programs on both: on the simulator, then on real gloo processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from scenarios.agreement.breaking import LabelledProgram
from scenarios.agreement.comparison import Comparison, compare, simulated
from scenarios.agreement.interpreter import run_steps
from scenarios.agreement.pool import GlooPool, Job
from simulator import Result, Verdict

_PATIENCE_SECONDS = 10.0
"""For what the simulator passes: it ends by itself, and if it does not, that is to be beyond doubt."""


def compared(programs: Iterable[LabelledProgram], pool: GlooPool, *, still_seconds: float) -> Iterator[Comparison]:
    """Run each on both, and say whether they agree, in order.

    One that the simulator fails hangs on gloo once nothing in it has moved for `still_seconds`.
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
        yield compare(*simulations.popleft(), outcomes)
