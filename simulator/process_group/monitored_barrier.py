"""monitored_barrier: the error that each rank gets if some ranks do not reach it in time."""

from datetime import timedelta

from ddpsim.simulator.diagnosis.rank_errors import FailedBarrier
from ddpsim.simulator.kernel.requests import AskGivenUpBarrier, AskMissingRanks, AskWhereabouts, GiveUpBarrier
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.rank_thread import PendingCall

DEFAULT_TIMEOUT = timedelta(minutes=30)
NO_TIME = timedelta(0)

_ANSWER_SECONDS = 0.001


def wait_at_barrier(
    host: Host, pending: PendingCall, members: tuple[int, ...], timeout: timedelta | None, *, wait_all_ranks: bool
) -> None:
    """Wait for the other ranks of a monitored_barrier.

    Raise gloo's RuntimeError if some do not come in time, or if another rank gave up before. Where rank 0 checks one
    rank after another, gloo takes a time-out of 0 for no time at all, so it fails even if all are there. Where a rank
    waits for one answer, or rank 0 for all ranks, gloo takes 0 for no limit.
    """
    limit = DEFAULT_TIMEOUT if timeout is None else timeout
    rank = members.index(pending.call.rank)
    barrier = (pending.call.group, pending.call.sequence)
    pending.waited = True
    if limit == NO_TIME and rank == 0 and len(members) > 1 and not wait_all_ranks:
        host.send_request(GiveUpBarrier(*barrier, (members[1],)))
    elif not host.wait_for_calls((pending,), _timeout_seconds(rank, limit)) and not host.send_request(
        AskGivenUpBarrier(*barrier)
    ):
        host.send_request(GiveUpBarrier(*barrier, host.send_request(AskMissingRanks(pending.handle))))
    if missing := host.send_request(AskGivenUpBarrier(*barrier)):
        late = [members.index(each) for each in missing]
        error = RuntimeError(_gloo_text(rank, late, limit, wait_all_ranks=wait_all_ranks))
        has_time = limit != NO_TIME or wait_all_ranks
        error.reason = _with_missing_ranks(host, pending, missing if has_time else (), limit)  # type: ignore[attr-defined]
        raise error


def _with_missing_ranks(host: Host, pending: PendingCall, missing: tuple[int, ...], limit: timedelta) -> FailedBarrier:
    """Return the failed barrier as the finding shows it. gloo's text has group ranks, not all of them."""
    call = pending.call
    operation = f"{call.operation} #{call.sequence}" + ("" if call.group == "default" else f' on "{call.group}"')
    whereabouts = tuple(host.send_request(AskWhereabouts(missing))) if missing else ()
    return FailedBarrier(operation, f"{_milliseconds_text(limit)} ms", missing, whereabouts)


def _timeout_seconds(rank: int, limit: timedelta) -> float | None:
    """Return the seconds to wait; None for no limit. Rank 0 waits least, and sends the others the late ranks."""
    if limit == NO_TIME:
        return None
    return limit.total_seconds() + (0 if rank == 0 else _ANSWER_SECONDS)


def _gloo_text(rank: int, missing: list[int], limit: timedelta, *, wait_all_ranks: bool) -> str:
    """Return gloo's error text (ProcessGroupGloo::monitoredBarrier). Rank 0 collects; the others wait for it."""
    original = (
        f"\n Original exception: \nTimed out waiting {_milliseconds_text(limit)}ms for recv operation to complete"
    )
    if rank != 0:
        return (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank.{original}"
        )
    late = sorted(missing)
    if limit == NO_TIME and not wait_all_ranks:
        original = (
            "\n Original exception: \nRank 0 timed out in monitoredBarrier after 0 ms.\n"
            "No ranks successfully processed in monitoredBarrier."
        )
    who = f"Ranks {', '.join(map(str, late))}" if wait_all_ranks else f"Rank {late[0]}"
    return f"[Rank 0]: {who} failed to pass monitoredBarrier in {_milliseconds_text(limit)} ms{original}"


def _milliseconds_text(limit: timedelta) -> int:
    return round(limit.total_seconds() * 1000)
