"""Where the calls of a program that is run here first differ from those of a job's records.

The run is read as records of the same form, so both lack the same. Groups are known by the order in which a rank first
used them, as their names are of their job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpsim.simulator.calls import Call
from ddpsim.simulator.records import flight_recorder, plain_pickle
from ddpsim.simulator.records.as_flight_recorder import dump_of
from ddpsim.simulator.records.job import Job
from ddpsim.simulator.records.journal import Journal
from ddpsim.simulator.records.record import RankRecord, Step


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a rank of the program first did what its record does not say."""

    rank: int
    alike: int
    """So many calls before are alike."""
    recorded: Call | None
    """None where the record has no more."""
    made: Call | None
    """None where the program made no more."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The calls of a program beside those of records."""

    alike: int
    """So many calls of all ranks are alike."""
    differences: tuple[Difference, ...]
    """Of each rank that differs the first, the earliest one first."""


def compared(job: Job, run: Journal) -> Comparison:
    """Compare each rank that left a record with the same one of the run."""
    alike, differences = 0, []
    for rank, record in job.records.items():
        made = flight_recorder.read(plain_pickle.loads(dump_of(run, rank)), f"rank_{rank}")
        count, difference = _compared(record, made)
        alike += count
        differences += [] if difference is None else [difference]
    return Comparison(alike, tuple(sorted(differences, key=lambda each: (each.alike, each.rank))))


def _compared(record: RankRecord, made: RankRecord) -> tuple[int, Difference | None]:
    """How many calls are alike, and where they first differ. Behind a cut nobody knows what the rank did."""
    own, other = _indices(record, record), _indices(record, made)[record.lost :]
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for place, (mine, its) in enumerate(zip(own, other, strict=False)):
        steps = record.course.steps[mine], made.course.steps[its]
        if _key(steps[0], numbers[0]) != _key(steps[1], numbers[1]):
            return place, Difference(record.rank, place, record.calls[mine].call, made.calls[its].call)
    count = min(len(own), len(other))
    if len(own) == len(other) or (record.is_cut and len(own) < len(other)):
        return count, None
    recorded = record.calls[own[count]].call if len(own) > count else None
    return count, Difference(record.rank, count, recorded, made.calls[other[count]].call if recorded is None else None)


def _indices(record: RankRecord, of: RankRecord) -> Sequence[int]:
    """The steps to compare: without messages, where the record has none because its recorder skips them."""
    return list(_without_messages(of)) if record.not_recorded and not record.course.messages else range(len(of.calls))


def _without_messages(record: RankRecord) -> Iterator[int]:
    return (index for index, step in enumerate(record.course.steps) if step.is_collective)


def _key(step: Step, numbers: dict[int, int]) -> tuple[object, ...]:
    """What must be the same: reductions, roots and splits are not in all records."""
    group = numbers.setdefault(step.group, len(numbers))
    signature = step.signature
    return group, signature.operation, signature.shapes, signature.dtype, step.peer
