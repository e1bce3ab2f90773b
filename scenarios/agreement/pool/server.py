"""The process that forks ranks. It has torch loaded and one thread, and answers one request after the other.

It ends when the pool closes the connection or is gone, and takes its ranks with it.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ddpsim.scenarios.agreement.pool import messages
from ddpsim.scenarios.agreement.pool.rank import Place, serve_rank, silence


@dataclass(frozen=True, slots=True)
class Start:
    """Fork a rank for each of the channels that come along; answered by their process ids."""

    module: str
    """Of the function that will be called: imported here once, and not in every rank."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class End:
    """End these processes, those that have not ended; answered by what each ended with: a status, or minus a signal."""

    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to what cannot be done."""

    reason: str


def serve(descriptor: int) -> None:
    """Answer what comes over this connection until it is closed."""
    control = socket.socket(fileno=descriptor)
    torch.set_num_threads(1)
    gc.freeze()  # what is loaded stays, and a rank need not look through it
    messages.send(control, os.getpid())
    silence()
    processes: set[int] = set()
    try:
        while True:
            request, descriptors = messages.receive(control)
            messages.send(control, _answer(request, descriptors, control, processes))
    except (EOFError, OSError):
        pass
    finally:
        _end(sorted(processes))
        os._exit(0)  # taking torch down takes longer than all else here


def _answer(
    request: Start | End, descriptors: Sequence[int], control: socket.socket, processes: set[int]
) -> tuple[int, ...] | Failed:
    if isinstance(request, End):
        processes.difference_update(request.processes)
        return _end(request.processes)
    try:
        started = _start(request, descriptors, control)
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
    finally:
        for each in descriptors:
            os.close(each)
    processes.update(started)
    return started


def _start(request: Start, channels: Sequence[int], control: socket.socket) -> tuple[int, ...]:
    importlib.import_module(request.module)
    store = os.memfd_create("store")
    started: list[int] = []
    try:
        for rank, channel in enumerate(channels):
            place = Place(rank, len(channels), store, request.timeout_seconds)
            started.append(_fork(place, channel, (*channels, control.fileno())))
    except OSError:
        _end(started)
        raise
    finally:
        os.close(store)
    return tuple(started)


def _fork(place: Place, channel: int, inherited: Sequence[int]) -> int:
    """Fork a rank, which keeps its own channel only: an open copy would hide that its owner has died."""
    process = os.fork()
    if process:
        return process
    try:
        for each in inherited:
            if each != channel:
                os.close(each)
        serve_rank(place, socket.socket(fileno=channel))
    finally:
        os._exit(0)  # and not return into what is the server's


def _end(processes: Sequence[int]) -> tuple[int, ...]:
    for process in processes:
        os.kill(process, signal.SIGKILL)
    return tuple(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes)
