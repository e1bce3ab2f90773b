"""Run a marked test: its function on every rank, either once, or with a recorded schedule, or with many schedules."""

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from math import inf
from typing import Any, NoReturn

import pytest

from ddpsim import Budget, Code, Result, UsageError, explore, simulate
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.pytest_plugin.failure import (
    RanksFailed,
    RunOfTest,
    failure_of_run,
    has_finding,
    replay_command,
    store_text_below_error,
    test_name_in_tokens,
)
from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY, SEED, RankFixtures, per_rank_fixture_names
from ddpsim.scenarios.pytest_plugin.marker import MarkerError, MarkerOptions, default_time_limit
from ddpsim.scenarios.pytest_plugin.rank_output import RankOutput, subtests_of_rank
from ddpsim.simulator.api import EXPLORATION_BUDGET
from ddpsim.simulator.choices import Policy
from ddpsim.simulator.errors import is_unexpected_error, make_internal_error
from ddpsim.simulator.exploration.strategy import ForwardingStrategy, Strategy, strategy_by_name
from ddpsim.simulator.policies.named import DEFAULT, DEFAULT_DRAWING, uses_seed
from ddpsim.simulator.verdict import Finding

MOST_STEPS = 1_000_000
"""The step limit of tests whose marker has none. An endless test reaches it after some 15 seconds, with 250 MiB of
events; the simulator's default, ten times as much, takes minutes and gigabytes."""

RUN = pytest.StashKey[RunOfTest]()
"""The stash key under which a test item keeps the outcome of its last run, until the test is reported."""


def run_marked_test(item: pytest.Function) -> None:
    """Run a marked test; raise its failure, or its skip, for pytest."""
    __tracebackhide__ = True
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name in item.funcargs}
    if _is_hypothesis_test(item):
        from ddpsim.scenarios.pytest_plugin.hypothesis_runs import run_hypothesis_test  # needs hypothesis

        run_hypothesis_test(item, partial(run_on_ranks, item), arguments)
    else:
        run_on_ranks(item, item.obj, (), arguments)


def _is_hypothesis_test(item: pytest.Function) -> bool:
    return getattr(item.obj, "is_hypothesis_test", False)


