"""What people use today: real gloo with a time-out, with TORCH_DISTRIBUTED_DEBUG, and ranks as threads of one process.

Each case gets processes of its own, forked from a server that has imported torch, and an end after some seconds. What a
user would read is what the ranks raised, and of a rank that had to be killed that nothing came from it.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.scoreboard.case import Case, loaded
from benchmarks.scoreboard.tool import Said

TIMEOUT_SECONDS = 3.0
"""Of each call; users have 30 minutes. The rank that ran into it is told, unless the backend waits past it."""
KILLED_AFTER_SECONDS = 20.0
_LACKING = "No backend type associated with device type cpu"
"""What torch says of calls that the threaded group does not have, such as `reduce` and `send`."""
_AT_ONCE = 6
"""They mostly wait for a time-out."""
STUCK = "stuck: killed, and said nothing"

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "torch.testing._internal.common_distributed"])


class Gloo:
    """A process for each rank, on gloo."""

    def __init__(self, name: str = "gloo, time-out", **variables: str) -> None:
        self.name = name
        self.at_once = _AT_ONCE
        self._variables = variables

    def judge(self, case: Case, file: Path) -> Said:
        """Run it once."""
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            return _outcome(
                [(_gloo_rank, (file, rank, case.size, store, self._variables)) for rank in range(case.size)]
            )


class Threaded:
    """torch's MultiThreadedTestCase without its TestCase: ranks are threads, calls meet in Python."""

    name = "threaded group"
    at_once = _AT_ONCE

    def judge(self, case: Case, file: Path) -> Said:
        """Run it once, all ranks in a process of their own."""
        said = _outcome([(_threaded_ranks, (file, case.size))])
        return replace(said, lacks=_LACKING in said.text)


def _outcome(targets: list[tuple[Any, tuple[Any, ...]]]) -> Said:
    """Run those functions on a process each, and collect what they say; what is not over in time is killed."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        running: dict[Connection, tuple[BaseProcess, Path]] = {}
        for number, (function, arguments) in enumerate(targets):
            mine, theirs = _FORKS.Pipe(duplex=False)
            output = Path(folder) / str(number)
            process = _FORKS.Process(target=_tell, args=(theirs, output, function, arguments))
            process.start()
            theirs.close()
            running[mine] = process, output
        texts = list(_texts(running, start + KILLED_AFTER_SECONDS))
    text = "\n".join(filter(None, texts))
    return Said(bool(text), text, seconds=time.perf_counter() - start)


def _texts(running: dict[Connection, tuple[BaseProcess, Path]], until: float) -> Iterator[str]:
    """What each says, as they end."""
    while running:
        ready = wait(list(running), timeout=max(until - time.perf_counter(), 0))
        if not ready:
            yield STUCK
            break
        for line in ready:
            assert isinstance(line, Connection)
            process, output = running.pop(line)
            try:
                yield line.recv()
            except EOFError:
                process.join()
                yield f"died, exit code {process.exitcode}\n{output.read_text(errors='replace')}"
            process.join()
    for process, _ in running.values():
        process.kill()
        process.join()


def _tell(line: Connection, output: Path, function: Any, arguments: tuple[Any, ...]) -> None:
    """In the process: run it, and send what it raised."""
    with output.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        function(*arguments)
        line.send("")
    except BaseException:
        line.send(traceback.format_exc())
    line.close()
    os._exit(0)  # a group that is not destroyed may wait for its peers


def _gloo_rank(file: Path, rank: int, size: int, store: str, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    import torch.distributed as dist

    if level := variables.get("TORCH_DISTRIBUTED_DEBUG"):
        dist.set_debug_level(getattr(dist.DebugLevel, level))
    init = {"rank": rank, "world_size": size, "timeout": timedelta(seconds=TIMEOUT_SECONDS)}
    dist.init_process_group("gloo", store=dist.FileStore(store, size), **init)
    loaded(file)(rank, size)
    dist.destroy_process_group()


def _threaded_ranks(file: Path, size: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import multi_threaded_pg

    program = loaded(file)
    world: Any = multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store, errors = dist.HashStore(), io.StringIO()

    def run(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=size, store=store)
            program(rank, size)
        except BaseException as error:
            if not isinstance(error, SystemExit):  # with which the others are let go
                traceback.print_exc(file=errors)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + TIMEOUT_SECONDS
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    del world
    if errors.getvalue():
        raise RuntimeError(errors.getvalue())
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(STUCK)
