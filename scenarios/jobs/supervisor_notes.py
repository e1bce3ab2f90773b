"""The values that the supervisors of ranks exchange, through the store that the launcher opens for all machines."""

import contextlib
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ddpsim import UsageError
from ddpsim.scenarios.jobs.rank_report import RankEnding, RankReport

HUNG, FAILED_TO_START = b"hung", b"failed to start"
"""The reasons for which a run is ended before all its ranks have ended."""

_BEAT_SECONDS, _LOST_SECONDS = 5.0, 60.0
LOST = f"its supervisor, of which nothing was heard for {_LOST_SECONDS:g} s"
"""The ending of a rank whose supervisor no longer sends anything."""

_STORE_SECONDS, _TRY_SECONDS = 60.0, timedelta(seconds=5.0)
"""How long to wait for a connection to the store: in all, and in each attempt."""
_PIECE_BYTES = 1 << 22
"""The size of the pieces in which a report is written: a store accepts at most 8 MiB in one value."""
_LEAVING_SECONDS = 5.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class RankStarter:
    """The launcher, and its child process `parent`, which started this process."""

    parent: int
    folder: str | None

    def check_is_alive(self) -> None:
        """Raise SystemExit if the launcher has ended, or has stopped waiting for ranks that do not start."""
        launcher = multiprocessing.parent_process()
        has_died = os.getppid() != self.parent or (launcher is not None and not launcher.is_alive())
        if has_died or (self.folder is not None and not os.path.isdir(self.folder)):
            raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class SupervisorStore:
    """The values in the launcher's store, by which the supervisors of ranks communicate."""

    rank: int
    world_size: int
    store: Store

    @classmethod
    def connect_to_store(cls, rank: int, world_size: int, starter: RankStarter) -> "SupervisorStore":
        """Connect to the launcher's store; without a launcher, rank 0 opens one. Raises UsageError if that fails."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        end = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                store = TCPStore(address, port, is_master=is_host, timeout=_TRY_SECONDS, wait_for_workers=False)
            except (RuntimeError, ValueError, TypeError, OSError) as error:
                starter.check_is_alive()
                if is_host or time.monotonic() > end:
                    raise UsageError(_no_store_text(rank, address, port, is_host, error)) from error
            else:
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                return cls(rank, world_size, PrefixStore(f"ddpsim/{attempt}", store))

    def write_report(self, report: RankReport) -> None:
        """Write the report of this rank."""
        if not report.has_started:
            self.mark_run_ended(FAILED_TO_START)
        elif report.ending is RankEnding.HUNG:
            self.mark_run_ended(HUNG)
        pickled, key = pickle.dumps(report), _report_key(report.rank)
        pieces = [pickled[start : start + _PIECE_BYTES] for start in range(0, len(pickled), _PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            self._set_value(f"{key}/{number}", piece)
        self._set_value(key, str(len(pieces)).encode())  # last, as this marks the report as complete

    def mark_run_ended(self, why: bytes) -> None:
        """Mark the run as ended, with the reason."""
        self._set_value("over", why)

    def reason_of_end(self) -> bytes | None:
        """Return the reason why the run was ended early; None if it was not."""
        return self.store.get("over") if self.store.check(["over"]) else None

    def set_idle(self, rank: int, *, is_idle: bool) -> None:
        """Record that a rank has made no progress for the time-out; or remove this record."""
        if is_idle:
            self._set_value(_idle_key(rank), b"1")
        else:
            self.store.delete_key(_idle_key(rank))

    def are_all_idle(self) -> bool:
        """Return True if no rank makes progress now."""
        return bool(self.store.check([_idle_key(rank) for rank in range(self.world_size)]))

    def have_all_ended(self) -> bool:
        """Return True once every rank has a report."""
        return bool(self.store.check([_report_key(rank) for rank in range(self.world_size)]))

    def read_reports(self) -> tuple[RankReport, ...]:
        """Return the reports that the rank processes have written, by rank."""
        return tuple(self._read_report(rank) for rank in range(self.world_size))

    def _read_report(self, rank: int) -> RankReport:
        key = _report_key(rank)
        pieces = [self.store.get(f"{key}/{number}") for number in range(int(self.store.get(key)))]
        report: RankReport = pickle.loads(b"".join(pieces))
        return report

    def _set_value(self, key: str, value: bytes) -> None:
        cast("Callable[[str, bytes], None]", self.store.set)(key, value)  # its type stubs allow only str

    def write_status(self, status: int) -> None:
        """Write the exit status, which the processes of all ranks return."""
        self._set_value("status", str(int(status)).encode())

    def read_status(self) -> int | None:
        """Return the exit status that rank 0 has written; None if it is not written yet."""
        return int(self.store.get("status")) if self.store.check(["status"]) else None

    def leave_store(self) -> None:
        """Record that this supervisor no longer needs the store. Then wait a while for the others, because the first
        process to end may close the store, or may end torchrun on its machine, which closes the store."""
        left, end = self.store.add("left", 1), time.monotonic() + _LEAVING_SECONDS
        with contextlib.suppress(RuntimeError):  # all had left, and another one was faster
            while left < self.world_size and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
                left = self.store.add("left", 0)


def _report_key(rank: int) -> str:
    return f"rank/{rank}"


def _idle_key(rank: int) -> str:
    # The key exists while the rank is idle.
    return f"idle/{rank}"


@dataclass(slots=True)
class Heartbeats:
    """Detects supervisors that are lost, perhaps with their machine.

    Each supervisor counts in the store; the count of a lost supervisor no longer increases.
    """

    notes: SupervisorStore
    counts: dict[int, int] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    """For each supervisor, when its count last changed."""
    latest: float = float("-inf")

    def send_heartbeat(self, now: float) -> None:
        """Increase this supervisor's count periodically, and report the ranks of lost supervisors."""
        if now < self.latest + _BEAT_SECONDS:
            return
        self.latest = now
        self.notes.store.add(f"beat/{self.notes.rank}", 1)
        for rank in range(self.notes.world_size):
            if self._is_lost(rank, now) and not self.notes.store.check([_report_key(rank)]):
                self.notes.write_report(RankReport(rank, RankEnding.DIED, time.time(), death=LOST))
                self.notes.set_idle(rank, is_idle=True)

    def _is_lost(self, rank: int, now: float) -> bool:
        count = self.notes.store.add(f"beat/{rank}", 0)
        if count != self.counts.get(rank):
            self.counts[rank], self.since[rank] = count, now
        return now - self.since[rank] > _LOST_SECONDS


def _no_store_text(rank: int, address: str, port: int, is_host: bool, error: Exception) -> str:
    does, expected = ("open", "a free port") if is_host else ("reach", "rank 0 or torchrun to have opened it")
    return (
        f"rank {rank} cannot {does} the store at {address}:{port} ({str(error).splitlines()[0]}), expected {expected}: "
        "set MASTER_ADDR and MASTER_PORT to one, or start by torchrun, which finds one"
    )
