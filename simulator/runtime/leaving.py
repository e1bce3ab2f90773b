"""Finds exceptions that were about to leave a rank's program when the run ended, in a call of a `finally` or handler.

To end a rank's program early, ddpsim raises RankUnwound in it. Python sets the exception that is being handled then as
the `__context__` of RankUnwound. The source code shows whether that exception would have propagated: it depends on the
part of the `try` or `with` statement that the frame was in. A handler that does not end with `raise` has caught the
exception, so it is not reported.
"""

import ast
import linecache
import re
import traceback
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, takewhile
from types import FrameType

from ddpsim.simulator.calls import Site
from ddpsim.simulator.runtime.call_sites import STARTS, frames_outwards, is_user_code

_Try = (ast.Try, *((ast.TryStar,) if hasattr(ast, "TryStar") else ()))
_CATCHERS = re.compile(r"suppress|[rR]aises")
"""Matches the names of context managers that catch errors."""
_Lines = tuple[int, int]
"""The first and the last line of a block."""


def find_propagating_error(
    carried_out: BaseException, machinery: type[BaseException], handled_at_end: BaseException | None
) -> BaseException | None:
    """Return the innermost exception that was about to leave the program when ddpsim raised `carried_out`, of type
    `machinery`; None if there was none.

    Only an exception in handling when the run ended counts: later ones are consequences of the end.
    """
    known = {id(each) for each in _context_chain(handled_at_end)}
    for later, error in pairwise(_context_chain(carried_out)):
        if id(error) in known and not isinstance(error, machinery) and _is_propagating(error, later):
            return error
    return None


def _context_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__context__


def _is_propagating(error: BaseException, later: BaseException) -> bool:
    """True if the frame that handles `error` only cleans up and lets it propagate; its handler raised `later`."""
    trace = error.__traceback__
    if trace is None:
        return False
    frame = trace.tb_frame  # the outermost frame that the exception has reached
    now = next((line for each, line in traceback.walk_tb(later.__traceback__) if each is frame), None)
    if now is None:
        return False
    return any(
        _contains_line(tried, trace.tb_lineno) and _contains_line(cleaning, now)
        for tried, cleaning in _body_and_cleanup_lines(frame.f_code.co_filename)
    )


def _contains_line(lines: _Lines, line: int) -> bool:
    return lines[0] <= line <= lines[1]


def may_catch_errors(frame: FrameType) -> bool:
    """True if a `try` statement, or a `with` like that of contextlib.suppress, of the program is around a frame."""
    of_rank = takewhile(lambda each: each.f_globals.get("__name__") not in STARTS, frames_outwards(frame))
    return any(
        _contains_line(lines, each.f_lineno)
        for each in of_rank
        if is_user_code(each.f_code)
        for lines in _catching_lines(each.f_code.co_filename)
    )


@lru_cache(maxsize=64)
def _catching_lines(path: str) -> tuple[_Lines, ...]:
    """Return the lines in which an error may be caught: those of statements whose handlers do not end with `raise`."""
    return tuple(
        _line_span(node.body)
        for node in ast.walk(parse_file(path))
        if (isinstance(node, _Try) and not all(isinstance(each.body[-1], ast.Raise) for each in node.handlers))
        or (isinstance(node, ast.With) and any(_CATCHERS.search(ast.unparse(each)) for each in node.items))
    )


def is_in_loop(site: Site) -> bool:
    """True if a line is in a loop, which may repeat what failed."""
    loops = (node for node in ast.walk(parse_file(site.path)) if isinstance(node, (ast.For, ast.While)))
    return any(node.lineno <= site.line <= (node.end_lineno or 0) for node in loops)


def parse_file(path: str) -> ast.Module:
    """Return the syntax tree of a file; an empty one if it cannot be read."""
    linecache.checkcache(path)  # it may have been changed since an earlier run
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=64)
def _body_and_cleanup_lines(path: str) -> tuple[tuple[_Lines, _Lines], ...]:
    """Return the line ranges (body, clean-up) of each `try` and `with` statement of a file; () if it cannot be read."""
    return tuple(pair for node in ast.walk(parse_file(path)) for pair in _lines_of_statement(node))


def _lines_of_statement(node: ast.AST) -> Iterator[tuple[_Lines, _Lines]]:
    if isinstance(node, (ast.With, ast.AsyncWith)):
        yield _line_span(node.body), (node.lineno, max(node.lineno, node.body[0].lineno - 1))
    elif isinstance(node, _Try):
        if node.finalbody:
            yield _line_span([*node.body, *node.handlers, *node.orelse]), _line_span(node.finalbody)
        for handler in node.handlers:
            if isinstance(handler.body[-1], ast.Raise):
                yield _line_span(node.body), _line_span(handler.body)


def _line_span(nodes: Sequence[ast.stmt | ast.excepthandler]) -> _Lines:
    return nodes[0].lineno, max(node.end_lineno or node.lineno for node in nodes)
