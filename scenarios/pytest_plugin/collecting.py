"""Find the tests marked to run on ranks, and check them.

One that cannot run is replaced by a test that fails with the reason.
"""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ddpsim.scenarios.pytest_plugin.fixtures import (
    OPTIONS_KEY,
    SEED,
    fixture_definitions_of,
    per_rank_fixture_names,
    per_rank_function_of,
)
from ddpsim.scenarios.pytest_plugin.marker import MARKER, MarkerError, MarkerOptions, options_of_mark


class UnusableTest(pytest.Item):
    """A test item for a marked test that cannot run on ranks; it fails with the reason in one line."""

    def __init__(self, *, why: MarkerError, line: int = 0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._why = why
        self._line = line

    def runtest(self) -> None:
        """Fail with the reason why the marked test cannot run."""
        pytest.fail(str(self._why), pytrace=False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the reason, located at the marked test's own line."""
        shown: Any = super().repr_failure(excinfo, style)
        if self.config.option.tbstyle == "line":
            shown.reprtraceback.reprentries = []  # pytest prints the reason after the location
        crash = shown.reprcrash
        crash.path, crash.lineno, crash.message = str(self.path), self._line + 1, str(self._why)
        return shown

    def reportinfo(self) -> tuple[Any, int, str]:
        """Return the file, line and name of the marked test."""
        classes = [node.name for node in self.listchain() if isinstance(node, pytest.Class)]
        return self.path, self._line, ".".join([*classes, self.name])


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> UnusableTest | None:
    """Return a test item that fails, in place of a marked class or generator function; None for anything else.
    Otherwise pytest would collect each method of the class, and would refuse the whole module of the generator."""
    marks = getattr(obj, "pytestmark", ())
    names = [getattr(mark, "name", "") for mark in (marks if isinstance(marks, list) else [marks])]
    if MARKER not in names or not isinstance(collector, (pytest.Module, pytest.Class)):
        return None
    if inspect.isclass(obj):
        if not collector.istestclass(obj, name):
            return None
        why = f"is on class {name}, expected on a test function: mark each of its methods"
    else:
        if not (collector.istestfunction(obj, name) and inspect.isgeneratorfunction(obj)):
            return None
        why = f"{name} is a generator, expected a plain function: remove its yield"
    line = getattr(getattr(obj, "__code__", None), "co_firstlineno", 1) - 1
    return UnusableTest.from_parent(collector, name=name, why=MarkerError(why), line=line)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each seed of its `seeds=`, or only for the seed on the command line if there is one."""
    marks = list(metafunc.definition.iter_markers(MARKER))
    if not marks or "seeds" not in marks[0].kwargs:
        return
    try:
        seeds = options_of_mark(marks[0]).seeds
    except MarkerError:
        return  # reported when the test is prepared
    only = metafunc.config.getoption("ddpsim_seed")
    chosen = seeds if only is None else (only,)
    metafunc.fixturenames.append(SEED)
    metafunc.parametrize(SEED, chosen, ids=[f"seed{seed}" for seed in chosen], indirect=True)


def prepare_marked_tests(items: list[pytest.Item]) -> None:
    """Store on each marked test the options of its marker. Replace each test that cannot run by a test that fails."""
    for index, item in enumerate(items):
        marks = list(item.iter_markers_with_node(MARKER))
        if not marks or isinstance(item, UnusableTest):
            continue
        try:
            function = _checked_function(item, [node for node, _ in marks])
            options = _options_of_marks(function, [mark for _, mark in marks])
            _check_fixtures(function)
        except MarkerError as error:
            items[index] = _unusable_test(item, error)
        else:
            item.stash[OPTIONS_KEY] = options
            on_ranks = per_rank_fixture_names(function)
            function.fixturenames = [name for name in function.fixturenames if name not in on_ranks]


def fail_all_marked_tests(items: list[pytest.Item], why: str) -> None:
    """Replace all tests on ranks by tests that fail with the reason `why`."""
    for index, item in enumerate(items):
        if OPTIONS_KEY in item.stash:
            items[index] = _unusable_test(item, MarkerError(why))


def _unusable_test(item: pytest.Item, why: MarkerError) -> UnusableTest:
    assert item.parent is not None, "every item has a parent"
    return UnusableTest.from_parent(item.parent, name=item.name, why=why, line=item.location[1] or 0)


def marked_tests(items: list[pytest.Item]) -> Iterator[tuple[pytest.Function, MarkerOptions]]:
    """Yield the tests that are marked to run on ranks, each with the options of its marker."""
    for item in items:
        options = item.stash.get(OPTIONS_KEY, None)
        if options is not None and isinstance(item, pytest.Function):
            yield item, options


def _checked_function(item: pytest.Item, marked_nodes: list[Any]) -> pytest.Function:
    """Return the function of a marked test. Raises MarkerError if it is no plain function that ranks can run."""
    if not isinstance(item, pytest.Function):
        raise MarkerError(f"{item.name} is a {type(item).__name__}, expected a test function: remove the marker")
    unittest = sys.modules.get("unittest")
    if unittest is not None and item.cls is not None and issubclass(item.cls, unittest.TestCase):
        raise MarkerError(f"{item.name} is in a unittest.TestCase, expected a plain class: leave out the base class")
    outer = next((node for node in marked_nodes if node is not item), None)
    if outer is not None:
        kind = type(outer).__name__.lower()
        raise MarkerError(f"is on {kind} {outer.name}, expected on a test function: mark the functions that need it")
    inner = getattr(getattr(item.obj, "hypothesis", None), "inner_test", item.obj)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise MarkerError(f"{item.originalname} is async, expected a plain function: call asyncio.run in it")
    if inspect.isgeneratorfunction(inner):
        raise MarkerError(f"{item.originalname} is a generator, expected a plain function: remove its yield")
    return item


def _options_of_marks(item: pytest.Function, marks: list[pytest.Mark]) -> MarkerOptions:
    """Return the options of a test's marker. Those given in `pytest.param` override those of the function's marker."""
    in_parameters = getattr(getattr(item, "callspec", None), "marks", ())
    of_parameter = [mark for mark in marks if any(mark is each for each in in_parameters)]
    on_function = [mark for mark in marks if not any(mark is each for each in in_parameters)]
    for found, where in ((on_function, f"on {item.originalname}"), (of_parameter, f"in the parameters of {item.name}")):
        if len(found) > 1:
            raise MarkerError(f"the marker is given {len(found)} times {where}, expected once: keep one of them")
    if any("seeds" in mark.kwargs for mark in of_parameter):
        raise MarkerError("seeds= is in pytest.param, expected on the function: write seed= in pytest.param")
    first, *parameters = on_function + of_parameter
    return options_of_mark(first, of_parameter=parameters[0] if parameters else None)


def _check_fixtures(item: pytest.Function) -> None:
    chains = item._fixtureinfo.name2fixturedefs
    for name, definition in fixture_definitions_of(item).items():
        is_on_ranks = per_rank_function_of(definition) is not None
        if is_on_ranks and name in definition.argnames:
            raise MarkerError(
                f"fixture {name!r} requests the fixture that it overrides, which @per_rank does not support: rename it"
            )
        for asked in () if is_on_ranks else definition.argnames:
            if any(per_rank_function_of(each) for each in chains.get(asked, ())[-1:]):
                raise MarkerError(
                    f"fixture {name!r} is made once for all ranks, but requests {asked!r}, which each rank makes: "
                    "write @per_rank (from ddpsim.scenarios import per_rank) instead of @pytest.fixture"
                )
