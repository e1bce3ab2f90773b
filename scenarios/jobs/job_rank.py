"""The process of one rank. It runs the program unchanged, and a second thread detects when it makes no progress.

    supervisor                       rank
        |  <---- STARTED --------------|   the group exists, and the program begins
        |  <---- ALIVE or IDLE --------|   now and then: it makes progress, or has made none for the time-out
        |  <---- RankReport -----------|   once: the program returned, raised, or hangs
        |  ----- DESCRIBE ------------>|   the run hangs: report your position
        |  ----- END ----------------->|   no rank needs this process any more

A rank that has ended stays until END, because its groups keep their connections. Without it, ranks that wait for it
would fail with a closed connection instead of hanging.
"""

import contextlib
import faulthandler
import os
import pickle
import random
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from multiprocessing.connection import Connection
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn

import numpy
import torch
import torch.distributed as dist

from ddpsim.scenarios import engines
from ddpsim.scenarios.jobs.rank_progress import PATIENCE, JobRankProgress, enable_recorder, has_recorder, read_recorder
from ddpsim.scenarios.jobs.rank_report import ErrorReport, RankEnding, RankPosition, RankReport
from ddpsim.scenarios.jobs.scenario_job import ScenarioJob
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.ranks.function import BETWEEN
from ddpsim.simulator.calls import NOWHERE, Site
from ddpsim.simulator.diagnosis.rank_errors import unused_parameter_indices
from ddpsim.simulator.errors import error_line, error_message
from ddpsim.simulator.runtime.call_sites import format_user_traceback, is_user_code, site_of_error, user_site_of
from ddpsim.simulator.runtime.isolation import numpy_random, python_random, torch_generators
from ddpsim.simulator.runtime.isolation.python_random import seed_of_rank

_GROUP_SECONDS = 1800
"""The time-out of gloo, also for groups that the program makes: longer than any time-out of ddpsim."""
_SHOWN_CALLS = 3
_LONGEST_WAIT = 1500.0
"""How long a rank may wait for another rank that makes progress. It is shorter than the time-out of gloo."""


class RankMessage(Enum):
    """Messages between a rank and its supervisor, except reports."""

    STARTED = "started"
    ALIVE = "alive"
    IDLE = "idle"
    DESCRIBE = "describe"
    END = "end"


def run_rank_process(job: ScenarioJob, rank: int, line: Connection) -> NoReturn:
    """Run as the process of a rank until the process ends. `line` is the connection to the supervisor of the rank."""
    own = os.getpid()
    try:
        os.setpgid(0, 0)  # processes that the program starts end with this group
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor ends this process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.enable(file=2)  # for the supervisor, which reads its stderr
        _run_rank(job, rank, line, own)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # skip the launcher's frames below


def _run_rank(job: ScenarioJob, rank: int, line: Connection, own: int) -> None:
    watch = _ProgressWatch(rank, job.timeout_seconds, line)
    threading.Thread(target=watch.run, name="ddpsim-watch", daemon=True).start()
    try:
        scenario = _load_program(job, rank)
    except BaseException as error:
        report = _error_report(rank, error, has_started=False)
    else:
        watch.announce_start()
        report = _run_program(scenario, job, rank)
    _flush_streams()
    if os.getpid() != own:
        os._exit(0)  # a process forked by the program also reaches this line, and is no rank
    watch.send_report(report)
    while True:
        time.sleep(1.0)  # the watch thread ends the process


def _load_program(job: ScenarioJob, rank: int) -> Scenario:
    """Load the scenario's program and make the default process group, if the program does not."""
    job.apply_environment()
    scenario = job.load_scenario()
    enable_recorder()
    if scenario.default_group:
        dist.init_process_group("gloo", timeout=timedelta(seconds=_GROUP_SECONDS))
    else:
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the program makes the store, too, as under mp.spawn
    torch.set_num_threads(1)  # ranks share the cores
    _seed_generators(rank, job.alike)
    return scenario


def _seed_generators(rank: int, alike: bool) -> None:
    """Seed the random generators of a rank: differently on each rank, but equally in each run. If `alike` is true, all
    ranks have equal seeds, as in a simulation."""
    torch.manual_seed(torch_generators.DEFAULT_SEED if alike else seed_of_rank(rank))
    random.seed(python_random.START_SEED if alike else seed_of_rank(rank))
    numpy.random.seed(numpy_random.START_SEED if alike else seed_of_rank(rank))


def _run_program(scenario: Scenario, job: ScenarioJob, rank: int) -> RankReport:
    try:
        with engines.install_engine(job.engine):
            value = call_program(scenario, rank)
    except BaseException as error:  # SystemExit ends the program, not the process
        return _error_report(rank, error)
    return RankReport(rank, RankEnding.RETURNED, time.time(), value=_pickle_value(value))


