"""A test under `simulate`, in one of the ways in which programs run there."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from ddpsim import Budget, Result, UsageError, Verdict, simulate
from tests.conformance.adapter import Setting, prepare, run_test
from tests.conformance.outcome import Outcome, Status, first_line, of_all
from tests.conformance.ways import Way

BUDGET = Budget(seconds=600.0, stuck_seconds=300.0)


def on_simulator(setting: Setting, way: Way) -> Outcome:
    """Run the test on simulated ranks. A finding that is no hazard fails it, whatever its ranks thought."""
    setting = replace(setting, shares_process=way.isolation == "thread")
    prepare(setting)
    try:
        result = simulate(
            _rank,
            setting.suite.world_size,
            args=(setting,),
            policy="round_robin" if way.seed is None else "random",
            seed=way.seed or 0,
            isolation=way.isolation,
            transport=way.transport,
            budget=BUDGET,
        )
    except UsageError as error:
        return Outcome(Status.FAILED, first_line(f"refused: {error}"))
    return _outcome(result)


def _rank(rank: int, setting: Setting) -> Outcome:
    dist.destroy_process_group()  # the test makes its own
    return run_test(rank, setting)


def _outcome(result: Result) -> Outcome:
    if result.verdict is Verdict.PASS:
        return of_all(result.returns)
    finding = next(finding for finding in result.findings if not str(finding.code).startswith("hazard"))
    return Outcome(Status.FAILED, f"{finding.code}: {first_line(finding.summary)}")
