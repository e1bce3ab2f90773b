"""What runs in the process of a rank, from the fork to its end."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import io
import logging
import multiprocessing.process
import multiprocessing.util
import os
import random
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

import torch

from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.calls import Call
from ddpsim.simulator.choices import Start
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.kernel.requests import ReadClock, Sleep
from ddpsim.simulator.kernel.states import Ending
from ddpsim.simulator.process_group.backend import Backend
from ddpsim.simulator.process_group.hazard_watch import HazardWatch
from ddpsim.simulator.process_group.made_stores import serve_made_stores
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.messages import ChangedInFlight, Ended
from ddpsim.simulator.rank_processes.outside import wait_before_looking_outside
from ddpsim.simulator.rank_processes.outsiders import refuse_groups_in_forks, watch_children
from ddpsim.simulator.rank_processes.parcels import Arena
from ddpsim.simulator.rank_processes.program import environment, environment_of_function
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.rank_processes.rank_files import Files, write_stack
from ddpsim.simulator.rank_processes.remote_judge import RemoteJudge
from ddpsim.simulator.rank_processes.remote_kernel import RemoteKernel
from ddpsim.simulator.rank_processes.signals import TELL_NATIVE_STACK, TELL_STACK, UNWIND_PROGRAM
from ddpsim.simulator.rank_processes.values import packed, unpacked
from ddpsim.simulator.runtime.baton import stack_of
from ddpsim.simulator.runtime.isolation import VirtualTime
from ddpsim.simulator.runtime.isolation.python_random import START_SEED
from ddpsim.simulator.runtime.isolation.seeds import unlike_seed
from ddpsim.simulator.runtime.isolation.torch_generators import DEFAULT_SEED
from ddpsim.simulator.runtime.outcome import Raised, one_line, told
from ddpsim.simulator.runtime.rank_body import RankBody
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.thread_host import ThreadHost
from ddpsim.simulator.virtual_gpus.announcement import Announcement
from ddpsim.simulator.virtual_gpus.doors import Doors
from ddpsim.simulator.virtual_gpus.install import VirtualGpus

_PR_SET_PDEATHSIG = 1

_OF_PROCESSES = ("concurrent.futures.process", "loky", "joblib.externals.loky")
"""The modules of executors whose workers are processes."""


class Terms(NamedTuple):
    """What all ranks of an execution have in common."""

    coordinator: int
    """Its process."""
    world_size: int
    program: Callable[[int], Any]
    is_observed: bool
    """Somebody explores, and wants to know what each step touches."""
    checks_replicas: bool
    is_program: bool
    """Ranks begin as torchrun begins them, and make their groups themselves."""
    announcement: Announcement
    gpus: int | None = None
    """Virtual ones; None for those that a program asks for on a machine that has none."""
    runs_ahead: bool = False
    """It may compute before it has the baton."""
    is_launched: bool = False
    """The program has started its ranks itself, or is going to where nothing says that torchrun has."""
    outsiders: str = ""
    """Where processes are told of that are no ranks and make a group (`Outsiders.address`)."""
    is_forked_by_program: bool = False
    """It has forked them, so that they begin as it stood then."""
    start: Start = Start(is_alike=True)
    preload: tuple[str, ...] = ()
    """Modules that are loaded before ranks of a program are forked."""
    poisons: bool = False
    """Tensors of calls in flight hold what shows."""
    semantics: BackendSemantics = GLOO


def sent(terms: Terms) -> dict[str, Any]:
    """What a rank that runs already has to know of them; it has the rest by having been forked."""
    told = terms._asdict()
    del told["program"], told["announcement"], told["is_forked_by_program"]
    return told


class Setting(NamedTuple):
    """What a rank's process is told when it begins."""

    rank: int
    terms: Terms
    channel: Channel
    arena: Arena
    files: Files


def main(setting: Setting) -> NoReturn:
    """Run a rank, and end the process."""
    status = 1
    try:
        make_own_process(setting)
        watch_children(setting.terms.outsiders, f"rank {setting.rank}")
        _RankProcess(setting).run()
        status = 0
    except BaseException:  # of the machinery: a program's come out in `Ended`
        traceback.print_exc()
    finally:
        flush(has_own_files=setting.terms.is_program and not setting.terms.is_launched)
        os._exit(status)


def flush(*, has_own_files: bool = False) -> None:
    """Let nothing stay in the streams of the process, nor in its own files, which Python closes at its end."""
    # Those that are from before the fork are frozen: what the coordinator has not written yet is its own to write.
    everything = gc.get_objects() if has_own_files else []
    own = [each for each in everything if issubclass(type(each), io.IOBase)]  # isinstance would ask what a proxy is for
    for stream in (sys.stdout, sys.stderr, *own):
        with suppress(Exception):  # the program may have closed it, or put its own there
            stream.flush()


