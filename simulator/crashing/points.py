"""The points at which a program is disturbed."""

import os
from collections.abc import Iterator, Sequence

from ddpsim.simulator.crashing.values import Diaries, Entry, Point
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.faults import How, Strike
from ddpsim.simulator.hosts import host_name


def points_of(diaries: Diaries, nodes: int = 1, chosen: Sequence[Sequence[Strike]] = ()) -> tuple[int, list[Point]]:
    """Return the number of all points, and those with the chosen strikes, or those that differ, in the order of the
    program. Raises UsageError for strikes of no point."""
    every = [*_all_points(diaries, nodes)]
    those = {point.strikes: point for _, point in every}
    for each in chosen:
        if tuple(each) not in those:
            raise UsageError(f"{[*each]} is no point of this program, expected one that a sweep has named: correct it")
    differing: dict[object, Point] = {}
    for key, point in every:
        differing.setdefault((point.how, key), point)
    return len(every), [those[tuple(each)] for each in chosen] or [*differing.values()]


def _all_points(diaries: Diaries, nodes: int) -> Iterator[tuple[object, Point]]:
    """Yield each point with what tells it from others of its kind; points that are equal in it are equal."""
    operations = [[each for each in diary if each.is_operation] for diary in diaries]
    places = sorted(
        (each.steps, rank, number) for rank, own in enumerate(operations) for number, each in enumerate(own)
    )
    calls = [[number for number, each in enumerate(own) if each.kind == "call"] for own in operations]
    files, on_host = 0, len(diaries) // nodes
    for steps, rank, number in places:
        here = operations[rank][number]
        before = operations[rank][number - 1] if number else None
        where = f"before its operation {number} ({_operation_text(here)})"

        def point(how: How, text: str, rank: int = rank, number: int = number) -> Point:
            return Point((Strike(rank, number, how),), text)

        yield (rank, files), point(How.KILL, f"rank {rank} is killed {where}")
        yield (rank, files, here.site), point(How.RAISE, f"an exception is raised on rank {rank} {where}")
        if before is not None and before.kind == "write":
            name = os.path.basename(before.what[0])
            yield (rank, number), point(How.TEAR, f"rank {rank} is killed while it writes {name} ({before.site})")
        if here.kind == "write":
            what = _operation_text(here).replace("write", "writes", 1)
            yield (rank, number), point(How.FULL, f"the disk is full as rank {rank} {what}")
        if here.kind == "call" and len(diaries) > 1:
            text = f"rank {rank} is slower than any time-out {where}"
            yield (files, here.site), point(How.SLOW, text)
        if nodes > 1:
            host = rank // on_host
            ranks = range(host * on_host, (host + 1) * on_host)
            yield (host, files), _lost_host(operations, ranks, (steps, rank, number), where)
        if rank == 0 and number in calls[0] and all(calls[0].index(number) < len(each) for each in calls):
            nth = calls[0].index(number)
            strikes = tuple(Strike(each, own[nth], How.TERM) for each, own in enumerate(calls))
            yield (files, here.site), Point(strikes, f"all ranks get SIGTERM before their call {nth} ({here.site})")
        files += here.kind != "call"


def _lost_host(operations: Sequence[Sequence[Entry]], ranks: range, here: tuple[int, int, int], where: str) -> Point:
    """Return the point at which each rank of a host is killed before its next operation; `here` is that of one."""
    steps, rank, number = here
    coming = {
        each: next((at for at, entry in enumerate(operations[each]) if entry.steps >= steps), None) for each in ranks
    } | {rank: number}
    strikes = tuple(Strike(each, at, How.HOST) for each, at in coming.items() if at is not None)
    return Point(strikes, f"{host_name(ranks.start // len(ranks))} is lost, with rank {rank} {where}")


def _operation_text(operation: Entry) -> str:
    names = " to ".join(map(os.path.basename, operation.what))
    return f"{operation.kind}{' ' * bool(names)}{names} at {operation.site}"