def run_on_ranks(
    item: pytest.Function, function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
    """Call a function on every rank, with the rank's fixtures as arguments. Raise the failure or skip of the run."""
    __tracebackhide__ = True
    options = item.stash[OPTIONS_KEY]
    output, own_names = RankOutput(item), per_rank_fixture_names(item)

    @wraps(function, assigned=(), updated=())  # as `begin_function` reads it
    def run_test_on_rank(rank: int) -> Any:
        """Run the test on one rank: make the fixtures, call the function, tear the fixtures down."""
        __tracebackhide__ = True
        output.install_streams(rank)
        fixtures, value = RankFixtures(item), None
        errors: list[BaseException] = []
        try:
            own = {name: fixtures.fixture_value(name) for name in own_names}
            asked = {name: value for name, value in own.items() if name in item._fixtureinfo.argnames}
            with subtests_of_rank(rank, named) as given:
                value = function(*arguments, **given, **asked)
        except BaseException as error:
            output.note_error(rank, error)
            errors.append(error)
        errors += fixtures.tear_down()
        if errors:
            raise output.most_severe_error(rank, errors)
        return value

    with keep_rank_patches(item):
        failure = _run_and_store_outcome(item, run_test_on_rank, options, output)
    if failure is None:
        failure = _warn_of_returned_values(item)
    if isinstance(failure, RanksFailed):
        _raise_in_shown_frame(failure)
    if failure is not None:
        raise failure


def _warn_of_returned_values(item: pytest.Function) -> RanksFailed | None:
    """Warn if the test function returned a value on a rank, as pytest does. Return an error if warnings are errors."""
    if all(value is None for value in item.stash[RUN].result.returns):
        return None
    text = f"{item.nodeid} returned a value, expected None: did you mean to assert?"
    path, line, _ = item.reportinfo()
    try:
        warnings.warn_explicit(pytest.PytestReturnNotNoneWarning(text), None, str(path), (line or 0) + 1)
    except pytest.PytestReturnNotNoneWarning as error:
        return RanksFailed(f"{type(error).__name__}: {error}")
    return None


def _run_and_store_outcome(
    item: pytest.Function, program: Callable[[int], Any], options: MarkerOptions, output: RankOutput
) -> BaseException | None:
    """Run the test, store the outcome on its item, and return the exception to raise; None if there is none."""
    try:
        run = _run_once_or_explore(item, program, options, output)
    except (UsageError, MarkerError) as error:
        return RanksFailed(str(error))
    except Exception as error:
        if type(error).__name__ == "BdbQuit":  # compared by name: only a debugger imports bdb
            return pytest.exit.Exception("the run was ended in a debugger")  # ends the session, as without ranks
        if not is_unexpected_error(error):
            raise
        return RanksFailed(str(make_internal_error(error, "the pytest plugin")))
    failure = run.error or failure_of_run(run, options.expect)
    item.stash[RUN] = run = dataclasses.replace(run, error=failure)
    if failure is not None and _is_hypothesis_test(item):
        store_text_below_error(failure, run)
    return failure


def failed_run_of(item: pytest.Item) -> RunOfTest | None:
    """Return the failed run of a test; None if no run failed, for instance if hypothesis itself fails the test."""
    run = item.stash.get(RUN, None)
    return None if run is None or run.error is None else run


def drop_stored_run(item: pytest.Item) -> None:
    """Drop the stored run of a test that has been reported, because the run keeps objects of the ranks alive."""
    if RUN in item.stash:
        del item.stash[RUN]


def add_report_sections(item: pytest.Item) -> None:
    """Add to a test's report the output that its ranks printed in the last run, and the hazards if it passed."""
    run = item.stash.get(RUN, None)
    if run is None:
        return
    run.output.add_report_sections(item)
    if run.error is None and run.result.findings:
        item.add_report_section("call", "findings", "\n\n".join(finding.body for finding in run.result.findings))


def _raise_in_shown_frame(failure: RanksFailed) -> NoReturn:
    """Raise the failure from a frame that pytest shows, because pytest adds a remark if all frames are hidden."""
    raise failure


def _run_once_or_explore(
    item: pytest.Function, program: Callable[[int], Any], options: MarkerOptions, output: RankOutput
) -> RunOfTest:
    """Run the test once, or with a recorded schedule, or with many schedules."""
    _check_finding_code(options.expect)
    world: dict[str, Any] = {
        "poison": options.explore is not None,
        **options.of_run,
        "budget": _budget_of_test(item, options),
        "name": test_name_in_tokens(item),
    }
    token, seed = item.config.getoption("ddpsim_replay"), seed_of_test(item, options)
    if token is not None:
        from ddpsim.scenarios.pytest_plugin.token_replay import replay_test

        is_strict = not _is_hypothesis_test(item)  # hypothesis may run other examples than the recorded one
        result, left = replay_test(program, options.world_size, token, world, is_strict=is_strict)
        return RunOfTest(_with_replay_command(item, result), output, error=left)
    if options.explore is not None:
        return _explore_test(item, program, options, output, seed or 0, world)
    result = simulate(program, options.world_size, policy=policy_of_test(item, options, seed), seed=seed or 0, **world)
    return RunOfTest(_with_replay_command(item, result), output)


def _budget_of_test(item: pytest.Function, options: MarkerOptions) -> Budget:
    given, seconds = options.budget, default_time_limit(item.config)
    if given is None and options.explore is not None:
        given = dataclasses.replace(EXPLORATION_BUDGET, steps=MOST_STEPS, seconds=seconds)
    elif not isinstance(given, Budget):
        given = Budget(**{"steps": MOST_STEPS, "seconds": seconds, **(given or {})})
    if any(item.config.getoption(name, False) for name in ("usepdb", "trace")):
        return dataclasses.replace(given, seconds=inf, stuck_seconds=inf)  # the user debugs a rank
    return given


def _explore_test(
    item: pytest.Function,
    program: Callable[[int], Any],
    options: MarkerOptions,
    output: RankOutput,
    seed: int,
    world: dict[str, Any],
) -> RunOfTest:
    """Run the test with many schedules, until one has the expected finding, or one fails."""
    wanted = None if options.expect is None else partial(has_finding, code=Code(options.expect))
    strategy = strategy_by_name(world_size=options.world_size, seed=seed, **(options.explore or {}))
    search = _SearchForFinding(strategy, wanted, output.drop_last_run)
    exploration = explore(program, options.world_size, policy=search, keep_going=wanted is not None, **world)
    if exploration.interrupted:
        raise KeyboardInterrupt
    failed = exploration.first_failure
    shown = search.found or failed or search.last
    assert shown is not None, "an exploration runs at least once"
    result = _with_replay_command(item, shown)
    if failed is not None:
        exploration = dataclasses.replace(exploration, first_failure=_with_replay_command(item, failed))
    return RunOfTest(result, output, exploration)


class _SearchForFinding(ForwardingStrategy):
    """An exploration strategy that ends at the first run with a wanted result."""

    def __init__(
        self, strategy: Strategy, is_wanted: Callable[[Result], bool] | None, on_next: Callable[[], None]
    ) -> None:
        """The function `on_next` is called before each run."""
        super().__init__(strategy)
        self._is_wanted = is_wanted
        self._on_next = on_next
        self.found: Result | None = None
        self.last: Result | None = None

    def next_policy(self) -> Policy | None:
        policy = None if self.found else super().next_policy()
        if policy is not None:
            self._on_next()
        return policy

    def take(self, result: Result) -> Finding | None:
        finding = super().take(result)
        self.last = result
        if self._is_wanted is not None and self._is_wanted(result):
            self.found = result
        return finding


def _with_replay_command(item: pytest.Function, result: Result) -> Result:
    return result.with_replay(replay_command(item, str(result.schedule)))


def seed_of_test(item: pytest.Function, options: MarkerOptions) -> int | None:
    """Return the seed of a test: from the command line; else from the test's parameter; else from its marker."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    chosen = item.config.getoption("ddpsim_seed")
    return params.get(SEED, options.seed) if chosen is None else chosen


def policy_of_test(item: pytest.Function, options: MarkerOptions, seed: int | None) -> Any:
    """Return the scheduling policy of a test: from the command line; else from its marker; else the default. For tests
    with `seeds=`, a policy that uses no seed is ignored, because all runs would be the same."""
    for_all = item.config.getoption("ddpsim_policy")
    if options.seeds and not uses_seed(for_all):
        for_all = None
    return for_all or options.policy or (DEFAULT if seed is None else DEFAULT_DRAWING)


def _check_finding_code(expect: str | None) -> None:
    codes = [code.value for code in Code]
    if expect is not None and expect not in codes:
        remedy = suggest_nearest_name(expect, codes) or f"the codes are {', '.join(codes)}"
        raise MarkerError(f"expect is {str(expect)!r}, expected a finding code: {remedy}")


_RANK_LOCAL_ATTRIBUTES = (
    *((sys, name) for name in ("argv", "excepthook", "stdin", "stdout", "stderr")),
    *((warnings, name) for name in ("filters", "showwarning", "_showwarnmsg_impl")),
)
"""Objects with an attribute that has a value for each rank: the simulator swaps them at context switches."""


@contextmanager
def keep_rank_patches(item: pytest.Function) -> Iterator[None]:
    """In this block, a run, keep `monkeypatch` from undoing patches that ranks made to their own state.

    All ranks share the fixture `monkeypatch`, which undoes its patches after the run. A rank's own state, such as
    `os.environ`, ends with the rank. An undo after the run would write the rank's old values into the process.
    """
    patchers = [value for value in item.funcargs.values() if isinstance(value, pytest.MonkeyPatch)]
    before = [(patcher, (list(patcher._setitem), list(patcher._setattr))) for patcher in patchers]
    try:
        yield
    finally:
        for patcher, (items, attributes) in before:
            patcher._setitem[:] = _patches_to_undo(items, patcher._setitem)
            patcher._setattr[:] = _patches_to_undo(attributes, patcher._setattr)


def _patches_to_undo(before: list[Any], now: list[Any]) -> list[Any]:
    """Return the patches that `monkeypatch` should undo after the run. A rank may have undone them itself."""
    kept = [each for each in before if _is_rank_local(each) or any(each is other for other in now)]
    return kept + [each for each in now if not _is_rank_local(each) and not any(each is other for other in kept)]


def _is_rank_local(record: tuple[Any, ...]) -> bool:
    target, name, _ = record
    is_environ = target is os.environ or target is getattr(os, "environb", None)
    return is_environ or any(target is module and name == attribute for module, attribute in _RANK_LOCAL_ATTRIBUTES)
