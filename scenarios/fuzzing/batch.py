"""Run one batch of a fuzzing campaign. The result depends only on the plan and the batch number, in any process.

By default hypothesis also draws constants that it finds in the loaded modules. These constants differ between
processes, and between versions of a file. So this module registers a hypothesis provider that ignores them.
"""

import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.loader import load
from ddpsim.scenarios.files.value_scenarios import training_of_scenario
from ddpsim.scenarios.fuzzing.campaign_report import BatchReport, FuzzExecution, make_batch_report
from ddpsim.scenarios.fuzzing.judging import TimeIsUpError, run_and_judge
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.strategies import schedules
from ddpsim.scenarios.fuzzing.strategies.whole import scenarios
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.run_as import with_run_options
from ddpsim.simulator.ctrl_c import CtrlCGuard

_MOST_ANSWERS = 200
"""The most choices in a drawn schedule of a named scenario, because the number of its choices is not known."""

Drawn = TypeVar("Drawn")


def run_batch(plan: CampaignPlan, number: int, seconds: float = inf) -> BatchReport:
    """Draw scenarios from the batch's seed, run each, and return a report. Start none after `seconds`."""
    executions: list[FuzzExecution] = []
    share = plan.executions_of_batch(number)
    start = time.perf_counter()

    def run_drawn_scenario(scenario: Scenario) -> None:
        if len(executions) >= share:
            return
        with suppress(TimeIsUpError):  # caught here, because hypothesis would run a failing example again
            for execution in run_and_judge(scenario, _engines_for_scenario(scenario, plan), start + seconds):
                executions.append(execution)
                ctrl_c.raise_if_pressed()

    with use_campaign_settings(), CtrlCGuard() as ctrl_c:
        draw_values(_scenario_strategy(plan), plan.seed + number, share, run_drawn_scenario)
    report = make_batch_report(number, executions, time.perf_counter() - start, is_interrupted=ctrl_c.is_pressed)
    return replace(report, standing=str(ctrl_c.raised or ""))


def _scenario_strategy(plan: CampaignPlan) -> st.SearchStrategy[Scenario]:
    if not plan.name:
        return scenarios(kinds=plan.kinds, engines=plan.engines, for_torch=plan.for_torch)
    named = replace(with_run_options(load(plan.name), plan.options), name=plan.saved_as)
    return st.builds(
        lambda world_size, choices: replace(named.with_world_size(world_size), choices=choices),
        st.integers(*plan.world_sizes),
        schedules(max_choices=_MOST_ANSWERS),
    )


def _engines_for_scenario(scenario: Scenario, plan: CampaignPlan) -> tuple[Engine, ...]:
    """Return the engines on which to run a drawn scenario.

    A scenario drawn for torch's engine runs on all engines; any other runs on its own engine only. A training over a
    device mesh runs once, because no engine wraps its model.
    """
    training = training_of_scenario(scenario)
    if not plan.name and training is not None and training.needs_mesh:
        return plan.engines[:1]
    return plan.engines if plan.name or scenario.engine is Engine.TORCH else (scenario.engine,)


@contextmanager
def use_campaign_settings() -> Iterator[None]:
    """In this block, use one torch thread, so that sums are equal on all machines, and silence deprecation warnings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torch.distributed.optim")  # takes seconds, in which a rank would look stuck
            yield
    finally:
        torch.set_num_threads(threads)


class SeedOnlyProvider(HypothesisProvider):
    """A hypothesis provider that draws values without constants of the loaded modules."""

    def _maybe_draw_constant(self, *_: Any, **__: Any) -> None:
        return None


_BACKEND = "ddpsim-by-the-seed"
AVAILABLE_PROVIDERS[_BACKEND] = SeedOnlyProvider  # hypothesis selects a backend by its name in this registry


def draw_values(strategy: st.SearchStrategy[Drawn], number: int, count: int, take: Callable[[Drawn], object]) -> None:
    """Draw `count` values from `strategy`, and pass each to `take`.

    The values depend only on the strategy and the seed `number`.
    """
    decorate = settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        backend=_BACKEND,
    )

    def pass_value_on(value: Drawn) -> None:
        take(value)

    seed(number)(decorate(given(strategy)(pass_value_on)))()
