"""Runs a rank in its process, from the fork to the end."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ddpsim.simulator.debugging.late_pdb import LatePdb
from ddpsim.simulator.errors import InternalError, UsageError
from ddpsim.simulator.hazards.hazard_watch import HazardWatch
from ddpsim.simulator.kernel.requests import ReadClock, Sleep
from ddpsim.simulator.process_group.backend import Backend
from ddpsim.simulator.process_group.user_stores import serve_made_stores
from ddpsim.simulator.rank_processes.external_effects import wait_before_external_effects
from ddpsim.simulator.rank_processes.external_processes import refuse_groups_in_forks, watch_children
from ddpsim.simulator.rank_processes.messages import Ended, Exits, packed, unpacked
from ddpsim.simulator.rank_processes.own_process import end_executors_of_processes, flush, make_own_process
from ddpsim.simulator.rank_processes.process_config import RankConfig
from ddpsim.simulator.rank_processes.process_session_host import ProcessSessionHost
from ddpsim.simulator.rank_processes.rank_channel import RankChannel
from ddpsim.simulator.rank_processes.rank_files import (
    TELL_NATIVE_STACK,
    TELL_STACK,
    UNWIND_PROGRAM,
    end_broken,
    write_stack,
)
from ddpsim.simulator.rank_processes.remote_kernel import RemoteKernel
from ddpsim.simulator.runtime.baton import stack_of
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.runtime.isolation import VirtualTime
from ddpsim.simulator.runtime.outcome import Raised, describe, one_line
from ddpsim.simulator.runtime.rank_body import RankBody
from ddpsim.simulator.runtime.rank_thread import RankUnwound
from ddpsim.simulator.runtime.replaced import Replaced
from ddpsim.simulator.runtime.thread_host import ThreadHost
from ddpsim.simulator.virtual_gpus.doors import Doors
from ddpsim.simulator.virtual_gpus.install import VirtualGpus


def main(rank_config: RankConfig) -> NoReturn:
    """Run a rank, and end the process."""
    process = None
    try:
        make_own_process(rank_config)
        watch_children(rank_config.common.external_processes, f"rank {rank_config.rank}")
        process = _RankProcess(rank_config)
        process.run()
    except BaseException as error:  # an internal error: `Ended` has that of the program
        first = (process and process.stop_communicating()) or error
        flush()
        end_broken(rank_config.files.stack, first, f"the process of rank {rank_config.rank}")
    finally:
        flush(has_own_files=rank_config.common.is_program and not rank_config.common.is_launched)
        os._exit(0)


def leave_program(kernel: RemoteKernel) -> None:
    """Leave the rank's program, which has not noticed that the execution has ended."""
    if kernel.interrupt():
        raise RankUnwound


