"""Who is in a quorum of replica groups, and who gets the model of whom: what torchft's servers compute, as values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Member(NamedTuple):
    """A replica group that asks for a quorum, under the names of torchft's class."""

    replica_id: str
    address: str = ""
    store_address: str = ""
    step: int = 0
    world_size: int = 0
    shrink_only: bool = False
    data: Any = None
    commit_failures: int = 0


class Joined(NamedTuple):
    """A member, and when it asked."""

    at: float
    member: Member


class Rules(NamedTuple):
    """The options of a lighthouse; times are in seconds."""

    min_replicas: int
    join_timeout: float = 0.1
    heartbeat_timeout: float = 5.0


def compute_quorum(
    now: float,
    joined: Mapping[str, Joined],
    heartbeats: Mapping[str, float],
    previous: Sequence[Member] | None,
    rules: Rules,
) -> tuple[Member, ...] | None:
    """Return the members of a quorum, sorted by their ids; None if there is none yet."""
    healthy = {name for name, latest in heartbeats.items() if now - latest < rules.heartbeat_timeout}
    asking = {name: joined[name] for name in sorted(joined) if name in healthy}
    members = tuple(each.member for each in asking.values())
    before = None if previous is None else {each.replica_id for each in previous}
    if before is not None and any(each.shrink_only for each in members):
        members = tuple(each for each in members if each.replica_id in before)
    if before is not None and before <= asking.keys():
        return members
    if len(asking) < rules.min_replicas or len(asking) <= len(healthy) // 2:  # two halves must not go on alone
        return None
    first = min((each.at for each in asking.values()), default=now)
    is_early = len(asking) < len(healthy) and now - first < rules.join_timeout
    return None if is_early else members


def next_quorum_id(number: int, members: Sequence[Member], previous: Sequence[Member] | None) -> int:
    """Return the number of the quorum after number `number`: it changes with the replicas, and if one of them could not
    commit."""
    is_same = previous is not None and [each.replica_id for each in members] == [each.replica_id for each in previous]
    return number if is_same and not any(each.commit_failures > 0 for each in members) else number + 1


def quorum_result(
    replica_id: str, group_rank: int, quorum_id: int, members: Iterable[Member], *, init_sync: bool
) -> dict[str, Any]:
    """Return what a quorum means for a rank of a replica group in it: the attributes of torchft's QuorumResult."""
    members = sorted(members, key=lambda each: each.replica_id)
    names = [each.replica_id for each in members]
    me, max_step = names.index(replica_id), max(each.step for each in members)
    newest = [each for each in members if each.step == max_step]
    primary = newest[group_rank % len(newest)]
    is_start = init_sync and max_step == 0
    behind = [at for at, each in enumerate(members) if each.step != max_step or (is_start and each is not primary)]
    ahead = [at for at in range(len(members)) if at not in behind]
    sources = {at: ahead[(turn + group_rank) % len(ahead)] for turn, at in enumerate(behind)}
    source = sources.get(me)
    return {
        "quorum_id": quorum_id,
        "replica_rank": me,
        "replica_world_size": len(members),
        "recover_src_manager_address": "" if source is None else members[source].address,
        "recover_src_replica_rank": source,
        "recover_dst_replica_ranks": [at for at, each in sources.items() if each == me],
        "store_address": primary.store_address,
        "max_step": max_step,
        "max_replica_rank": newest.index(members[me]) if members[me] in newest else None,
        "max_world_size": len(newest),
        "heal": source is not None,
        "commit_failures": max(each.commit_failures for each in members),
        "replica_ids": names,
    }
