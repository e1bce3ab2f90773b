"""Watches the operations of a rank, for runs that are ended at each of them (`ddpsim crash`).

An operation is a call, or one that changes files: a file is opened to be written, renamed or removed, a folder is made.
A rank's operations count from 0. Before one, a `Strike` may hit the rank. The diary is a file of one JSON line for each
operation and for what tells how far the training is: optimizer steps with a digest of the parameters, batches, printed
losses, files that are read. It outlives a rank that is killed.
"""

import errno
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.faults import How, Strike
from ddpsim.simulator.process_group import user_stores
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.runtime.thread_host import ThreadHost

_CHANGING = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1, "os.link": 2}
"""The events that change a file, with the number of its paths."""
_LOSS = re.compile(r"loss.*\d", re.IGNORECASE)
_SLOW_SECONDS = 86_400.0


class OperationWatch:
    """Counts the operations of one rank, strikes it, and writes its diary."""

    def __init__(self, host: ThreadHost, rank: int, diary: str, strikes: Sequence[Strike]) -> None:
        """`diary` is the path of the diary; "" for none."""
        self._host = host
        self._rank = rank
        self._strikes = {each.before_operation: each for each in strikes if each.rank == rank}
        self._file = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if diary else None
        self._folder = os.getcwd() + os.sep
        self._made = self._steps = 0
        self._step = (-1, "")
        """When the last optimizer step was, and the digest of its parameters."""
        self._written = self._line = ""
        """The file that was opened last to be written, and the line that the program has begun to print."""
        self._is_inside = False

    def install(self) -> None:
        """Begin to watch. Cannot be undone."""
        replaced = ReplacedAttributes()
        replaced.replace_attribute(self._host, "begin_call", self._wrap_begin_call)
        replaced.replace_attribute(torch.serialization, "_open_zipfile_writer", self._wrap_zipfile_writer)
        if any(each.how is How.HOST for each in self._strikes.values()):
            replaced.replace_attribute(signal, "signal", _without_sigterm)
        sys.addaudithook(self._on_event)
        if self._file is not None:
            replaced.replace_attribute(_BaseDataLoaderIter, "__next__", self._wrap_next_batch)
            replaced.replace_attribute(sys.stdout, "write", self._wrap_print)
            register_optimizer_step_post_hook(self._on_step)

    def _begin(self, kind: str, *paths: str, is_torch: bool = False) -> None:
        number, self._made = self._made, self._made + 1
        site, strike = str(current_user_site()), self._strikes.get(number)
        is_full = strike is not None and strike.how is How.FULL
        if is_full:  # the file is opened all the same
            self._note(kind, *paths, site=site)
        if strike is not None:
            self._strike(strike.how, paths[0] if kind == "write" else "", is_torch)
        if not is_full:  # not reached by a rank that is killed or raises: what it did not do is not in its diary
            self._note(kind, *paths, site=site)
        self._written = paths[0] if kind == "write" else "" if kind == "remove" else self._written

    def _strike(self, how: How, path: str, is_torch: bool) -> None:
        self._note("strike", self._written if how is How.TEAR else path if how is How.FULL else "")
        if how is How.TEAR and self._written:
            with suppress(OSError):
                os.truncate(self._written, os.stat(self._written).st_size // 2)
        if how in (How.KILL, How.TEAR, How.HOST):
            os.kill(os.getpid(), signal.SIGKILL)
        if how in (How.TERM, How.SLOW):
            self._is_inside = False  # what a handler of SIGTERM saves is watched
            signal.raise_signal(signal.SIGTERM) if how is How.TERM else time.sleep(_SLOW_SECONDS)
        if how is How.RAISE:
            raise InjectedCrashError(f"injected exception (rank {self._rank})")
        if how is How.FULL and path:
            Path(path).write_bytes(b"")  # as opening it does, before the first write fails
            if is_torch:
                raise RuntimeError("PytorchStreamWriter failed writing file: file write failed (injected, disk full)")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _wrap_begin_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin_call(*arguments: Any) -> Any:
            if self._host.is_rank_thread() and not self._host.is_stopping:
                self._guarded(self._begin, "call")
            return original(*arguments)

        return begin_call

    def _wrap_zipfile_writer(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def open_writer(name_or_buffer: Any) -> Any:
            if not hasattr(name_or_buffer, "write"):
                self._guarded(self._begin, "write", os.path.abspath(name_or_buffer), is_torch=True)
            return original(name_or_buffer)

        return open_writer

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGING and event != "open":
            return
        if sys._getframe(1).f_globals.get("__name__") == user_stores.__name__:  # torch's FileStore is native code
            return
        if self._is_inside or not self._host.is_rank_thread() or self._host.is_stopping:
            return
        try:
            paths = [os.path.abspath(os.fsdecode(each)) for each in arguments[: _CHANGING.get(event, 1)]]
        except TypeError:  # the number of an open file
            return
        if paths[0].startswith(("/dev/", "/proc/")) or "__pycache__" in paths[0]:
            return
        if event != "open":
            self._guarded(self._begin, event.removeprefix("os."), *paths)
        elif arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self._guarded(self._begin, "write", *paths)
        elif paths[0].startswith(self._folder) and not paths[0].endswith((".py", ".pyc")):
            self._guarded(self._note, "read", *paths)

    def _guarded(self, function: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a function whose own operations are not watched."""
        if not self._is_inside:
            self._is_inside = True
            try:
                function(*arguments, **options)
            finally:
                self._is_inside = False

    def _on_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        digest = _digest([each for group in optimizer.param_groups for each in group["params"]])
        step = self._host.kernel.run.steps, digest
        if step != self._step and not _makes_state_only(optimizer):  # an optimizer may hold others
            self._steps, self._step = self._steps + 1, step
            self._note("step", digest)

    def _wrap_next_batch(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_batch(iterator: Any) -> Any:
            batch = original(iterator)
            self._note("batch", _digest(batch))
            return batch

        return next_batch

    def _wrap_print(self, original: Callable[[str], int]) -> Callable[[str], int]:
        def write(text: str) -> int:
            *lines, self._line = (self._line + text).split("\n")
            for line in filter(_LOSS.search, lines):
                self._note("loss", line.strip())
            return original(text)

        return write

    def _note(self, kind: str, *what: str, site: str = "") -> None:
        if self._file is not None:
            row = [kind, list(what), self._host.kernel.run.steps, self._steps, site]
            os.write(self._file, f"{json.dumps(row)}\n".encode())


def _without_sigterm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sets no handler of SIGTERM: a rank of a lost host has no time for one."""

    def set_handler(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number == signal.SIGTERM else original(number, handler)

    return set_handler


def _makes_state_only(optimizer: Optimizer) -> bool:
    """Return whether a step is one by which an optimizer gets its state before a checkpoint is read, as torch's
    checkpoints do: its learning rates and gradients are zero."""
    gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    return all(float(group.get("lr", 1)) == 0 for group in optimizer.param_groups) and not any(
        _local(each).any() for each in gradients
    )


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _digest(value: Any) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    for each in tree_leaves(value):
        if isinstance(each, torch.Tensor):
            hashed.update(_local(each).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            hashed.update(repr(each).encode())
    return hashed.hexdigest()
