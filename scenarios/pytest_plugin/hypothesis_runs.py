"""Tests with hypothesis' `@given`: each example is a run on all ranks. hypothesis calls the attribute
`test.hypothesis.inner_test` for each example; plugins may replace this attribute.

So hypothesis' search, shrinking and database work as usual, outside the simulation.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.control import _current_build_context

from ddpsim.scenarios.pytest_plugin.fixtures import per_rank_fixture_names

RunTestOnRanks = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], None]


class _PerRankPlaceholder:
    """Stands for a `per_rank` fixture's value when hypothesis prints an example: each rank has its own."""

    def __repr__(self) -> str:
        return "<each rank's own>"


def run_hypothesis_test(item: pytest.Function, run: RunTestOnRanks, arguments: Mapping[str, Any]) -> None:
    """Run a test with `@given`, each example on all ranks."""
    __tracebackhide__ = True
    own = {name: _PerRankPlaceholder() for name in per_rank_fixture_names(item) if name in item._fixtureinfo.argnames}
    with _run_examples_on_ranks(item, run, frozenset(own)):
        item.obj(**arguments, **own)


@contextmanager
def _run_examples_on_ranks(item: pytest.Function, run: RunTestOnRanks, own: frozenset[str]) -> Iterator[None]:
    """Let hypothesis run each example by calling `run`.

    `own` has the names of `per_rank` fixtures, which each rank makes itself.
    """
    handle = item.obj.hypothesis
    original = handle.inner_test

    @wraps(original)
    def run_example_on_ranks(*arguments: Any, **named: Any) -> None:
        __tracebackhide__ = True
        context = _current_build_context.value

        def in_context(*arguments: Any, **named: Any) -> None:
            __tracebackhide__ = True
            with _current_build_context.with_value(context):  # hypothesis keeps one per thread
                original(*arguments, **named)

        run(in_context, arguments, {name: value for name, value in named.items() if name not in own})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle, "inner_test", run_example_on_ranks)
        yield


@contextmanager
def adapted_hypothesis_settings(item: pytest.Function) -> Iterator[None]:
    """In this block, adapt the hypothesis settings of a test to runs on ranks.

    The block surrounds hypothesis' own pytest plugin. There is no deadline unless the test sets one, because the first
    use of torch is slow. One health check is off, because `per_rank` fixtures are made anew for each example. The
    explain phase is off, because it would trace the lines of the host, not those of the ranks.
    """
    function = getattr(item.obj, "__func__", item.obj)
    before = function._hypothesis_internal_use_settings
    default = settings.default
    is_default = default is not None and before.deadline == default.deadline
    adapted = settings(
        before,
        deadline=None if is_default else before.deadline,
        suppress_health_check={
            *before.suppress_health_check,
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        },
        phases=[phase for phase in before.phases if phase is not Phase.explain],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "_hypothesis_internal_use_settings", adapted)
        yield