def make_own_process(setting: Setting) -> None:
    """Let go of what the coordinator has, and see to it that nothing is left behind if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setting.terms.coordinator:  # killed in between
        os._exit(1)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.register_at_fork(after_in_child=setting.channel.close)  # what the rank forks is not the rank
    _forget_what_the_caller_left_for_its_end()
    _read_from(os.devnull)
    for number, name, file in ((1, "stdout", setting.files.output), (2, "stderr", setting.files.errors)):
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)  # who opens it by the name /dev/stdout begins at its start
        os.dup2(file, number)
        stream = os.fdopen(os.dup(number), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(sys.stderr)  # where native code crashes, it says where
    torch.set_num_threads(1)
    gc.enable()
    if setting.terms.is_program:
        if not setting.terms.is_launched:
            os.environ.update(environment(setting.rank, setting.terms.world_size))
        if not setting.terms.is_forked_by_program:
            _forget_the_callers_settings()
            _seed(setting)
    else:
        os.environ.update(environment_of_function(setting.rank, setting.terms.world_size))
        _seed(setting)


def _forget_what_the_caller_left_for_its_end() -> None:
    """What is registered for the end of the coordinator is none of the rank's; what the rank registers is to run."""
    atexit._clear()
    finalize: Any = weakref.finalize
    finalize._registry.clear()
    finalize._registered_with_atexit = False  # the next one registers again
    process: Any = multiprocessing.process
    process._children = set()
    util: Any = multiprocessing.util
    util._finalizer_registry.clear()
    atexit.register(util._exit_function)
    atexit.register(logging.shutdown)


def _read_from(path: str) -> None:
    """Let standard input be a file: ranks cannot share a terminal."""
    file = os.open(path, os.O_RDONLY)
    os.dup2(file, 0)
    os.close(file)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # type: ignore[misc]


def _forget_the_callers_settings() -> None:
    """A program imports, logs and warns as if Python had just started: the caller may be a session of pytest."""
    sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith("_pytest.")]
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    if not sys.warnoptions:
        filters: Any = warnings.filters
        filters[:] = [each for each in filters if each[0] != "error"]
        warnings.simplefilter("default", UserWarning, append=True)  # lets `warnings` notice


def _seed(setting: Setting) -> None:
    """Let the random numbers of a rank begin at the same place in each run."""
    seed = seed_of_torch = unlike_seed(setting.rank)
    if setting.terms.start.is_alike:
        seed, seed_of_torch = START_SEED, DEFAULT_SEED
    random.seed(seed)
    torch.manual_seed(seed_of_torch)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


class _Hazards(HazardWatch):
    """Says what it finds where it finds it: who runs ahead may be on a way that nobody is to hear of."""

    def __init__(self, world_size: int, channel: RankChannel) -> None:
        super().__init__(world_size)
        self._own_channel = channel

    def changed_in_flight(self, call: Call) -> None:
        self._own_channel.send(ChangedInFlight(call))

    def shared_in_flight(self, call: Call) -> None:
        self._own_channel.send(ChangedInFlight(call, by_call=True))


