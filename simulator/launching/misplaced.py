"""Options of another command that stand behind a program, where they are the program's own.

The program may have an option of the same name, and nobody can read that off its text. So it is run, and its ranks
tell: nobody looked at the arguments, or who looked at them refused just that word. Of anything else nothing is said.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial, wraps
from types import MethodType, TracebackType
from typing import Any, SupportsIndex

_WATCHED, _READ, _REFUSED, _ENDED, _STOPPED = _WHAT = range(5)

_REFUSAL = re.compile(r"unrecogni[sz]ed|unknown|unexpected|not recogni[sz]ed|not used|no such option", re.IGNORECASE)
"""How argparse, click, absl, fire and transformers say that there is no such option."""


class Misplaced:
    """What stands behind a program. Ranks tell what they make of it, in a file in memory of who made this."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._file = os.memfd_create("misplaced")
        os.ftruncate(self._file, len(_WHAT))
        self._path = f"/proc/{os.getpid()}/fd/{self._file}"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_file": None}

    def close(self) -> None:
        """Forget what was told."""
        os.close(self._file)

    def arguments(self, command: Sequence[str]) -> list[str]:
        """What `sys.argv` is to be in a rank."""
        self._tell(_WATCHED)
        return _Arguments(command, partial(self._tell, _READ))

    def look_at_end(self, error: BaseException | None = None) -> None:
        """Notice that a rank came to its end, or that the error which ended it refuses one of the words."""
        self._tell(_ENDED if error is None or isinstance(error, SystemExit) else _STOPPED)
        options = [word.partition("=")[0] for word in self.words if word.startswith("-")]
        for text in _texts(error) if error is not None else ():
            if _REFUSAL.search(text) and any(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for option in options):
                self._tell(_REFUSED)

    def _tell(self, what: int) -> None:
        with suppress(OSError), open(self._path, "r+b", buffering=0) as file:
            file.seek(what)
            file.write(b"\1")

    @property
    def why(self) -> str:
        """How the program shows that the words are not meant for it; "" if it does not."""
        if self._told[_REFUSED]:
            return "does not know it"
        return "does not look at its arguments" if self.is_unseen else ""

    @property
    def is_unseen(self) -> bool:
        """Whether the program came to its end on all ranks, and none looked at its arguments."""
        told = self._told
        return bool(told[_ENDED] and not told[_STOPPED] and not told[_READ])

    @property
    def is_open(self) -> bool:
        """Whether the run ended before the program could look at the words: nobody knows whose they are."""
        told = self._told
        return bool(told[_WATCHED] and not (told[_READ] or told[_REFUSED] or self.is_unseen))

    @property
    def _told(self) -> bytes:
        return os.pread(self._file, len(_WHAT), 0)


def _texts(error: BaseException) -> Iterator[str]:
    """What was said when a program refused its arguments; argparse and click end it by a SystemExit that is silent."""
    each: BaseException | None = error
    while each is not None:
        yield str(each)
        yield from _said_by_parsers(each.__traceback__)
        each = each.__cause__ or each.__context__


def _said_by_parsers(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == "error" and "message" in frame.f_locals:  # ArgumentParser.error(message)
            yield str(frame.f_locals["message"])
        for value in frame.f_locals.values():  # click's Command.main has a method of the error, to show it
            if type(value) is MethodType and issubclass(type(value.__self__), Exception):
                yield str(value.__self__)
        traceback = traceback.tb_next


_LOOKS = (
    *("__iter__", "__reversed__", "__len__", "__contains__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__add__", "__mul__", "__rmul__", "__repr__", "copy", "count", "index"),
)
_CHANGES = (
    *("__iadd__", "__imul__", "__delitem__"),
    *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
)
"""What a list has, but for items that are set: all of it depends on the items, or adds to them, or takes them away."""


def _telling(name: str, tell: Callable[[_Arguments], None]) -> Callable[..., Any]:
    """A method of a list that tells first."""
    method = getattr(list, name)

    @wraps(method)
    def telling(arguments: _Arguments, *others: Any, **options: Any) -> Any:
        tell(arguments)
        return method(arguments, *others, **options)

    return telling


class _Arguments(list[str]):
    """A list that tells when anything but its first item, which is the program's name, is looked at."""

    def __init__(self, items: Sequence[str], tell: Callable[[], None]) -> None:
        super().__init__(items)
        self.tell = tell

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if index != 0:
            self.look()
        return super().__getitem__(index)

    def look(self) -> None:
        """Tell, and make room for a plain list: what a checkpoint has of this one `torch.load` would refuse."""
        self.tell()
        if sys.argv is self:
            sys.argv = list(list.__iter__(self))

    def __radd__(self, other: Any) -> Any:
        return other + list(self)

    def __reduce__(self) -> Any:  # a process that a rank starts gets a plain one, and may look at it
        self.tell()
        return list, (list(list.__iter__(self)),)


for _name in _LOOKS:
    setattr(_Arguments, _name, _telling(_name, _Arguments.look))
for _name in _CHANGES:
    setattr(_Arguments, _name, _telling(_name, lambda arguments: arguments.tell()))
