"""The process of one rank: it runs the program as it is, and a thread beside it notices when it stands still.

    supervisor                       rank
        |  <---- STARTED --------------|   the group is there, and the program begins
        |  <---- ALIVE ----------------|   now and then
        |  <---- RankReport -----------|   once: it has returned, raised, or hangs
        |  ----- DESCRIBE ------------>|   another rank hangs: where do you stand?
        |  ----- END ----------------->|   nobody needs this process any more

A rank that has ended stays until END: its groups keep their connections. Else those that wait for it would fail with a
closed connection, where they hang.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from enum import Enum
from multiprocessing.connection import Connection
from typing import NoReturn

import numpy
import torch
import torch.distributed as dist

from scenarios import engines
from scenarios.agreement.outcome import Ending
from scenarios.model import Scenario
from scenarios.processes import recorder
from scenarios.processes.job import Job
from scenarios.processes.report import ErrorReport, Position, RankReport
from scenarios.processes.stacks import below_call, call_program, stack_of
from simulator.calls import NOWHERE
from simulator.diagnosis.errors import unused_indices
from simulator.runtime.call_sites import site_of, site_of_error, traceback_text
from simulator.runtime.isolation import numpy_random, python_random, torch_generators

_GROUP_SECONDS = 1800
"""gloo's own time-out, of new groups too: longer than any of ours."""
_SHOWN_CALLS = 3
_BUSY_SHARE = 0.1
"""A process that uses so much of a core is at work: waiting uses next to nothing."""
_PATIENCE = 6
"""So many time-outs has a line that computes."""


class Word(Enum):
    """What a rank and its supervisor say beside reports."""

    STARTED = "started"
    ALIVE = "alive"
    DESCRIBE = "describe"
    END = "end"


def run(job: Job, rank: int, line: Connection) -> NoReturn:
    """Be the process of a rank, to its end. `line` leads to the supervisor."""
    own = os.getpid()
    try:
        os.setpgid(0, 0)  # what the program starts ends with it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the supervisor who ends this process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.enable(file=2)  # for the supervisor, which reads what it writes
        _be(job, rank, line, own)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # the launcher's frames below are none of a rank's business


def _be(job: Job, rank: int, line: Connection, own: int) -> None:
    watch = _Watch(rank, job.timeout_seconds, line)
    threading.Thread(target=watch.run, name="ddpsim-watch", daemon=True).start()
    try:
        scenario = _start(job)
    except BaseException as error:
        report = _raised(rank, error, has_started=False)
    else:
        watch.start()
        report = _run(scenario, job, rank)
    _flush()
    if os.getpid() != own:
        os._exit(0)  # a process that the program has forked comes to the program's end, too, and is no rank
    watch.say(report)
    while True:
        time.sleep(1.0)  # the watch ends the process


def _start(job: Job) -> Scenario:
    """Find the program and make the default group."""
    job.enter()
    scenario = job.scenario()
    recorder.switch_on()
    dist.init_process_group("gloo", timeout=timedelta(seconds=_GROUP_SECONDS))
    torch.set_num_threads(1)  # ranks share the cores
    _seed()
    return scenario


def _seed() -> None:
    """Let the generators begin as in a simulation, so that both train on the same numbers."""
    torch.manual_seed(torch_generators.DEFAULT_SEED)
    random.seed(python_random.START_SEED)
    numpy.random.seed(numpy_random.START_SEED)


def _run(scenario: Scenario, job: Job, rank: int) -> RankReport:
    try:
        with engines.installed(job.engine):
            value = call_program(scenario, rank)
    except BaseException as error:  # SystemExit, too, is an end of the program and not of the process
        return _raised(rank, error)
    return RankReport(rank, Ending.RETURNED, time.time(), value=_pickled(value))


