"""Intercepts the collectives of a process group before they are made.

torch.distributed's functions call methods of the group, whose C++ class takes no attributes. So while a group is
watched, the methods of its class are replaced. For groups that are not watched they do what they did before.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from torch.distributed import ProcessGroup

from ddpsim.ddp.collective_table import OPERATIONS

ContextOfCall = Callable[[str, tuple[Any, ...]], "AbstractContextManager[None]"]
"""A function of the method's name and arguments. It returns a context in which the collective is made."""

_ATTRIBUTE = "__ddp_watched_groups__"
_lock = threading.Lock()
"""Locked while methods of a process group's class are replaced, as ranks may be threads of one process."""


class CollectiveInterception:
    """Makes every collective of some process groups inside a context, until `stop_intercepting` is called."""

    def __init__(self, watched: Mapping[ProcessGroup, ContextOfCall]) -> None:
        self._groups = {group: partial(self._context_of_call, around) for group, around in watched.items()}
        self._is_paused = False
        with _lock:
            for group, around in self._groups.items():
                _watched_groups(type(group))[group] = around

    def _context_of_call(
        self, around: ContextOfCall, operation: str, arguments: tuple[Any, ...]
    ) -> AbstractContextManager[None]:
        return nullcontext() if self._is_paused else around(operation, arguments)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Return a context: collectives inside it are not intercepted."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def stop_intercepting(self) -> None:
        """Stop watching the process groups; a class without watched groups gets its own methods back."""
        with _lock:
            for group, around in self._groups.items():
                kind = type(group)
                groups = _watched_groups(kind)
                if groups.get(group) is around:
                    del groups[group]
                if not groups:
                    _restore_methods(kind)
            self._groups = {}


def _watched_groups(kind: type) -> dict[ProcessGroup, ContextOfCall]:
    """Return the watched process groups of a class; the first call for a class replaces its methods."""
    if _ATTRIBUTE not in vars(kind):
        groups: dict[ProcessGroup, ContextOfCall] = {}
        originals = {name: vars(kind)[name] for name in OPERATIONS if name in vars(kind)}
        setattr(kind, _ATTRIBUTE, (groups, originals))
        for name in OPERATIONS:
            if hasattr(kind, name):
                setattr(kind, name, _intercepting_method(getattr(kind, name), name, groups))
    found: dict[ProcessGroup, ContextOfCall] = vars(kind)[_ATTRIBUTE][0]
    return found


def _restore_methods(kind: type) -> None:
    originals = vars(kind)[_ATTRIBUTE][1]
    for name in OPERATIONS:
        if name in originals:
            setattr(kind, name, originals[name])
        elif name in vars(kind):
            delattr(kind, name)
    delattr(kind, _ATTRIBUTE)


def _intercepting_method(
    method: Callable[..., Any], name: str, groups: dict[ProcessGroup, ContextOfCall]
) -> Callable[..., Any]:
    @wraps(method)
    def watched(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        around = groups.get(self)
        if around is None:
            return method(self, *args, **kwargs)
        with around(name, (*args, *kwargs.values())):
            return method(self, *args, **kwargs)

    return watched
