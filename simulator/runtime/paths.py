"""Follows the path of each rank through the lines of the program, when a failed execution is repeated.

Diagnosis then compares the paths of ranks (`diagnosis/partings.py`). Only lines of the user's own project count.
"""

import ast
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from ddpsim.simulator.calls import Call
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.partings import END, PathStep
from ddpsim.simulator.runtime.call_sites import is_project_code, site_of_user_frame
from ddpsim.simulator.runtime.rank_thread import RankThread

_MOST_STEPS = 300_000

_LONGEST_VALUE = 40

_PLAIN = frozenset({bool, int, float, str, range})
"""Types whose text runs no code of the program."""

_Names = tuple[tuple[str, str], ...]
"""Names, each with the name of an attribute or ""."""

_ENDINGS = (StopIteration, StopAsyncIteration)
_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
_BRANCHING = (ast.BoolOp, ast.ExceptHandler, ast.With, ast.AsyncWith, ast.Match, ast.pattern)


class PathRecorder:
    """Records the lines that ranks run, and sends them to the kernel with each call of a rank and at its end."""

    def __init__(self, running: Callable[[], RankThread | None], ask: Callable[[Noticed], object]) -> None:
        """`running` returns the running thread of a rank; `ask` sends a request to the kernel."""
        self._running = running
        self._ask = ask
        self._steps: dict[int, list[PathStep]] = {}
        """By rank, the steps since its last call."""
        self._count: dict[int, int] = {}

    @contextmanager
    def followed(self, rank: int) -> Iterator[None]:
        """Follow the program of a rank, which runs in this block."""
        self.follow_thread()
        try:
            yield
        finally:
            sys.settrace(None)
        self._send(rank, (), END)

    def follow_thread(self) -> None:
        """Follow the functions that this thread calls from now on."""
        sys.settrace(self._enter)

    def send_steps(self, call: Call) -> None:
        """Send the steps that led to a call."""
        self._send(call.rank, (call,))

    def _send(self, rank: int, calls: tuple[Call, ...], *last: PathStep) -> None:
        steps = self._steps.pop(rank, [])
        if self._count.get(rank, 0) < _MOST_STEPS:
            self._ask(Noticed(NoticedKind.PATH, calls, (rank, (*steps, *last))))

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        has_file = not frame.f_code.co_filename.startswith("<")
        return self._step if has_file and is_project_code(frame.f_code) else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        me = self._running()
        if me is None or self._count.get(me.rank, 0) >= _MOST_STEPS:
            return None
        raised, values, target, names = "", None, tuple[tuple[str, str], ...](), None
        if event == "exception" and issubclass(arg[0], Exception) and not issubclass(arg[0], _ENDINGS):
            raised = f"{arg[0].__name__}: {arg[1]}".partition("\n")[0].removesuffix(": ")
        elif event != "line":
            return self._step
        elif (names := _names_that_decide(frame.f_code.co_filename).get(frame.f_lineno)) is not None:
            values, target = _values(frame, names[0]), _values(frame, names[1], is_number=True)
        self._count[me.rank] = self._count.get(me.rank, 0) + 1
        is_loop = names is not None and (names[2] or frame.f_code.co_name.endswith("comp>"))
        step = PathStep(me.name, site_of_user_frame(frame), raised, values, target, is_loop)
        self._steps.setdefault(me.rank, []).append(step)
        return self._step


@lru_cache(maxsize=256)
def _names_that_decide(path: str) -> Mapping[int, tuple[_Names, _Names, bool]]:
    """Return, by line that can branch, the names in the conditions of branches and loops, the targets of loops, and
    whether a loop is there."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, tuple[_Names, _Names, bool]] = {}
    for node in ast.walk(tree):
        condition = getattr(node, "test", None) or (node.iter if isinstance(node, _LOOPS) else None)
        if condition is not None:
            target = _names_in(node.target) if isinstance(node, (ast.For, ast.AsyncFor)) else ()
            for line in range(condition.lineno, (condition.end_lineno or condition.lineno) + 1):
                names, targets, is_loop = found.get(line, ((), (), False))
                is_loop = is_loop or isinstance(node, (ast.For, ast.AsyncFor, ast.While))
                found[line] = (*names, *_names_in(condition)), (*targets, *target), is_loop
        elif isinstance(node, _BRANCHING):
            found.setdefault(node.lineno, ((), (), False))
    return found


def _names_in(node: ast.AST) -> _Names:
    attributes = [
        (each.value.id, each.attr)
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
    ]
    names = [(each.id, "") for each in ast.walk(node) if isinstance(each, ast.Name)]
    return tuple(dict.fromkeys((*names, *attributes)))


def _values(frame: FrameType, names: _Names, *, is_number: bool = False) -> tuple[tuple[str, str], ...]:
    scope = {**frame.f_globals, **frame.f_locals} if names else {}
    found = []
    for name, attribute in names:
        value = scope.get(name)
        if attribute:
            value = getattr(value, "__dict__", {}).get(attribute)
        text = str(value) if is_number and type(value) is int else "" if is_number else _value_text(value)
        if text:
            found.append((f"{name}.{attribute}" if attribute else name, text))
    return tuple(found)


def _value_text(value: object) -> str:
    """Return a plain value as text; "" for others, whose text may run code of the program."""
    if f"{type(value).__module__}.{type(value).__name__}" == "torch.Tensor":
        tensor: Any = value
        if tensor.numel() != 1:
            return f"a tensor of shape {list(tensor.shape)}"
        value = tensor.item() if tensor.is_cpu else None
    parts = value if type(value) in (list, tuple) and len(value) <= _LONGEST_VALUE else [value]  # type: ignore[arg-type]
    text = repr(value) if {type(each) for each in parts} <= _PLAIN else ""  # type: ignore[attr-defined]
    if parts and 0 < len(text) <= _LONGEST_VALUE:
        return text
    if type(value) in (list, tuple, dict, set):
        return f"a {type(value).__name__} of {len(value)}"  # type: ignore[arg-type]
    return ""
