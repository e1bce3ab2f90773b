"""The records of a job: one per rank, and the groups that they describe together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpsim.simulator.calls import ANY_SOURCE
from ddpsim.simulator.records.rank_record import DEFAULT, RankRecord, RecordError
from ddpsim.simulator.wording import join_names, rank_list

_MOST_RANKS = 2**17


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """The records of all ranks of one job."""

    world_size: int
    records: Mapping[int, RankRecord]
    """The records by rank; some ranks may have no record."""
    members: Mapping[str, tuple[int, ...]]
    """For each group, the global ranks of its members, in group-rank order."""
    guessed: tuple[str, ...] = ()
    """Groups whose members are not recorded; ranks that made a call in such a group count as its members."""
    may_belong: tuple[int, ...] = ()
    """The ranks that may also be members of groups without recorded members."""

    @property
    def ranks_without_record(self) -> tuple[int, ...]:
        """Return the ranks without a record."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.records)

    @property
    def ranks_with_cut_record(self) -> tuple[int, ...]:
        """Return the ranks whose record is cut off."""
        return tuple(rank for rank, record in self.records.items() if record.is_cut)


def combine_records(records: Sequence[RankRecord], world_size: int | None = None) -> RecordedJob:
    """Return the job of these records. Raises RecordError if they are of several jobs, or too few for a diagnosis.

    `world_size` is the number of ranks that the user gave; None to take it from the records.
    """
    by_rank: dict[int, RankRecord] = {}
    for record in sorted(records, key=lambda each: (each.rank, each.source)):
        if record.rank in by_rank:
            raise RecordError(
                f"found two records of rank {record.rank}, {by_rank[record.rank].source} and {record.source}, expected "
                "one of each rank: leave out those of another run, or from before a restart"
            )
        by_rank[record.rank] = record
    size = _world_size(by_rank, world_size)
    _check_record_count(by_rank, size)
    members, guessed = _members_of_groups(by_rank, size)
    _check_peers(by_rank, size)
    others = tuple(rank for rank in range(size) if rank not in by_rank or not by_rank[rank].is_in_one_group)
    return RecordedJob(size, by_rank, members, guessed, others)


def _world_size(records: Mapping[int, RankRecord], said: int | None) -> int:
    """Return the number of ranks of the job. Raises RecordError if records contradict each other or the user."""
    known = {len(record.members[DEFAULT]): record for record in records.values() if DEFAULT in record.members}
    if len(known) > 1:
        (one, first), (other, second), *_ = sorted(known.items())
        raise RecordError(
            f"found records of two jobs, one of {one} ranks ({first.source}) and one of {other} ({second.source}), "
            "expected those of one: leave out the others"
        )
    if said and known and said not in known:
        [(one, first)] = known.items()
        raise RecordError(
            f"found records of a job of {one} ranks ({first.source}), and --world-size says {said}: leave it out, or "
            "leave out what belongs to another job"
        )
    named = [rank for record in records.values() for ranks in record.members.values() for rank in ranks]
    least = max([*records, *named, -1]) + 1
    size = said or next(iter(known), least)
    if least > size or size > _MOST_RANKS:
        raise RecordError(
            f"found a record that names rank {least - 1} in a job of {size} ranks, expected ranks below that: "
            "leave out what belongs to another job"
        )
    return size


def _check_record_count(records: Mapping[int, RankRecord], size: int) -> None:
    if not any(record.call_log.steps for record in records.values()):
        sources = join_names([record.source for record in records.values()], 3)
        raise RecordError(
            f"found no call in the records ({sources}), expected some: switch the recorder on by "
            "TORCH_FR_BUFFER_SIZE=2000 (in older versions of torch, TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
    if len(records) < 2 <= size or size < 2:
        raise RecordError(
            f"found the record of {rank_list(records)} only, expected those of two ranks or more: "
            "a diagnosis compares ranks"
        )


def _check_peers(records: Mapping[int, RankRecord], size: int) -> None:
    for record in records.values():
        for _, peer in record.groups_and_global_peers:
            if peer != ANY_SOURCE and not 0 <= peer < size:
                raise RecordError(
                    f"{record.source} has a message with rank {peer} in a job of {size} ranks, expected "
                    "ranks below that: --world-size says how many there were"
                )


def _members_of_groups(
    records: Mapping[int, RankRecord], size: int
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Return the members of each group, and the groups whose members are in no record."""
    members: dict[str, tuple[int, ...]] = {}
    for record in records.values():
        for group, ranks in record.members.items():
            if members.setdefault(group, ranks) != ranks:
                members[group] = tuple(sorted({*members[group], *ranks}))
    callers: dict[str, set[int]] = {}
    for record in records.values():
        for group in record.groups:
            callers.setdefault(group, set()).add(record.rank)
        for group, peer in record.groups_and_global_peers:
            if peer != ANY_SOURCE:
                callers[group].add(peer)
    guessed = tuple(group for group in callers if group not in members and group != DEFAULT)
    if DEFAULT in callers:
        members.setdefault(DEFAULT, tuple(range(size)))
    for group, own in callers.items():
        known = members.get(group, ())
        members[group] = (*known, *sorted(own.difference(known)))
    return members, guessed
