"""Which part of which tensor of the reference each parameter of a rank is.

A DTensor says so itself. For any other parameter the values at the start decide: a parameter of a rank is the parameter
of the reference, or the part of one along one dimension, that has the same values when the training begins. So shards
made by hand and the stages of a pipeline need no annotation. Where values do not decide, as for zeros, the parameter
goes with its neighbours of the same module, or else with its own name. A model that begins later may have what was
trained before, which rounding moves: there, values count as the same up to what moved the twin (comparison.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from ddpsim.simulator.comparing.records import Array, Entry, Kind, RecordedStep
from ddpsim.simulator.model_tensors import region_of

OTHER_START = "starts with other values than on the reference"
EQUAL = 8.0
"""How many times as far apart as the reference and its twin two tensors may be that are equal."""


class Place(NamedTuple):
    """A part of a tensor of the reference."""

    name: str
    region: tuple[slice, ...]
    shard: tuple[int, int] | None = None
    """Which one of how many equal parts it is; None for a whole tensor or a part of a DTensor."""

    def cut(self, whole: Array) -> Array:
        """Return the part of a tensor; all of it if the tensor has another number of dimensions."""
        return whole[self.region] if whole.ndim == len(self.region) else whole


def whole_tensor(steps: Sequence[RecordedStep], kind: Kind, name: str) -> Array | None:
    """Return a tensor of the reference, put together from the parts that its ranks have; None if no rank has it."""
    found = [step.by_name[kind, name][-1] for step in steps if (kind, name) in step.by_name]
    if not found:
        return None
    if found[0].part is None:
        return np.asarray(found[0].value, dtype=np.float64)
    whole = np.zeros(found[0].part.shape)
    for each in found:
        assert each.part is not None
        whole[region_of(each.part.offsets, each.value.shape)] = each.value
    return whole


class Alignment:
    """The places of all parameters of all ranks in the reference."""

    def __init__(self, *, is_exact: bool = False) -> None:
        """`is_exact`: values that differ by rounding differ."""
        self._is_exact = is_exact
        self.places: dict[tuple[int, str], Place] = {}
        self.missing: dict[tuple[int, str], str] = {}
        """By rank and name, why a parameter has no place."""
        self.first = ""
        """The name of the first parameter of the reference's models."""
        self.missing_copies: dict[tuple[int, str], str] = {}

    def add_starts(
        self,
        ranks: Sequence[RecordedStep],
        reference: Sequence[RecordedStep],
        twin: Sequence[RecordedStep],
        rounding: float,
    ) -> None:
        """Find the places of the parameters of models that ran for the first time in this step."""
        for kind, missing in ((Kind.START, self.missing), (Kind.COPY, self.missing_copies)):
            names = dict.fromkeys(each.name for step in reference for each in step.of_kind(kind))
            self.first = self.first or next(iter(names), "")
            wholes = {name: whole for name in names if (whole := whole_tensor(reference, kind, name)) is not None}
            moved = {name: other for name in wholes if (other := whole_tensor(twin, kind, name)) is not None}
            tolerances = {} if self._is_exact else _tolerances(wholes, moved, rounding)
            for rank, step in enumerate(ranks):
                missing |= self._add_rank(rank, step.of_kind(kind), wholes, tolerances)

    def _add_rank(
        self, rank: int, starts: Sequence[Entry], wholes: Mapping[str, Array], tolerances: Mapping[str, float]
    ) -> Mapping[tuple[int, str], str]:
        """Find the places of the parameters of a rank, and return why some have none."""
        candidates: dict[str, list[Place]] = {}
        missing: dict[tuple[int, str], str] = {}
        for each in starts:
            value = np.asarray(each.value, dtype=np.float64)
            if each.part is None:
                exact = list(_equal_places(each.name, value, wholes))
                candidates[each.name] = exact or list(_near_places(each.name, value, wholes, tolerances))
            elif (name := _own_name(each.name, wholes)) in wholes and wholes[name].shape == each.part.shape:
                place = Place(name, region_of(each.part.offsets, value.shape))
                candidates[each.name] = [place] * np.array_equal(place.cut(wholes[name]), value)
            else:
                candidates[each.name] = []
        shapes = {each.name: np.shape(each.value) if each.part is None else each.part.shape for each in starts}
        certain = {name: found[0] for name, found in candidates.items() if len(found) == 1}
        homes = {_module_of(name): (_module_of(place.name), place.shard) for name, place in certain.items()}
        shards = {place.shard for place in certain.values() if place.shard is not None}
        for name, found in candidates.items():
            home, shard = homes.get(_module_of(name), (_module_of(_own_name(name, wholes)), None))
            own = f"{home}{name.removeprefix(_module_of(name))}"
            named = [each for each in found if each.name == own]
            fitting = [each for each in named if each.shard in (shard, None)] or [
                each for each in named if {each.shard} == shards
            ]
            if len(found) == 1 or len(fitting) == 1:
                self.places[rank, name] = (fitting or found)[0]
            elif found:
                missing[rank, name] = "may be several parts of the reference"
            elif (other := wholes.get(_own_name(name, wholes))) is not None:
                is_alike = shapes[name] == other.shape
                missing[rank, name] = OTHER_START if is_alike else "is no equal part of that of the reference"
            else:
                missing[rank, name] = "is not in the reference"
        return missing


