"""Which items are marked tests, and which of them cannot run: those become tests that fail with one line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ddpsim.scenarios.pytest_plugin.fixtures import OPTIONS_KEY, SEED, definitions_of, maker_of, names_on_ranks
from ddpsim.scenarios.pytest_plugin.marker import MARKER, MarkerError, Options, options_of


class UnusableTest(pytest.Item):
    """A test that cannot run on ranks; it fails, and says why in one line."""

    def __init__(self, *, why: MarkerError, line: int = 0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._why = why
        self._line = line

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(str(self._why), pytrace=False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The line, at the place of the test."""
        shown: Any = super().repr_failure(excinfo, style)
        if self.config.option.tbstyle == "line":
            shown.reprtraceback.reprentries = []  # it stands behind the place
        crash = shown.reprcrash
        crash.path, crash.lineno, crash.message = str(self.path), self._line + 1, str(self._why)
        return shown

    def reportinfo(self) -> tuple[Any, int, str]:
        """Where it would stand."""
        classes = [node.name for node in self.listchain() if isinstance(node, pytest.Class)]
        return self.path, self._line, ".".join([*classes, self.name])


def make_unusable(collector: pytest.Collector, name: str, obj: Any) -> UnusableTest | None:
    """In the place of what pytest would refuse with the whole module, or take apart: a generator, a class."""
    if not (isinstance(collector, (pytest.Module, pytest.Class)) and _is_marked(obj)):
        return None
    if inspect.isclass(obj):
        if not collector.istestclass(obj, name):
            return None
        why = f"stands on class {name}, expected a test function: mark each of its methods"
    else:
        if not (collector.istestfunction(obj, name) and inspect.isgeneratorfunction(obj)):
            return None
        why = f"{name} is a generator, expected a plain function: a test does not yield"
    line = getattr(getattr(obj, "__code__", None), "co_firstlineno", 1) - 1
    return UnusableTest.from_parent(collector, name=name, why=MarkerError(why), line=line)


def _is_marked(obj: Any) -> bool:
    marks = getattr(obj, "pytestmark", ())
    return any(getattr(mark, "name", "") == MARKER for mark in (marks if isinstance(marks, list) else [marks]))


def add_seeds(metafunc: pytest.Metafunc, only: int | None) -> None:
    """One test for each seed of `seeds=`; for `only` that one, if it is given."""
    marks = list(metafunc.definition.iter_markers(MARKER))
    if not marks or "seeds" not in marks[0].kwargs:
        return
    try:
        seeds = options_of(marks[0]).seeds
    except MarkerError:
        return  # the test will say so
    chosen = seeds if only is None else (only,)
    metafunc.fixturenames.append(SEED)
    metafunc.parametrize(SEED, chosen, ids=[f"seed{seed}" for seed in chosen], indirect=True)


def prepare(items: list[pytest.Item]) -> None:
    """Note for each marked test what its marker says, and put those that cannot run aside."""
    for index, item in enumerate(items):
        marks = list(item.iter_markers_with_node(MARKER))
        if not marks or isinstance(item, UnusableTest):
            continue
        try:
            function = _checked_function(item, [node for node, _ in marks])
            options = _options(function, [mark for _, mark in marks])
            _check_fixtures(function)
        except MarkerError as error:
            items[index] = _unusable(item, error)
            continue
        item.stash[OPTIONS_KEY] = options
        on_ranks = set(names_on_ranks(function))
        function.fixturenames = [name for name in function.fixturenames if name not in on_ranks]


def set_aside(items: list[pytest.Item], why: str) -> None:
    """None of the tests on ranks can run."""
    for index, item in enumerate(items):
        if OPTIONS_KEY in item.stash:
            items[index] = _unusable(item, MarkerError(why))


def _unusable(item: pytest.Item, why: MarkerError) -> UnusableTest:
    assert item.parent is not None, "only the session has none"
    return UnusableTest.from_parent(item.parent, name=item.name, why=why, line=item.location[1] or 0)


def marked(items: list[pytest.Item]) -> Iterator[tuple[pytest.Function, Options]]:
    """The tests that run on ranks."""
    for item in items:
        options = item.stash.get(OPTIONS_KEY, None)
        if options is not None and isinstance(item, pytest.Function):
            yield item, options


def _checked_function(item: pytest.Item, marked_nodes: list[Any]) -> pytest.Function:
    if not isinstance(item, pytest.Function):
        raise MarkerError(f"{item.name} is a {type(item).__name__}, expected a test function")
    unittest = sys.modules.get("unittest")
    if unittest is not None and item.cls is not None and issubclass(item.cls, unittest.TestCase):
        raise MarkerError(f"{item.name} is of a unittest.TestCase, expected a function, or a method of a plain class")
    outer = next((node for node in marked_nodes if node is not item), None)
    if outer is not None:
        kind = type(outer).__name__.lower()
        raise MarkerError(f"stands on {kind} {outer.name}, expected a test function: mark the functions that need it")
    function = item.obj
    handle = getattr(function, "hypothesis", None)
    inner = getattr(handle, "inner_test", function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise MarkerError(f"{item.originalname} is async, expected a plain function: ranks are threads, not tasks")
    if inspect.isgeneratorfunction(inner):
        raise MarkerError(f"{item.originalname} is a generator, expected a plain function: a test does not yield")
    return item


def _options(item: pytest.Function, marks: list[pytest.Mark]) -> Options:
    """What the marker of a test says; that of a parameter wins, and the function's says the rest."""
    in_parameters = getattr(getattr(item, "callspec", None), "marks", ())
    of_parameter = [mark for mark in marks if any(mark is each for each in in_parameters)]
    on_function = [mark for mark in marks if not any(mark is each for each in in_parameters)]
    for found, where in ((on_function, f"on {item.originalname}"), (of_parameter, f"in the parameters of {item.name}")):
        if len(found) > 1:
            raise MarkerError(f"stands {len(found)} times {where}, expected once: keep one of them")
    if any("seeds" in mark.kwargs for mark in of_parameter):
        raise MarkerError("seeds= stands in pytest.param, expected on the function: write seed= there")
    first, *parameters = on_function + of_parameter
    return options_of(first, of_parameter=parameters[0] if parameters else None)


def _check_fixtures(item: pytest.Function) -> None:
    chains = item._fixtureinfo.name2fixturedefs
    for name, definition in definitions_of(item).items():
        is_on_ranks = maker_of(definition) is not None
        if is_on_ranks and name in definition.argnames:
            raise MarkerError(f"fixture {name!r} asks for the one it replaces, which fixtures made per rank cannot")
        for asked in () if is_on_ranks else definition.argnames:
            if any(maker_of(each) for each in chains.get(asked, ())[-1:]):
                raise MarkerError(
                    f"fixture {name!r} asks for {asked!r}, which is made on each rank, and is made once for all: "
                    "make it with @per_rank (from ddpsim.scenarios import per_rank) in the place of @pytest.fixture"
                )
