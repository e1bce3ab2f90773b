"""The finding for DistributedSamplers whose ranks do not share out the data set correctly."""

from collections.abc import Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import (
    TableRow,
    format_table,
    ranks_outside_largest,
    summarized_finding,
    values_with_ranks_text,
)
from ddpsim.simulator.events import NOT_CHECKED
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, count_with_noun, rank_list, ranks_by_value


class SamplerSettings(NamedTuple):
    """The settings from which a DistributedSampler computes its samples."""

    num_replicas: int
    rank: int
    samples: int
    shuffle: bool
    seed: int
    epoch: int
    drop_last: bool

    def repeats_note(self, made: Site) -> str:
        """Return a note on the samples that the sampler repeats so that all parts are of one size; "" if it does not.

        `made` is the line of the program that made the sampler.
        """
        repeated = -self.samples % self.num_replicas
        if self.drop_last or not repeated:
            return ""
        return (
            f"{NOT_CHECKED}whether a metric counts {count_with_noun(repeated, 'sample')} twice: the DistributedSampler "
            f"of {made} repeats {'it' if repeated == 1 else 'them'}, as it divides {self.samples} samples among "
            f"{self.num_replicas} ranks"
        )


class SamplerRead(NamedTuple):
    """One iteration of a rank over its sampler."""

    rank: int
    sampling: SamplerSettings
    made: Site
    site: Site
    """The line of the program that iterates over the sampler."""


_SETTINGS = ("num_replicas", "samples", "shuffle", "drop_last", "seed", "epoch")


def sampler_finding(read: Sequence[SamplerRead]) -> Finding | None:
    """Return the finding for samplers that all ranks made at one line, if their parts do not add up to the data set.

    Only if some sampler's `num_replicas` is the world size: another number may belong to a group of ranks.
    """
    size = len(read)
    if size < 2 or all(each.sampling.num_replicas != size for each in read):
        return None
    ordered = sorted(read)
    settings = [each.sampling for each in ordered]
    # The generator that orders all samples is seeded with the sum of seed and epoch.
    orders_differ = len({each.seed + each.epoch if each.shuffle else 0 for each in settings}) > 1
    for name in _SETTINGS if orders_differ else _SETTINGS[:-2]:
        values = [getattr(each, name) for each in settings]
        if len(set(values)) > 1:
            return _differing_setting_finding(ordered, "length of the data set" if name == "samples" else name, values)
    ranks_of_parts = ranks_by_value((each.rank, each.sampling.rank) for each in ordered)
    parts = {part: ranks for part, ranks in ranks_of_parts.items() if len(ranks) > 1}
    if not parts:
        return None
    what = ", ".join(f"rank={part} on {rank_list(ranks)}" for part, ranks in parts.items())
    culprits = tuple(sorted(rank for ranks in parts.values() for rank in ranks))
    return _make_finding(ordered, culprits, what, Cause.SAMPLERS_OF_ONE_RANK.lines())


def _differing_setting_finding(read: list[SamplerRead], name: str, values: Sequence[object]) -> Finding:
    sides = ranks_by_value((each.rank, value) for each, value in zip(read, values, strict=True))
    culprits = ranks_outside_largest(sides.values())
    epochs = Cause.SAMPLERS_OF_OTHER_EPOCHS.lines()
    advice = epochs if name == "epoch" else Cause.SAMPLERS_DIFFER.lines(fact=name)
    return _make_finding(read, culprits, f"{name} {values_with_ranks_text(sides)}", advice)


def _make_finding(read: list[SamplerRead], culprits: tuple[int, ...], what: str, advice: list[LabelledLine]) -> Finding:
    summary = f"samplers made at {read[0].made} differ: {what}"
    rows = format_table([TableRow(each.rank, _settings_text(each.sampling), str(each.site)) for each in read])
    sites = (read[0].site, read[0].made)
    return summarized_finding(Code.HAZARD_SAMPLER, culprits, summary, rows, advice, sites=sites)


def _settings_text(sampling: SamplerSettings) -> str:
    how = f"seed {sampling.seed}  epoch {sampling.epoch}" if sampling.shuffle else "not shuffled"
    drops = "  drop_last" if sampling.drop_last else ""
    part = f"part {sampling.rank} of {sampling.num_replicas}"
    return f"reads {part} of {sampling.samples} samples  {how}{drops}"
