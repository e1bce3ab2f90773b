"""The finding for DistributedSamplers whose parts of the data set do not fit together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import Row, minority, table
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, rank_list, ranks_by


class Sampling(NamedTuple):
    """The settings from which a DistributedSampler computes its samples."""

    num_replicas: int
    rank: int
    samples: int
    """The number of samples of the data set."""
    shuffle: bool
    seed: int
    epoch: int
    drop_last: bool


class Read(NamedTuple):
    """One iteration of a rank over its sampler."""

    rank: int
    sampling: Sampling
    made: Site
    """The line that made the sampler."""
    site: Site
    """The line that iterates over it."""


_MADE_WITH = ("num_replicas", "samples", "shuffle", "drop_last", "seed")
_NAMES = {"samples": "length of the data set"}


def parts_differ(read: Sequence[Read]) -> Finding | None:
    """Return the finding for samplers that all ranks made at one line, if their parts do not fit together.

    Only if some sampler's `num_replicas` is the world size: another number may belong to a group of ranks.
    """
    size = len(read)
    if size < 2 or all(each.sampling.num_replicas != size for each in read):
        return None
    read = sorted(read)
    for name in _MADE_WITH:
        if name == "seed" and not _differs([_permutation(each.sampling) for each in read]):
            continue
        if _differs(values := [getattr(each.sampling, name) for each in read]):
            return _finding(read, _NAMES.get(name, name), values)
    if _differs([_permutation(each.sampling) for each in read]):
        return _finding(read, "epoch", [each.sampling.epoch for each in read])
    if len({each.sampling.rank for each in read}) < size:
        return _same_part(read)
    return None


def _differs(values: Sequence[Hashable]) -> bool:
    return len(set(values)) > 1


def _permutation(sampling: Sampling) -> int:
    """Return the seed of the generator that orders all samples."""
    return sampling.seed + sampling.epoch if sampling.shuffle else 0


def _finding(read: Sequence[Read], name: str, values: Sequence[object]) -> Finding:
    sides = ranks_by((each.rank, value) for each, value in zip(read, values, strict=True))
    culprits = minority(sides.values())
    values_text = " against ".join(f"{value} on {rank_list(ranks)}" for value, ranks in sides.items())
    if name == "epoch":
        return _worded(read, culprits, f"epoch {values_text}", Cause.SAMPLERS_OF_OTHER_EPOCHS.lines())
    return _worded(read, culprits, f"{name} {values_text}", Cause.SAMPLERS_DIFFER.lines(fact=name))


def _same_part(read: Sequence[Read]) -> Finding:
    sides = ranks_by((each.rank, each.sampling.rank) for each in read)
    culprits = tuple(sorted(rank for ranks in sides.values() if len(ranks) > 1 for rank in ranks))
    told = ", ".join(f"rank={part} on {rank_list(ranks)}" for part, ranks in sides.items() if len(ranks) > 1)
    return _worded(read, culprits, told, Cause.SAMPLERS_OF_ONE_RANK.lines())


def _worded(read: Sequence[Read], culprits: tuple[int, ...], told: str, advice: Sequence[Line]) -> Finding:
    summary = f"samplers made at {read[0].made} differ: {told}"
    rows = [Row(each.rank, _text(each.sampling), str(each.site)) for each in read]
    code = Code.HAZARD_SAMPLER
    lines: list[str | Line] = [f"HAZARD  {code}", f"  {summary}", *table(rows), *advice]
    return Finding(code, culprits, summary, tuple(lines), (read[0].site, read[0].made))


def _text(sampling: Sampling) -> str:
    how = f"seed {sampling.seed}  epoch {sampling.epoch}" if sampling.shuffle else "not shuffled"
    drops = "  drop_last" if sampling.drop_last else ""
    part = f"part {sampling.rank} of {sampling.num_replicas}"
    return f"reads {part} of {sampling.samples} samples  {how}{drops}"
