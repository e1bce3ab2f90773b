"""A test on real gloo: a process for each rank, forked from this one, which has no group."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.conformance.adapter import Setting, prepare, run_test
from tests.conformance.outcome import Outcome, Status, first_line, of_all

LIMIT_SECONDS = 200.0
"""Of wall time, for all ranks of one test."""


def on_gloo(setting: Setting) -> Outcome:
    """Run the test with one process a rank. Its ranks have ended when this returns."""
    prepare(setting)
    context = get_context("fork")
    ranks: list[tuple[BaseProcess, Connection]] = []
    for rank in range(setting.suite.world_size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, setting, theirs))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        return of_all(_outcomes(ranks))
    finally:
        for process, connection in ranks:
            process.kill()
            process.join()
            connection.close()


def _rank(rank: int, setting: Setting, told: Connection) -> None:
    try:
        outcome = run_test(rank, setting)
    except BaseException as error:
        outcome = Outcome(Status.FAILED, first_line(f"{type(error).__name__}: {error}"))
    told.send(outcome)
    told.close()
    os._exit(0)


def _outcomes(ranks: list[tuple[BaseProcess, Connection]]) -> list[Outcome]:
    """Of each rank, in the order in which they end; a rank that fails ends the wait for the others."""
    open_ones = [connection for _, connection in ranks]
    outcomes: list[Outcome] = []
    end = time.monotonic() + LIMIT_SECONDS
    while open_ones:
        ready = wait(open_ones, timeout=max(0.0, end - time.monotonic()))
        if not ready:
            return [*outcomes, Outcome(Status.FAILED, f"not done after {LIMIT_SECONDS:.0f} s")]
        for connection in ready:
            assert isinstance(connection, Connection)
            open_ones.remove(connection)
            try:
                outcomes.append(connection.recv())
            except EOFError:
                outcomes.append(Outcome(Status.FAILED, _end_of(ranks, connection)))
            if outcomes[-1].status is Status.FAILED:
                return outcomes
    return outcomes


def _end_of(ranks: list[tuple[BaseProcess, Connection]], connection: Connection) -> str:
    process = next(process for process, its in ranks if its is connection)
    process.join(5.0)
    code = process.exitcode or 0
    return f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