def _raised(rank: int, error: BaseException, *, has_started: bool = True) -> RankReport:
    message = _message(error)
    first = message.split("\n", 1)[0]
    below = error.with_traceback(below_call(error.__traceback__))
    report = ErrorReport(
        f"{type(error).__name__}: {first}" if first else type(error).__name__,
        traceback_text(below),
        site_of_error(below),
        tuple(f"parameter {index}" for index in unused_indices(message)),
        _pickled(error),
    )
    return RankReport(rank, Ending.RAISED, time.time(), has_started, error=report)


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # the message is the user's code, too
        return "<its message cannot be printed>"


def _pickled(value: object) -> bytes | None:
    try:
        pickled = pickle.dumps(value)
        pickle.loads(pickled)
    except Exception:  # whatever a class of the user's does when it is pickled
        return None
    return pickled


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program may have closed or replaced it
            stream.flush()


class _Watch:
    """The thread that speaks with the supervisor, and looks whether the main thread gets on."""

    def __init__(self, rank: int, timeout_seconds: float, line: Connection) -> None:
        self._rank = rank
        self._timeout_seconds = timeout_seconds
        self._line = line
        self._lock = threading.Lock()
        self._has_reported = False
        self._has_started = False
        self._main = threading.main_thread().ident or 0
        self._asleep = _Unchanged()
        self._computing = _Unchanged()
        self._calls = _Unchanged()
        self._work = _Work()

    def start(self) -> None:
        """The program begins."""
        with self._lock:
            self._line.send(Word.STARTED)
            self._has_started = True

    def say(self, report: RankReport) -> None:
        """Report how the rank has ended, unless it was given up before."""
        with self._lock:
            if not self._has_reported:
                self._has_reported = True
                self._line.send(report)

    def run(self) -> None:
        """Look, and listen, until the supervisor says END or is gone."""
        interval = min(max(self._timeout_seconds / 10, 0.02), 0.25)
        try:
            while True:
                if not self._line.poll(interval):
                    self._look()
                elif self._line.recv() is Word.DESCRIBE:
                    self.say(self._hung())
                else:
                    break
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # the supervisor has died, who would have ended all of it
        os._exit(0)

    def _look(self) -> None:
        if self._has_reported or not self._has_started:
            return
        with self._lock:
            self._line.send(Word.ALIVE)
        if self._idle_seconds() >= self._timeout_seconds:
            self.say(self._hung())

    def _idle_seconds(self) -> float:
        """For how long it has made no progress, as far as that can be seen.

        The same call has been in flight, or the same instruction been executed without computing. One that computes
        gets more time: a large operation is one line for long, and so is a loop that never ends.
        """
        recording = recorder.recording()
        frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames().get(self._main))]
        instructions = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        lines = tuple((id(frame.f_code), frame.f_lineno) for frame in frames)
        asleep = self._asleep.seconds((instructions, self._work.turns()))
        computing = self._computing.seconds(lines) / _PATIENCE
        calls = self._calls.seconds(recording)
        return max(asleep, computing, calls if recording.in_flight else 0.0)

    def _hung(self) -> RankReport:
        idle = self._idle_seconds()
        frame = sys._current_frames().get(self._main)
        site = site_of(frame)
        calls = recorder.recording().calls[-_SHOWN_CALLS:]
        if not recorder.is_there():
            calls = ("not known: this torch has no flight recorder",)
        position = Position(idle, None if site is NOWHERE else site, stack_of(frame), calls)
        return RankReport(self._rank, Ending.HUNG, time.time(), position=position)


class _Work:
    """Whether the process computes."""

    def __init__(self) -> None:
        self._turns = 0
        self._looked = self._used = 0.0

    def turns(self) -> int:
        """At how many looks it had used the processor since the one before."""
        now = time.monotonic()
        used = time.process_time() - time.thread_time()  # without the watch itself
        if used - self._used > _BUSY_SHARE * (now - self._looked):
            self._turns += 1
        self._looked, self._used = now, used
        return self._turns


class _Unchanged:
    """How long a value has stayed the same."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = time.monotonic()

    def seconds(self, value: object) -> float:
        """For how long it has been `value`."""
        now = time.monotonic()
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since