def _error_report(rank: int, error: BaseException, *, has_started: bool = True) -> RankReport:
    below = error.with_traceback(traceback_below_call(error.__traceback__))
    report = ErrorReport(
        error_line(error),
        format_user_traceback(below),
        site_of_error(below),
        tuple(f"parameter {index}" for index in unused_parameter_indices(error_message(error))),
        _pickle_value(error),
    )
    return RankReport(rank, RankEnding.RAISED, time.time(), has_started, error=report)


def _pickle_value(value: object) -> bytes | None:
    try:
        pickled = pickle.dumps(value)
        pickle.loads(pickled)
    except Exception:  # pickling runs code of user classes
        return None
    return pickled


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program may have closed or replaced it
            stream.flush()


class _ProgressWatch:
    """The thread of a rank process that talks to the supervisor and checks whether the main thread makes progress."""

    def __init__(self, rank: int, timeout_seconds: float, line: Connection) -> None:
        self._rank = rank
        self._timeout_seconds = timeout_seconds
        self._line = line
        self._lock = threading.Lock()
        self._has_reported = False
        self._has_started = False
        self._interval = min(max(timeout_seconds / 10, 0.02), 0.25)
        self._progress = JobRankProgress(self._interval)

    def announce_start(self) -> None:
        """Inform the supervisor that the program begins."""
        with self._lock:
            self._line.send(RankMessage.STARTED)
            self._has_started = True

    def send_report(self, report: RankReport) -> None:
        """Send the report on how the rank has ended, unless the rank was already reported as hung."""
        with self._lock:
            if not self._has_reported:
                self._has_reported = True
                self._line.send(report)

    def run(self) -> None:
        """Check the progress and receive messages, until the supervisor sends END or has died."""
        try:
            while True:
                if not self._line.poll(self._interval):
                    self._check_progress()
                elif self._line.recv() is RankMessage.DESCRIBE:
                    self.send_report(self._hang_report())
                else:
                    break
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # the supervisor, which ends these processes, has died
        os._exit(0)

    def _check_progress(self) -> None:
        if self._has_reported or not self._has_started:
            return
        asleep, computing = self._progress.idle_seconds()
        if asleep >= min(PATIENCE * self._timeout_seconds, _LONGEST_WAIT):
            self.send_report(self._hang_report())
        with self._lock:
            if not self._has_reported:
                self._line.send(RankMessage.IDLE if self._is_idle(asleep, computing) else RankMessage.ALIVE)

    def _is_idle(self, asleep: float, computing: float) -> bool:
        return max(asleep, computing / PATIENCE) >= self._timeout_seconds

    def _hang_report(self) -> RankReport:
        asleep, computing = self._progress.idle_seconds()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        site = user_site_of(frame)
        calls = read_recorder().calls[-_SHOWN_CALLS:]
        if not has_recorder():
            calls = ("not known: this torch has no flight recorder",)
        own = None if site is NOWHERE else site
        is_idle = self._is_idle(asleep, computing)
        position = RankPosition(max(asleep, computing), own, program_stack_text(frame), calls, is_idle)
        return RankReport(self._rank, RankEnding.HUNG, time.time(), position=position)


def call_program(scenario: Scenario, rank: int) -> Any:
    """Run the program of a rank. In a stack, the frames of the program begin below the frame of this function."""
    return scenario.program(rank, *scenario.args)


def traceback_below_call(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the program; the whole traceback if no frame is of the program."""
    below = trace
    while below is not None and below.tb_frame.f_code is not call_program.__code__:
        below = below.tb_next
    return below.tb_next if below is not None and below.tb_next is not None else trace


def program_stack_text(frame: FrameType | None) -> str:
    """Return the stack that ends in `frame` as text: from the program on, innermost last, without torch's own frames.

    If the stack has only torch frames, return all of them. For a rank that died, `position_of_death` keeps torch's
    frames, because they show the operation.
    """
    frames = list(traceback.walk_stack(frame))
    own = next((n for n, (each, _) in enumerate(frames) if _is_above_program(each.f_code)), len(frames))
    below = frames[:own][::-1]
    users = [(each, line) for each, line in below if is_user_code(each.f_code)]
    return "".join(traceback.StackSummary.extract(iter(users or below)).format())


def _is_above_program(code: CodeType) -> bool:
    return code is call_program.__code__ or code.co_filename == BETWEEN


_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.*)')


def position_of_death(lines: Sequence[str]) -> RankPosition | None:
    """Return where the program of a dead rank was, from faulthandler's output; None if that does not show it."""
    sites: list[Site] = []
    for line in lines:
        found = _FRAME.fullmatch(line)
        if found is None:
            sites = []  # the stack of another thread begins
        elif (found["function"], found["path"]) == (call_program.__name__, __file__) or found["path"] == BETWEEN:
            return _position_of_sites(sites)
        else:
            sites.append(Site(found["path"], int(found["line"]), found["function"]))
    return None


def _position_of_sites(sites: Sequence[Site]) -> RankPosition:
    own = next((site for site in sites if is_user_code(compile("", site.path, "exec"))), None)
    stack = traceback.StackSummary.from_list([(site.path, site.line, site.function, None) for site in sites[::-1]])
    return RankPosition(0.0, own, "".join(stack.format()), ())
