"""Which line of the program a collective of a compiled function is told by: the one that it was traced from."""

import shutil

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ddpsim import Budget, simulate
from ddpsim.simulator.events import EventKind
from tests.attribution.compiled_helper import mean_of
from tests.kit.results import codes

pytestmark = [
    pytest.mark.tier("ci"),  # to load dynamo takes seconds
    pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning"),  # on Python 3.13.0
]


def summed(x):
    """Two collectives, of which only their lines tell one from the other."""
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return functional.all_reduce(y + 1, "sum", dist.group.WORLD)


FIRST = summed.__code__.co_firstlineno + 2


def of_helper(x):
    return mean_of(x.sin())


def breaks_in_the_middle(x):
    y = x * 2
    print("the graph breaks here")
    return functional.all_reduce(y, "sum", dist.group.WORLD)


@pytest.fixture(autouse=True)
def _nothing_is_compiled():
    torch.compiler.reset()


def places(function, backend, **options):
    """Line, its function and its caller, of rank 0's calls."""

    def program(rank):
        torch.compile(function, backend=backend)(torch.ones(4))

    result = simulate(program, 2, **options)
    result.raise_for_verdict()
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.rank == 0]
    return [(call.site.line, call.site.function, call.caller) for call in calls]


BACKENDS = ("eager", "aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_lines_of_a_compiled_function_are_told_apart(backend):
    assert places(summed, backend) == [(FIRST, "summed", None), (FIRST + 1, "summed", None)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_line_of_another_file_is_told_with_what_called_it(backend):
    ((line, function, caller),) = places(of_helper, backend)
    assert (line, function) == (mean_of.__code__.co_firstlineno + 2, "mean_of")
    assert (caller.line, caller.function) == (of_helper.__code__.co_firstlineno + 1, "of_helper")


@pytest.mark.parametrize("backend", BACKENDS)
def test_behind_a_graph_break_the_function_has_its_own_name(backend):
    line = breaks_in_the_middle.__code__.co_firstlineno + 3
    assert places(breaks_in_the_middle, backend) == [(line, "breaks_in_the_middle", None)]


def test_a_collective_of_the_backward_is_told_by_the_backward():
    def program(rank):
        x = torch.ones(4, requires_grad=True)
        torch.compile(of_helper, backend="aot_eager")(x).sum().backward()

    result = simulate(program, 2)
    result.raise_for_verdict()
    backward = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.rank == 0][-1]
    assert (backward.site.line, backward.site.function) == (program.__code__.co_firstlineno + 2, "program")


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
@pytest.mark.tier("nightly")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_what_inductor_generates_is_not_the_program_s():
    """It keeps no lines; so its collectives are told by the function, and the line that calls it."""
    told = places(summed, "inductor", budget=Budget(stuck_seconds=300))
    assert [(line, function) for line, function, _ in told] == [(FIRST - 2, "summed")] * 2
    assert [caller.function for _, _, caller in told] == ["program"] * 2


def other_shape(rank):
    """Rank 1 has another last batch."""
    run = torch.compile(summed, backend="aot_eager")
    run(torch.ones(4))
    run(torch.ones(5 if rank == 1 else 4))


def test_a_shape_that_differs_is_found_at_its_line():
    result = simulate(other_shape, 3)
    assert codes(result) == [("mismatch.shape", (1,))]
    assert [site.line for site in result.findings[0].sites] == [FIRST]
    assert 'y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)' in str(result)


def test_ranks_that_compile_and_ranks_that_do_not_call_from_the_same_line():
    def program(rank):
        run = torch.compile(summed, backend="aot_eager") if rank else summed
        return run(torch.ones(4)).tolist()

    result = simulate(program, 2)
    assert codes(result) == []
    assert result.returns == ([10.0] * 4, [10.0] * 4)
