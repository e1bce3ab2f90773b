"""Findings about threads that a rank started: exceptions, and deadlocks within one rank."""

from collections.abc import Sequence
from dataclasses import replace

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankSnapshot, Snapshot, ThreadSnapshot, WaitReason
from ddpsim.simulator.diagnosis.explain import shorten_list, shorten_text, summarized_finding
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.waits import LockWait, ThreadWait, Wait
from ddpsim.simulator.wording import LabelledLine, rank_list


def thread_error_finding(
    ranks: tuple[int, ...], thread: str, error: str, site: Site | None, traceback_text: str
) -> Finding:
    """Return the finding for a thread that raised on these ranks; `error` is the exception's type and message."""
    where = f" at {site}" if site else ""
    summary = f'thread "{thread}" of {rank_list(ranks)} raised {shorten_text(error, 200)}{where}'
    lines = ["  " + line for line in traceback_text.rstrip().splitlines()]
    cause = Cause.FAULT_INJECTED if error.startswith(InjectedCrashError.__name__) else Cause.THREAD_RAISED
    advice, sites = cause.lines(who=rank_list(ranks)), (site,) if site else ()
    return summarized_finding(Code.HAZARD_THREAD_ERROR, ranks, summary, lines, advice, sites=sites)


def merge_thread_deadlocks(snapshot: Snapshot, readings: Sequence[WaitReason]) -> list[WaitReason]:
    """Merge equal thread deadlocks of several ranks into one, at the position of the first."""
    alike: dict[object, WaitReason] = {}
    for index, reading in enumerate(readings):
        key: object = index
        if reading.code is Code.DEADLOCK_THREADS:
            threads = [snapshot.threads[number] for number in reading.threads or reading.culprits]
            key = tuple((thread.name, _wait_kind(thread.wait)) for thread in threads)
        first = alike.setdefault(key, reading)
        if first is not reading:
            culprits = tuple(sorted({*first.culprits, *reading.culprits}))
            victims = tuple(sorted({*first.victims, *reading.victims}))
            alike[key] = replace(first, culprits=culprits, victims=victims)
    return list(alike.values())


def _wait_kind(wait: Wait | None) -> tuple[str, Site | None]:
    what = wait.what if isinstance(wait, LockWait) else type(wait).__name__
    return what, wait.site if wait is not None else None


def describe_thread_wait(
    snapshot: Snapshot, rank: RankSnapshot, number: int, wait: LockWait | ThreadWait
) -> tuple[str, str, str]:
    """Return text on what a thread waits for, at which line, and which thread holds that."""
    site = str(wait.site) if wait.site.line else ""
    if isinstance(wait, ThreadWait):
        over = "is over, and " if wait.is_at_end else ""
        return f"{over}waits for {wait}", site, ""
    if wait.holder is None:
        return f"waits for {wait.what}", site, "" if rank.threads else "no other thread is left"
    holder = "itself" if wait.holder == number else _thread_text(snapshot.threads.get(wait.holder))
    return f"waits for {wait.what}", site, f"held by {holder}"


def cycle_text(snapshot: Snapshot, threads: Sequence[int]) -> str:
    """Return the threads of a cycle, by name, as text."""
    return " -> ".join(shorten_list([_thread_text(snapshot.threads[number]) for number in (*threads, threads[0])]))


def advise_threads(snapshot: Snapshot, reading: WaitReason) -> list[LabelledLine]:
    """Return the advice (cause and what to try) for a deadlock of threads within one rank."""
    culprits = rank_list(reading.culprits)
    waits = [snapshot.threads[number].wait for number in reading.threads]
    holders = [wait.holder for wait in waits if isinstance(wait, LockWait) and wait.holder is not None]
    if len(reading.threads) == 1 and holders:
        return Cause.LOCK_TAKEN_TWICE.lines(who=culprits)
    if holders and len(holders) == len(waits):
        return Cause.LOCKS_IN_OTHER_ORDER.lines(who=culprits)
    return (Cause.LOCK_HELD_IN_WAIT if holders else Cause.NOBODY_ACTS).lines(who=culprits)


def _thread_text(thread: ThreadSnapshot | None) -> str:
    if thread is None:
        return "a thread that has ended"
    return f'thread "{thread.name}"' if thread.name else "the main thread"
