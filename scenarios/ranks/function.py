"""Wrap a user's function as a program of ranks.

The function takes the rank, or the rank and `world_size`, or nothing and calls `get_rank()`.
"""

import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from ddpsim import UsageError

BETWEEN = "<frozen scenarios.ranks.function>"
"""The file name of the frame between a rank and a program that takes no argument. It looks like library code, so that
no report shows a line of ddpsim as the user's."""

_NOT_RUN_BY_A_CALL = (
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)


def as_rank_function(program: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Return the function as one that takes the rank.

    A function that needs `world_size`, too, gets it; one that takes nothing is called without the rank. `name` is used
    in messages. Raises UsageError for async and generator functions, and for a function that needs more arguments.
    """
    own = getattr(program, "__name__", type(program).__name__)
    for is_one, kind in _NOT_RUN_BY_A_CALL:
        if is_one(program):
            raise UsageError(
                f"scenario is {(name or own)!r}, but {own} is {kind}, which a call does not run: give a plain "
                "function of the rank"
            )
    if _accepts_arguments(program, 0):
        return program
    if _accepts_arguments(program):
        return _adapt(program, with_rank=False)
    if _accepts_arguments(program, 0, world_size=0):
        return _adapt(program, with_rank=True)
    raise UsageError(
        f"scenario is {(name or own)!r}, but {own}{inspect.signature(program)} cannot be called with a rank alone: "
        "give a function that takes rank, rank and world_size, or nothing, and has defaults for the rest"
    )


def makes_own_group(program: Callable[..., Any]) -> bool:
    """Return True if a function of `world_size`, or a function of its file that it calls, makes the default group: such
    are those of torch's tutorials. Other functions find the group when they start."""
    called = [inspect.unwrap(program)] if "world_size" in inspect.signature(program).parameters else []
    for each in called:
        names = getattr(getattr(each, "__code__", None), "co_names", ())
        if "init_process_group" in names:
            return True
        beside = [value for name in names if inspect.isfunction(value := each.__globals__.get(name))]
        called += [value for value in beside if value.__module__ == each.__module__ and value not in called]
    return False


def _adapt(program: Callable[..., Any], *, with_rank: bool) -> Callable[[int], Any]:
    code = getattr(inspect.unwrap(program), "__code__", None)
    path = sys.argv[0] if code is None else code.co_filename

    def run_program(rank: int) -> Any:
        if with_rank:
            return program(rank, world_size=int(os.environ["WORLD_SIZE"]))
        # Such a function belongs to a script that may read its command line, so it must not see ddpsim's.
        sys.argv = [path]
        return program()

    run_program.__code__ = run_program.__code__.replace(co_filename=BETWEEN)
    return wraps(program)(run_program)


def _accepts_arguments(program: Callable[..., Any], *arguments: object, **named: object) -> bool:
    try:
        inspect.signature(program).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True