class _RankProcess:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._error: BaseException | None = None
        self._leaving: BaseException | None = None
        self._own_channel = channel = RankChannel(setting.channel, setting.rank, setting.files)
        self._kernel = RemoteKernel(channel, setting.rank, setting.arena, is_observed=setting.terms.is_observed)
        self._gpus = VirtualGpus(setting.terms.announcement)
        self._hazards = _Hazards(setting.terms.world_size, channel)
        body = RankBody(
            setting.terms.program,
            enter_rank=self._enter_rank,
            record_error=self._record_error,
            record_leaving=self._record_leaving,
        )
        self._host = ThreadHost(
            self._kernel,
            setting.terms.world_size,
            lambda me: body.run(self._host, me),
            switch=lambda outgoing, incoming: None,
            move_data=_moves_elsewhere,
            hazards=self._hazards,
            enter_thread=self._enter_thread,
            owns_modules=True,
        )
        self._backend = Backend(
            self._host,
            make_judge=(lambda wrappers: RemoteJudge(channel)) if setting.terms.checks_replicas else None,
            steps_elsewhere=self._kernel.latest_step,
            makes_groups=not setting.terms.is_program,
            poisons=setting.terms.poisons,
            semantics=setting.terms.semantics,
        )
        self._body = body
        rank = self._host.ranks[0]
        self._kernel.attach(rank.pending, lambda pending: self._hazards.slot_filled([pending.call]))

    @contextmanager
    def _enter_rank(self, rank: int) -> Iterator[None]:
        with self._backend.rank_entered(rank):
            try:
                yield
            except RankUnwound:
                raise
            except BaseException:
                self._run_what_is_for_the_end()
                raise
            self._run_what_is_for_the_end()

    def _run_what_is_for_the_end(self) -> None:
        if self._setting.terms.is_program:
            end_executors_of_processes()
            atexit._run_exitfuncs()

    def _enter_thread(self) -> None:
        torch.autograd.set_multithreading_enabled(False)
        self._gpus.enter_thread()

    def _give_gpus(self) -> None:
        """Those that were asked for, or those that the program is going to ask for."""
        terms = self._setting.terms
        if terms.gpus is not None:
            self._gpus.install(terms.gpus)
        else:
            Doors(self._gpus, terms.world_size, terms.announcement.say_gpus).watch()

    def _record_error(self, rank: int, error: BaseException) -> None:
        self._error = error

    def _record_leaving(self, rank: int, error: BaseException) -> None:
        self._leaving = error

    def run(self) -> None:
        """Run the program, and say what came of it."""
        host = self._host
        me = host.ranks[0].main
        me.thread, me.ident = threading.current_thread(), threading.get_ident()
        time = VirtualTime(
            host.is_rank_thread,
            lambda seconds: host.ask(Sleep(seconds)),
            lambda: (host.me.rank, float(host.ask(ReadClock()))),
        )
        self._listen()
        refuse_groups_in_forks()
        if self._setting.terms.runs_ahead:
            self._setting.terms.announcement.wait_before(self._await_turn)
            wait_before_looking_outside(self._await_turn)
        with self._backend.installed():
            serve_made_stores(host)
            time.install()
            host.threads.install()
            self._give_gpus()
            self._kernel.await_first_turn()
            host.baton.pass_on(None, me.number)
            self._body.run(host, me)
            host.baton.over.acquire()  # threads of the rank may still be on their way out
            host.threads.uninstall()
            time.uninstall()
        self._own_channel.send(self._ended())

    def _await_turn(self) -> None:
        """Before the rank touches what it shares with others."""
        if not self._kernel.is_ahead or self._own_channel.is_in_use or not self._host.is_rank_thread():
            return
        if not self._kernel.await_turn():
            raise RankUnwound

    def _listen(self) -> None:
        """Heed the signals of the coordinator."""
        stack = self._setting.files.stack

        def tell_stack(*arguments: object) -> None:
            running = self._host.baton.running
            if running is not None:
                write_stack(stack, stack_of(running))

        def unwind(*arguments: object) -> None:
            self._kernel.run.life.stop(Ending.INTERRUPTED)
            raise RankUnwound

        signal.signal(TELL_STACK, tell_stack)
        faulthandler.register(TELL_NATIVE_STACK, os.fdopen(stack, "wb", closefd=False), all_threads=False)
        signal.signal(UNWIND_PROGRAM, unwind)

    def _ended(self) -> Ended:
        rank, error = self._host.ranks[0], self._error
        return Ended(
            value=b"" if rank.value is None else _pickled(rank.value, f"rank {rank.rank} returned"),
            error=b"" if error is None else _pickled_error(error),
            raised=self._told(error),
            unwaited=tuple(self._hazards.left_unwaited),
            thread_errors=tuple(self._host.threads.errors),
            has_poisoned=self._hazards.has_poisoned,
            leaving=self._told(self._leaving),
        )

    def _told(self, error: BaseException | None) -> Raised | None:
        if error is None:
            return None
        rank = self._host.ranks[0].rank
        return told(rank, error, self._backend.parameter_names, self._hazards.poisoned(rank))


def end_executors_of_processes() -> None:
    """What Python does before it runs what is registered for its end; threads of the simulation have ended already."""
    register: Any = threading
    for call in reversed(register._threading_atexits):
        if call.func.__module__.startswith(_OF_PROCESSES):
            call()


def _moves_elsewhere(*arguments: Any) -> NoReturn:
    raise AssertionError("the coordinator moves the data of calls")


def _pickled(value: Any, what: str) -> bytes:
    try:
        return packed(value)
    except Exception as error:
        problem = UsageError(
            f"{what} {type(value).__name__}, which cannot travel from its process ({error}), expected what pickle "
            "takes: return numbers or tensors, or run with isolation='thread'"
        )
        return packed(problem)


def _pickled_error(error: BaseException) -> bytes:
    """An error as it is where it can travel, else one of its name and text."""
    try:
        data = packed(error)
        unpacked(data)
    except Exception:
        return packed(RuntimeError(one_line(error)))
    return data
