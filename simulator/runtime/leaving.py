"""Exceptions that were on their way out when a run ended: a `finally`, an `__exit__` or a handler made the last call.

Python says what is being handled wherever something is raised, so the exception that carries a rank out of a run that
is over has it as its context. Whether it was going to leave is in the source: in which part of which statement the
frame stood that handled it. A handler that does not end with `raise` has caught it, which is the program's own affair.
"""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

_Try = (ast.Try, *((ast.TryStar,) if hasattr(ast, "TryStar") else ()))
_Lines = tuple[int, int]
"""First and last."""


def leaving(
    carried_out: BaseException, machinery: type[BaseException], handled_at_end: BaseException | None
) -> BaseException | None:
    """The innermost exception that was leaving when `carried_out`, of type `machinery`, was raised; None if none.

    It has to be one that was being handled when the run ended: what is raised later comes of the end.
    """
    known = {id(each) for each in _chain(handled_at_end)}
    for later, error in pairwise(_chain(carried_out)):
        if id(error) in known and not isinstance(error, machinery) and _leaves(error, later):
            return error
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__context__


def _leaves(error: BaseException, later: BaseException) -> bool:
    """True if the frame that handles an exception only cleans up behind it; `later` was raised from there."""
    trace = error.__traceback__
    if trace is None:
        return False
    frame = trace.tb_frame  # the outermost that the exception has come to
    now = next((line for each, line in traceback.walk_tb(later.__traceback__) if each is frame), None)
    if now is None:
        return False
    return any(
        _has(tried, trace.tb_lineno) and _has(cleaning, now) for tried, cleaning in _parts(frame.f_code.co_filename)
    )


def _has(lines: _Lines, line: int) -> bool:
    return lines[0] <= line <= lines[1]


@lru_cache(maxsize=64)
def _parts(path: str) -> tuple[tuple[_Lines, _Lines], ...]:
    """What is tried and what cleans up behind it, for each statement of a file that does; () if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(pair for node in ast.walk(tree) for pair in _of(node))


def _of(node: ast.AST) -> Iterator[tuple[_Lines, _Lines]]:
    if isinstance(node, (ast.With, ast.AsyncWith)):
        yield _span(node.body), (node.lineno, max(node.lineno, node.body[0].lineno - 1))
    elif isinstance(node, _Try):
        if node.finalbody:
            yield _span([*node.body, *node.handlers, *node.orelse]), _span(node.finalbody)
        for handler in node.handlers:
            if isinstance(handler.body[-1], ast.Raise):
                yield _span(node.body), _span(handler.body)


def _span(nodes: Sequence[ast.stmt | ast.excepthandler]) -> _Lines:
    return nodes[0].lineno, max(node.end_lineno or node.lineno for node in nodes)
