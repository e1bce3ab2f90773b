"""A marked test, run: its function on every rank, once, under a recorded schedule, or under many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import pytest

from scenarios.pytest_plugin.failure import RanksFailed, Run, has, judge, names_in_file, replay_command
from scenarios.pytest_plugin.fixtures import OPTIONS_KEY, SEED, RankFixtures, names_on_ranks
from scenarios.pytest_plugin.marker import MARKER, MarkerError, Options
from scenarios.pytest_plugin.output import Output
from scenarios.pytest_plugin.search import Search
from simulator import Budget, Code, ReplayDivergedError, Result, UsageError, explore, replay, simulate
from simulator.choices import program_on

RUN_KEY = pytest.StashKey[Run]()
"""What the last run of a test came to, on its item, until the test is reported."""


def run_test(item: pytest.Function) -> None:
    """Run a marked test; raise what it came to."""
    __tracebackhide__ = True
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name in item.funcargs}
    if getattr(item.obj, "is_hypothesis_test", False):
        from scenarios.pytest_plugin.drawn import run_drawn  # needs hypothesis, which such a test has imported

        run_drawn(item, partial(run_on_ranks, item), arguments)
    else:
        run_on_ranks(item, item.obj, (), arguments)


def run_on_ranks(
    item: pytest.Function, function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
    """Call a function on every rank, with that rank's fixtures added; raise what it came to."""
    __tracebackhide__ = True
    options = item.stash[OPTIONS_KEY]
    output = Output(item)

    def program(rank: int) -> None:
        __tracebackhide__ = True
        output.start(rank)
        fixtures = RankFixtures(item)
        try:
            own = {name: fixtures.value(name) for name in names_on_ranks(item)}
            asked = {name: value for name, value in own.items() if name in item._fixtureinfo.argnames}
            function(*arguments, **{**named, **asked})
        finally:
            fixtures.close()

    failure = _outcome(item, program, options, output)
    if failure is not None:
        _raise(failure)


def _outcome(
    item: pytest.Function, program: Callable[[int], None], options: Options, output: Output
) -> BaseException | None:
    """Run, and note what it came to; what the test is to raise, or None."""
    try:
        run = _run(item, program, options, output)
    except (UsageError, ReplayDivergedError, MarkerError) as error:
        return RanksFailed(str(error))
    failure = judge(run, options.expect)
    item.stash[RUN_KEY] = dataclasses.replace(run, error=failure)
    output.add_to(item)
    return failure


def _raise(failure: BaseException) -> NoReturn:
    """From a frame that is not hidden: pytest says so below a text if all are."""
    raise failure


def _run(item: pytest.Function, program: Callable[[int], None], options: Options, output: Output) -> Run:
    _check_expect(options.expect)
    world: dict[str, Any] = {
        "transport": options.transport,
        "faults": options.faults,
        "check": options.check,
        "budget": Budget(**options.budget) if isinstance(options.budget, Mapping) else options.budget,
        "name": program_name(item),
    }
    token, seed = item.config.getoption("ddpsim_replay"), _seed(item, options)
    if token is not None:
        is_drawn = getattr(item.obj, "is_hypothesis_test", False)  # other examples than the recorded one may run, too
        result = replay(program, options.world_size, token, strict=not is_drawn, **world)
    elif options.explore is not None:
        return _explore(item, program, options, output, seed or 0, world)
    else:
        policy = item.config.getoption("ddpsim_policy") or options.policy
        policy = policy or ("round_robin" if seed is None else "random")
        result = simulate(program, options.world_size, policy=policy, seed=seed or 0, **world)
    return Run(_with_command(item, result))


def _explore(
    item: pytest.Function,
    program: Callable[[int], None],
    options: Options,
    output: Output,
    seed: int,
    world: dict[str, Any],
) -> Run:
    wanted = None if options.expect is None else partial(has, code=Code(options.expect))
    search = Search(options.explore or {}, options.world_size, seed, wanted, on_next=output.forget)
    exploration = explore(program, options.world_size, policy=search, keep_going=wanted is not None, **world)
    if exploration.interrupted:
        raise KeyboardInterrupt
    shown = search.found or exploration.first_failure or search.last
    assert shown is not None, "an exploration runs at least once"
    result = _with_command(item, shown)
    if exploration.first_failure is not None:
        exploration = dataclasses.replace(exploration, first_failure=_with_command(item, exploration.first_failure))
    return Run(result, exploration)


def _with_command(item: pytest.Function, result: Result) -> Result:
    return result.with_replay(replay_command(item, str(result.schedule)))


def _seed(item: pytest.Function, options: Options) -> int | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    chosen = item.config.getoption("ddpsim_seed")
    return params.get(SEED, options.seed) if chosen is None else chosen


def _check_expect(expect: str | None) -> None:
    codes = [code.value for code in Code]
    if expect is not None and expect not in codes:
        from difflib import get_close_matches

        close = get_close_matches(expect, codes, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(codes)}"
        raise MarkerError(f"expect is {str(expect)!r}, expected a finding code: {remedy}")


def program_name(item: pytest.Function) -> str:
    """What replay tokens call a test: the same from whatever folder pytest is started."""
    return "::".join([item.path.name, *names_in_file(item)])


def belongs_to(item: pytest.Function, options: Options, token: str) -> bool:
    """True if a replay token was recorded for a test. Raises ReplayError for a damaged token."""
    from simulator.choices import Schedule

    return Schedule.is_recorded_for(token, program_on(program_name(item), options.world_size))


__all__ = ["MARKER", "RUN_KEY", "belongs_to", "run_test"]