def _tolerances(wholes: Mapping[str, Array], moved: Mapping[str, Array], rounding: float) -> Mapping[str, float]:
    """Return how far from tensors of the reference equal ones may be; nothing if they begin equal in the twin, too."""
    noise = {
        name: float(np.linalg.norm(whole - moved[name]))
        for name, whole in wholes.items()
        if name in moved and moved[name].shape == whole.shape
    }
    sizes = {name: float(np.linalg.norm(wholes[name])) for name in noise}
    usual = median([noise[name] / size for name, size in sizes.items() if size] or [0.0])
    if not any(noise.values()):
        return {}
    return {name: EQUAL * (max(noise[name], usual * size) + rounding * size) for name, size in sizes.items()}


def _near_places(
    name: str, value: Array, wholes: Mapping[str, Array], tolerances: Mapping[str, float]
) -> Iterator[Place]:
    """Yield the tensors of the reference that have this name in their model, up to what rounding moves."""
    for other, tolerance in tolerances.items():
        is_named = other.rpartition(":")[2] == name.rpartition(":")[2] and wholes[other].shape == value.shape
        if is_named and np.linalg.norm(wholes[other] - value) <= tolerance:
            yield Place(other, region_of([0] * value.ndim, value.shape))


def _own_name(name: str, wholes: Mapping[str, Array]) -> str:
    """Return a parameter's name on the reference: there, the parts of a pipeline that a rank has are one model."""
    return name if name in wholes else name.rpartition(":")[2]


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _equal_places(name: str, value: Array, wholes: Mapping[str, Array]) -> Iterator[Place]:
    """Yield the places with these values: first those in the tensor of the same name."""
    for other in sorted(wholes, key=lambda each: each != name):
        whole = wholes[other]
        if whole.shape == value.shape:
            if np.array_equal(whole, value):
                yield Place(other, region_of([0] * value.ndim, value.shape))
        elif other == name and whole.ndim == value.ndim:
            apart = [i for i in range(value.ndim) if whole.shape[i] != value.shape[i]]
            if len(apart) == 1 and value.shape[apart[0]] and whole.shape[apart[0]] % value.shape[apart[0]] == 0:
                size, count = value.shape[apart[0]], whole.shape[apart[0]] // value.shape[apart[0]]
                for number in range(count):
                    offsets = [number * size if i == apart[0] else 0 for i in range(value.ndim)]
                    place = Place(other, region_of(offsets, value.shape), (number, count))
                    if np.array_equal(place.cut(whole), value):
                        yield place