class _RankProcess:
    def __init__(self, rank_config: RankConfig) -> None:
        self._rank_config = rank_config
        self._error: BaseException | None = None
        self._leaving: BaseException | None = None
        self._own_channel = channel = RankChannel(rank_config.channel, rank_config.rank, rank_config.files)
        self._kernel = RemoteKernel(
            channel, rank_config.rank, rank_config.arena, is_observed=rank_config.common.is_observed
        )
        self._gpus = VirtualGpus(rank_config.common.announcement)
        self._hazards = HazardWatch(rank_config.common.world_size, self._kernel.handle)
        body = RankBody(
            self._begin,
            enter_rank=self._enter_rank,
            record_error=self._record_error,
            record_leaving=self._record_leaving,
        )
        self._host = ThreadHost(
            self._kernel,
            rank_config.common.world_size,
            lambda me: body.run(self._host, me),
            switch=lambda outgoing, incoming: None,
            move_data=_moves_elsewhere,
            hazards=self._hazards,
            enter_thread=self._enter_thread,
            owns_modules=True,
        )
        self._backend = Backend(
            self._host,
            checks_replicas=rank_config.common.checks_replicas,
            makes_groups=not rank_config.common.is_program,
            poisons=rank_config.common.poisons,
            semantics=rank_config.common.semantics,
        )
        self._body = body
        self._session_host = ProcessSessionHost(self._host, channel, self._await_turn)
        rank = self._host.ranks[0]
        self._kernel.attach(rank.pending, lambda pending: self._hazards.slot_filled([pending]))

    def _begin(self, rank: int) -> Any:
        __tracebackhide__ = True  # pytest then begins with the program
        if self._rank_config.common.debugs_rank == rank:
            self._session_host.begin()
        return self._rank_config.common.program(rank)

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
        if self._rank_config.common.is_program:
            end_executors_of_processes()
            atexit._run_exitfuncs()

    def _enter_thread(self) -> None:
        torch.autograd.set_multithreading_enabled(False)
        self._gpus.enter_thread()

    def _give_gpus(self) -> None:
        """Install virtual GPUs now, or when the program asks for one."""
        config = self._rank_config.common
        if config.gpus is not None:
            self._gpus.install(config.gpus)
        else:
            Doors(self._gpus, config.world_size, config.announcement.say_gpus).watch()

    def _record_error(self, rank: int, error: BaseException) -> None:
        self._error = error

    def _record_leaving(self, rank: int, error: BaseException) -> None:
        self._leaving = error

    def stop_communicating(self) -> BaseException | None:
        """Make replaced functions stop waiting for the baton. Returns the first internal error here, if known."""
        self._own_channel.is_in_use = True
        return self._kernel.run.life.failure

    def run(self) -> None:
        """Run the program, and send its result."""
        host = self._host
        me = host.ranks[0].main
        me.thread, me.ident = threading.current_thread(), threading.get_ident()
        me.asker = me.ident
        time = VirtualTime(
            host.is_rank_thread,
            lambda seconds: host.ask(Sleep(seconds)),
            lambda: (host.me.rank, float(host.ask(ReadClock()))),
        )
        self._own_channel.heed_debugger = self._session_host.heed
        self._listen()
        refuse_groups_in_forks()
        if self._rank_config.common.is_speculative:
            self._rank_config.common.announcement.wait = self._await_turn
            wait_before_external_effects(self._await_turn)
        with self._backend.installed(), self._exit_heeded():
            serve_made_stores(host)
            time.install()
            host.threads.install()
            self._give_gpus()
            LatePdb(self._session_host).install()
            if self._rank_config.common.breakpoints.those:
                self._session_host.heed(self._rank_config.common.breakpoints)
            self._kernel.await_first_turn()
            host.baton.pass_on(None, me.number)
            self._body.run(host, me)
            host.baton.over.acquire()  # threads of the rank may still be leaving
            host.threads.uninstall()
            time.uninstall()
        self._own_channel.send(self._ended())

    @contextmanager
    def _exit_heeded(self) -> Iterator[None]:
        """Make os._exit report the end of the rank first, as at a normal end."""
        own_process, leave, replaced = os.getpid(), os._exit, Replaced()

        def end_process(status: int) -> NoReturn:
            if os.getpid() == own_process and self._host.is_rank_thread():  # not in a fork of the rank
                self._await_turn()
                if self._host.is_stopping or self._own_channel.is_in_use:
                    pass
                elif status != 0:  # a failure, which the coordinator describes
                    self._own_channel.send(Exits(site_here()))
                else:
                    self._backend.rank_returned(self._rank_config.rank)
                    self._hazards.returned(self._rank_config.rank, None)
                    self._hazards.rank_ended(self._rank_config.rank)
                    self._own_channel.send(self._ended())
            leave(status)

        if self._rank_config.common.is_program:
            replaced.put(os, "_exit", end_process)
        try:
            yield
        finally:
            replaced.put_back()

    def _await_turn(self) -> None:
        """Wait for the baton (the right to run) before the rank touches something that it shares with others."""
        if not self._kernel.is_speculative or self._own_channel.is_in_use or not self._host.is_rank_thread():
            return
        if not self._kernel.await_turn():
            raise RankUnwound

    def _listen(self) -> None:
        """Handle the signals of the coordinator."""
        stack = self._rank_config.files.stack

        def tell_stack(*arguments: object) -> None:
            running = self._host.baton.running
            if running is not None:
                write_stack(stack, stack_of(running))

        signal.signal(TELL_STACK, tell_stack)
        faulthandler.register(TELL_NATIVE_STACK, os.fdopen(stack, "wb", closefd=False), all_threads=False)
        signal.signal(UNWIND_PROGRAM, lambda *_: leave_program(self._kernel))

    def _ended(self) -> Ended:
        rank, error = self._host.ranks[0], self._error
        return Ended(
            value=b"" if rank.value is None else _pickled(rank.value, f"rank {rank.rank} returned"),
            error=b"" if error is None else _pickled_error(error),
            raised=self._told(error),
            thread_errors=tuple(self._host.threads.errors),
            has_poisoned=self._hazards.has_poisoned,
            leaving=self._told(self._leaving),
        )

    def _told(self, error: BaseException | None) -> Raised | None:
        if error is None:
            return None
        rank = self._host.ranks[0].rank
        return describe(rank, error, self._backend.parameter_names, self._hazards.poisoned(rank))


def _moves_elsewhere(*arguments: Any) -> NoReturn:
    raise InternalError("a rank's process moves data, expected the coordinator to: correct the kernel's answer")


def _pickled(value: Any, what: str) -> bytes:
    try:
        return packed(value)
    except Exception as error:
        problem = UsageError(
            f"{what} {type(value).__name__}, which cannot travel from its process ({error}), expected a value "
            "that pickle supports: return numbers or tensors, or run with isolation='thread'"
        )
        return packed(problem)


def _pickled_error(error: BaseException) -> bytes:
    """Pickle an error; if it does not pickle, pickle an error with its name and text."""
    try:
        data = packed(error)
        unpacked(data)
    except Exception:
        return packed(RuntimeError(one_line(error)))
    return data
