"""Runs a rank in its process, from the fork to the end."""

import atexit
import faulthandler
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from os import stat  # bound here, as the clock is: those of a rank are replaced
from time import time
from typing import Any, NoReturn

import torch

from ddpsim.simulator.debugging.late_pdb import PdbReplacement
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.errors import InternalError, UsageError, error_line
from ddpsim.simulator.events import AT_EXIT, EventKind
from ddpsim.simulator.hazards.hazard_watch import HazardWatch
from ddpsim.simulator.kernel.requests import ReadClock, Sleep, WriteNote
from ddpsim.simulator.process_group.backend import SimulatedBackend
from ddpsim.simulator.process_group.user_stores import replace_store_classes
from ddpsim.simulator.rank_processes import rank_files
from ddpsim.simulator.rank_processes.external_effects import is_folder, wait_before_external_effects
from ddpsim.simulator.rank_processes.external_processes import detect_groups_in_new_pythons, reject_groups_in_forks
from ddpsim.simulator.rank_processes.messages import OsExitReport, RankEnded, pickle_value, unpickle_value
from ddpsim.simulator.rank_processes.own_process import flush_streams, make_own_process, shut_down_process_executors
from ddpsim.simulator.rank_processes.private_disks import path_outside
from ddpsim.simulator.rank_processes.process_config import RankConfig
from ddpsim.simulator.rank_processes.process_session_host import ProcessSessionHost
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.rank_processes.remote_kernel import RemoteKernel
from ddpsim.simulator.runtime.baton import stack_of_thread
from ddpsim.simulator.runtime.call_sites import current_user_site, site_of_error
from ddpsim.simulator.runtime.isolation import VirtualTime
from ddpsim.simulator.runtime.isolation.virtual_time import host_offset
from ddpsim.simulator.runtime.outcome import RaisedError, describe_error
from ddpsim.simulator.runtime.rank_body import RankMain
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.replaced import ReplacedAttributes
from ddpsim.simulator.runtime.thread_host import ThreadHost
from ddpsim.simulator.virtual_gpus.doors import GpuRequestProbes
from ddpsim.simulator.virtual_gpus.install import VirtualGpus


def run_rank_process(rank_config: RankConfig) -> NoReturn:
    """Run a rank, and end the process."""
    process = None
    try:
        make_own_process(rank_config)
        detect_groups_in_new_pythons(rank_config.common.external_processes, f"rank {rank_config.rank}")
        process = _RankProcess(rank_config)
        process.run_rank()
    except BaseException as error:  # an internal error: `RankEnded` has that of the program
        first = (process and process.stop_communicating()) or error
        flush_streams()
        rank_files.exit_with_internal_error(rank_config.files.stack, first, f"the process of rank {rank_config.rank}")
    finally:
        flush_streams(has_own_files=rank_config.common.is_program and not rank_config.common.is_launched)
        os._exit(0)


def leave_program(kernel: RemoteKernel) -> None:
    """Make the rank leave its program, which has not noticed that the execution has ended."""
    if kernel.note_interruption():
        raise RankUnwound


