"""Fixtures of marked tests: `rank`, `world_size`, and the decorator `per_rank`, which makes a fixture on each rank.

pytest makes an ordinary fixture once per test, before the ranks start, and every rank gets the same value. A `per_rank`
fixture is made on each rank, inside the simulation; pytest makes the ordinary fixtures that it requests.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NoReturn

import pytest

from ddpsim.scenarios.pytest_plugin.marker import MARKER, MarkerError, MarkerOptions

OPTIONS_KEY = pytest.StashKey[MarkerOptions]()
"""The stash key under which a test item keeps the options of its marker."""

IS_FURTHER_ATTEMPT = pytest.StashKey[bool]()
"""The stash key that says that a test of a suite (`--ddpsim`) has run before in this session."""

SEED = "ddpsim_seed"
"""The name of the fixture with the seed, by which pytest parametrizes a test with `seeds=`."""


def per_rank(function: Callable[..., Any]) -> Any:
    """Decorate a function as a pytest fixture that each rank makes for itself.

    It may request `rank`, ordinary fixtures and other `per_rank` fixtures. The code after a `yield` runs when the rank
    ends, also after an error.
    """

    @wraps(function)
    def reject_call_outside_ranks(*arguments: object, **named: object) -> None:
        raise AssertionError("a per_rank fixture was made outside ranks: request it in a test with the marker `ranks`")

    reject_call_outside_ranks.made_on_each_rank = function  # type: ignore[attr-defined]
    return pytest.fixture(reject_call_outside_ranks)


@per_rank
def rank() -> int:
    """The number of the rank that runs the test."""
    import torch.distributed as dist

    return dist.get_rank()


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks that run the test."""
    options = request.node.stash.get(OPTIONS_KEY, None)
    if options is None:
        pytest.fail(f"fixture 'world_size' is for tests marked @pytest.mark.{MARKER}: mark the test", pytrace=False)
    return int(options.world_size)


@pytest.fixture
def ddpsim_seed(request: pytest.FixtureRequest) -> int:
    """The seed of a test with `seeds=`."""
    return int(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
    """Fail if pytest is about to make a `per_rank` fixture outside ranks; the message names the requested fixture."""
    __tracebackhide__ = True
    if per_rank_function_of(fixturedef) is None:
        return
    try:
        _refuse_fixture(request)
    except BaseException as error:  # kept as pytest keeps it, or the next test that asks for it crashes
        fixturedef.cached_result = (None, fixturedef.cache_key(request), (error, error.__traceback__))
        raise


def _refuse_fixture(request: Any) -> NoReturn:
    __tracebackhide__ = True
    chain = [each._fixturedef for each in request._iter_chain()]
    asked = next(each for each, above in zip(chain, [*chain[1:], None], strict=True) if not per_rank_function_of(above))
    if asked is chain[-1] and OPTIONS_KEY in request._pyfuncitem.stash:
        raise MarkerError(
            f"fixture {asked.argname!r} is requested by name (getfixturevalue), but must be made before that: write "
            f"{asked.argname} as an argument of the test, and use that"
        )
    pytest.fail(
        f"fixture {asked.argname!r} is made on each rank, expected in a test marked @pytest.mark.{MARKER}, or in a "
        "@per_rank fixture: mark the test, or use per_rank (from ddpsim.scenarios import per_rank) instead of "
        "pytest.fixture",
        pytrace=False,
    )


def per_rank_function_of(definition: pytest.FixtureDef[Any] | None) -> Callable[..., Any] | None:
    """Return the user's function of a `per_rank` fixture; None if it is an ordinary fixture, or None."""
    function: Callable[..., Any] | None = getattr(getattr(definition, "func", None), "made_on_each_rank", None)
    return function


def fixture_definitions_of(item: pytest.Function) -> dict[str, pytest.FixtureDef[Any]]:
    """Return the definitions of a test's fixtures, by name."""
    return {name: found[-1] for name, found in item._fixtureinfo.name2fixturedefs.items() if found}


def per_rank_fixture_names(item: pytest.Function) -> tuple[str, ...]:
    """Return the names of a test's `per_rank` fixtures."""
    return tuple(name for name, definition in fixture_definitions_of(item).items() if per_rank_function_of(definition))


class RankFixtures:
    """The values of the `per_rank` fixtures on one rank."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item
        self._definitions = fixture_definitions_of(item)
        self._values: dict[str, Any] = {}
        self._open: list[tuple[str, Iterator[Any]]] = []

    def fixture_value(self, name: str) -> Any:
        """Return the value of a fixture. A `per_rank` fixture is made when it is first requested."""
        __tracebackhide__ = True
        maker = per_rank_function_of(self._definitions.get(name))
        if maker is None:
            return self._item.funcargs[name]
        if name not in self._values:
            definition = self._definitions[name]
            if inspect.ismethod(definition.func):
                maker = maker.__get__(self._item.instance)
            arguments = {each: self.fixture_value(each) for each in definition.argnames}
            self._values[name] = self._make_fixture(name, maker, arguments)
        return self._values[name]

    def _make_fixture(self, name: str, maker: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        __tracebackhide__ = True
        if not inspect.isgeneratorfunction(maker):
            return maker(**arguments)
        made: Iterator[Any] = maker(**arguments)
        for value in made:
            self._open.append((name, made))
            return value
        raise MarkerError(f"fixture {name!r} did not yield, expected one yield: add it, or return the value")

    def tear_down(self) -> list[BaseException]:
        """Tear down the rank's fixtures, the fixture made last first, and return the exceptions raised."""
        __tracebackhide__ = True
        errors: list[BaseException] = []
        while self._open:
            name, made = self._open.pop()
            try:
                for _ in made:
                    raise MarkerError(f"fixture {name!r} yields twice, expected one yield: remove the second")
            except BaseException as error:
                errors.append(error)
        return errors