class _RankProcess:
    def __init__(self, rank_config: RankConfig) -> None:
        self._rank_config = rank_config
        self._began = time()
        self._missing: set[Any] = set()
        """The files for which the rank has looked, and that were not there."""
        self._polled_at = -1
        """How many calls the rank had made when it last saw one of these files."""
        self._errors: dict[int, BaseException] = {}
        """The exception that the rank's program raised, by the rank."""
        self._leaving: dict[int, BaseException] = {}
        self._own_channel = channel = RankChannel(rank_config.channel, rank_config.rank, rank_config.files)
        is_observed = rank_config.common.is_observed
        self._kernel = RemoteKernel(channel, rank_config.rank, rank_config.arena, is_observed=is_observed)
        self._gpus = VirtualGpus(rank_config.common.announcement)
        self._hazards = HazardWatch(rank_config.common.world_size, self._kernel.handle)
        body = RankMain(
            self._run_program,
            enter_rank=self._enter_rank,
            record_error=self._errors.__setitem__,
            record_leaving=self._leaving.__setitem__,
        )
        self._host = ThreadHost(
            self._kernel,
            rank_config.common.world_size,
            lambda me: body.run_rank(self._host, me),
            switch=lambda outgoing, incoming: None,
            move_data=_reject_moving_tensors,
            hazards=self._hazards,
            enter_thread=self._enter_thread,
            owns_modules=True,
            follows=rank_config.common.follows_paths,
        )
        self._backend = SimulatedBackend(
            self._host,
            checks_replicas=rank_config.common.checks_replicas,
            makes_groups=rank_config.common.makes_groups,
            poisons=rank_config.common.poisons,
            semantics=rank_config.common.semantics,
            are_processes=True,
            recording=rank_config.common.recording,
            ranks=[rank_config.rank],
        )
        self._body = body
        self._session_host = ProcessSessionHost(self._host, channel, self._await_turn)
        rank = self._host.ranks[0]
        self._kernel.attach_calls(rank.pending, lambda pending: self._hazards.collective_matched([pending]))

    def _run_program(self, rank: int) -> Any:
        __tracebackhide__ = True  # pytest then begins with the program
        if self._rank_config.common.debugs_rank == rank:
            self._session_host.begin()
        with nullcontext() if self._host.paths is None else self._host.paths.followed(rank):
            return self._rank_config.common.program(rank)

    @contextmanager
    def _enter_rank(self, rank: int) -> Iterator[None]:
        with self._backend.rank_entered(rank):
            try:
                yield
            except RankUnwound:
                raise
            except BaseException:
                self._run_exit_handlers()
                raise
            self._run_exit_handlers()

    def _run_exit_handlers(self) -> None:
        if self._rank_config.common.is_program:
            shut_down_process_executors()
            replaced = ReplacedAttributes()
            replaced.replace_attribute(sys, "unraisablehook", self._noting_hook)
            try:
                atexit._run_exitfuncs()
            finally:
                replaced.restore_attributes()

    def _noting_hook(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a hook that notes what an exit handler raised: Python prints it, and the exit status stays."""

        def note_exit_error(raised: Any) -> None:
            error = raised.exc_value
            if "atexit" in str(raised.err_msg) and error is not None and not isinstance(error, RankUnwound):
                text = f"{AT_EXIT}{error_line(error)} ({site_of_error(error)})"
                self._host.send_request(WriteNote(EventKind.NOTE, text))
            original(raised)

        return note_exit_error

    def _enter_thread(self) -> None:
        torch.autograd.set_multithreading_enabled(False)
        if self._host.paths is not None:
            self._host.paths.follow_thread()

    def _install_virtual_gpus(self) -> None:
        """Install virtual GPUs now, or when the program asks for one."""
        config = self._rank_config.common
        if config.gpus is not None:
            self._gpus.install(config.gpus)
        else:
            GpuRequestProbes(
                self._gpus, self._rank_config.host.local_size, config.announcement.announce_gpus
            ).install_probes()

    def stop_communicating(self) -> BaseException | None:
        """End all communication here: nothing waits for the baton any more. Returns the first internal error."""
        self._own_channel.is_in_use = True
        return self._kernel.run.life.failure

    def run_rank(self) -> None:
        """Run the program, and send its result."""
        host = self._host
        me = host.ranks[0].main
        me.thread, me.ident = threading.current_thread(), threading.get_ident()
        me.asker = me.ident
        time = VirtualTime(
            host.is_rank_thread,
            partial(self._kernel.timer.sleep, lambda seconds: host.send_request(Sleep(seconds))),
            lambda: (host.running_thread.rank, float(host.send_request(ReadClock()))),
            is_alike=self._rank_config.common.has_equal_clocks,
            start=self._rank_config.common.began,
            host_offset=host_offset(self._rank_config.host.number),
        )
        self._own_channel.heed_debugger = self._session_host.serve_other_rank
        self._install_signal_handlers()
        reject_groups_in_forks(ReplacedAttributes())
        if self._rank_config.common.is_speculative:
            self._rank_config.common.announcement.wait = self._await_turn
        wait_before_external_effects(self._await_turn)
        config, rank = self._rank_config.common, self._rank_config.rank
        if config.diary or config.strikes:
            diary = os.path.join(config.diary, f"{config.restarts}.{rank}") if config.diary else ""
            operation_watch = importlib.import_module("ddpsim.simulator.rank_processes.operation_watch")  # seldom used
            operation_watch.OperationWatch(host, rank, diary, config.strikes).install()
        with self._backend.installed(), self._os_exit_replaced():
            replace_store_classes(host)
            time.install()
            self._kernel.timer.install(host.is_rank_thread)
            host.threads.install()
            self._install_virtual_gpus()
            PdbReplacement(self._session_host).install()
            if self._rank_config.common.breakpoints.those:
                self._session_host.serve_other_rank(self._rank_config.common.breakpoints)
            self._kernel.await_first_turn()
            host.baton.pass_to_thread(None, me.number)
            self._body.run_rank(host, me)
            with suppress(RankUnwound):  # the rank is told to leave for the sake of a thread that does not
                host.baton.over.acquire()  # threads of the rank may still be leaving
            host.threads.uninstall()
            time.uninstall()
        self._own_channel.send_message(self._final_message())

    @contextmanager
    def _os_exit_replaced(self) -> Iterator[None]:
        """Replace os._exit: the rank first reports its end, as at a normal end."""
        own_process, leave, replaced = os.getpid(), os._exit, ReplacedAttributes()

        def end_process(status: int) -> NoReturn:
            if os.getpid() == own_process and self._host.is_rank_thread():  # not in a fork of the rank
                self._await_turn()
                if self._host.is_stopping or self._own_channel.is_in_use:
                    pass
                elif status != 0:  # a failure, which the coordinator describes
                    self._own_channel.send_message(OsExitReport(current_user_site()))
                else:
                    self._backend.rank_returned(self._rank_config.rank)
                    self._hazards.program_returned(self._rank_config.rank, None)
                    self._hazards.rank_ended(self._rank_config.rank)
                    self._own_channel.send_message(self._final_message())
            leave(status)

        if not self._rank_config.common.makes_groups:  # a program, or a rank of a test that starts its ranks itself
            replaced.set_attribute(os, "_exit", end_process)
        try:
            yield
        finally:
            replaced.restore_attributes()

    def _await_turn(self, *look: Any, writes: bool | None = None, line: str = "") -> None:
        """Wait for the baton (the right to run) before the rank touches something that it shares with others. `look`:
        the function and the file, if it looks at one; `writes`: True if it writes the file anew or removes it, False if
        it reads it; `line`: that of the look, or of the look for the folder that it makes or removes."""
        if self._own_channel.is_in_use or not self._host.is_rank_thread():
            return
        if not self._kernel.await_turn():
            raise RankUnwound
        if writes is not None and not (file := os.path.abspath(os.fsdecode(look[1]))).startswith(("/dev/", "/proc/")):
            with suppress(OSError):
                # This file, or a mark of another rank's, is polled.
                is_polled = self._polled_at == self._host.ranks[0].calls_issued
                if writes or (stat(file).st_mtime > self._began and not is_polled):  # else it was there before the run
                    for each in {line: 0, "": 0} if look[0] == "shutil.rmtree" else (line,):
                        self._host.send_request(Noticed(NoticedKind.FILE, (), (self._outside(file), writes, each)))
        elif look and isinstance(look[1], (str, os.PathLike)):
            is_there, was_missing = _is_there(look[1]), look[1] in self._missing
            folder = look[1] if is_there else os.path.dirname(os.path.abspath(look[1]))  # it may have been removed
            if is_there and was_missing:
                self._polled_at = self._host.ranks[0].calls_issued
            elif line and not was_missing and is_folder(folder, self._began):
                self._host.send_request(Noticed(NoticedKind.FILE, (), (self._outside(look[1]), False, line)))
            if not is_there:
                self._missing.add(look[1])
        if look:
            self._backend.outside.note_look(*look)

    def _outside(self, file: Any) -> str:
        return path_outside(self._rank_config.disks, os.path.abspath(file))

    def _install_signal_handlers(self) -> None:
        """Install the functions that run when the coordinator sends the rank a signal."""
        stack = self._rank_config.files.stack

        def write_own_stack(*arguments: object) -> None:
            running = self._host.baton.running
            if running is not None:
                rank_files.write_rank_stack(stack, stack_of_thread(running))

        signal.signal(rank_files.TELL_STACK, write_own_stack)
        faulthandler.register(rank_files.TELL_NATIVE_STACK, os.fdopen(stack, "wb", closefd=False), all_threads=False)
        signal.signal(rank_files.UNWIND_PROGRAM, lambda *_: leave_program(self._kernel))

    def _final_message(self) -> RankEnded:
        rank = self._host.ranks[0]
        error = self._errors.get(rank.rank)
        return RankEnded(
            value=b"" if rank.value is None else _pickle_value(rank.value, f"rank {rank.rank} returned"),
            error=b"" if error is None else _pickle_exception(error),
            raised=self._describe_exception(error),
            thread_errors=tuple(self._host.threads.errors),
            has_poisoned=self._hazards.has_poisoned,
            leaving=self._describe_exception(self._leaving.get(rank.rank)),
        )

    def _describe_exception(self, error: BaseException | None) -> RaisedError | None:
        if error is None:
            return None
        rank = self._host.ranks[0].rank
        return describe_error(rank, error, self._backend.parameter_names, self._hazards.poisoned_calls(rank))


def _is_there(file: Any) -> bool:
    try:
        stat(file)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        pass
    return True


def _reject_moving_tensors(*arguments: Any) -> NoReturn:
    raise InternalError("a rank's process moves data, expected the coordinator to: correct the kernel's answer")


def _pickle_value(value: Any, what: str) -> bytes:
    try:
        return pickle_value(value)
    except Exception as error:
        problem = UsageError(
            f"{what} {type(value).__name__}, which cannot travel from its process ({error}), expected a value "
            "that pickle supports: return numbers or tensors, or run with isolation='thread'"
        )
        return pickle_value(problem)


def _pickle_exception(error: BaseException) -> bytes:
    """Pickle an error; if it does not pickle, pickle an error with its name and text."""
    try:
        unpickle_value(data := pickle_value(error))
        return data
    except Exception:
        return pickle_value(RuntimeError(error_line(error)))
