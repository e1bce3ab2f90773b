"""One step of two trainings compared: which recorded tensors are equal, up to what rounding alone moves.

How much that is, a third run shows, the twin: the reference again, with parameters and inputs that are moved by one
rounding at the start. What differs between the reference and its twin, per tensor and step, is the unit. Ranks add in
another order than one rank, which is a few such units; so up to `EQUAL` units tensors are equal, and from
`_DIFFERENT` times as much on they differ. Between both nothing is said, unless the one is the other times a constant.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

import numpy as np

from ddpsim.simulator.comparing.alignment import EQUAL, Alignment, Place, whole_tensor
from ddpsim.simulator.comparing.records import ALL_COPIES, COPY, Array, Entry, Inputs, Kind, RecordedStep
from ddpsim.simulator.model_tensors import fitted_factor

_DIFFERENT = 50.0
ROUNDINGS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding, by type."""
TOLD = (Kind.GRADIENT, Kind.RATE, Kind.PARAMETER, Kind.STATE, Kind.BUFFER, Kind.EVALUATED, Kind.METRIC, Kind.WRITTEN)
"""The kinds whose differences decide. The others only show where a difference begins: a program may scale a loss, or
hold partial sums in a module."""


_CLIPPED = (Kind.NORM, Kind.GRADIENT, Kind.STATE)
"""The kinds that a clip multiplies, and its norm."""
_MOST_OF_A_NORM = 1e-3
"""The largest relative error of a norm of order 2 that may come of rounding."""


class Answer(Enum):
    """What is known of two trainings, or of two tensors."""

    SAME = "the same"
    DIFFERENT = "not the same"
    UNKNOWN = "not known"


class Row(NamedTuple):
    """One tensor of one rank, held against the reference."""

    kind: Kind
    name: str
    rank: int
    answer: Answer
    difference: float
    """The size of the difference, relative to the reference."""
    tolerance: float
    """The size up to which a difference may be rounding."""
    factor: float | None = None
    """The number by which the reference's tensor is multiplied, if it is that."""


Samples = Sequence[tuple[str, Inputs]]
"""What models get in a step, with the prefix of each model."""


class _Pair(NamedTuple):
    """A tensor of a rank, that of the reference, and how far the twin moved it."""

    name: str
    rank: int
    value: Array
    one: Array
    noise: float


class StepComparison(NamedTuple):
    """All tensors of one optimizer step."""

    rows: Sequence[Row]
    """In order of time, and of ranks."""
    has_same_samples: bool
    groups: Sequence[Sequence[int]]
    """The ranks that get samples, those with the same ones together."""
    draws: str
    """The line before which random numbers were drawn in training; "" if there were none."""
    earlier_losses: frozenset[str]
    """The lines of losses that were compared in steps before."""

    @property
    def answer(self) -> Answer:
        """Whether the step is the same: what its gradients, parameters and optimizer state say."""
        answers = [row.answer for row in self.rows if row.kind in TOLD]
        if Answer.DIFFERENT in answers:
            is_known = self.has_same_samples and not self.draws and not self.has_other_rate
            return Answer.DIFFERENT if is_known else Answer.UNKNOWN
        return Answer.UNKNOWN if Answer.UNKNOWN in answers or not answers else Answer.SAME

    @property
    def has_equal_ranks(self) -> bool:
        """True if each of several ranks gets the samples of all."""
        return len(self.groups) == 1 and len(self.groups[0]) > 1

    def is_all_same(self, kind: Kind) -> bool:
        """Return True if there are tensors of a kind, and all are the same."""
        answers = {row.answer for row in self.rows if row.kind is kind}
        return answers == {Answer.SAME}

    @property
    def has_other_rate(self) -> bool:
        """True if gradients are the same, and the learning rate is not: many programs scale it by the world size."""
        apart = [row.kind for row in self.rows if row.kind in TOLD and row.answer is Answer.DIFFERENT]
        return apart[:1] == [Kind.RATE]


class StepSides(NamedTuple):
    """One optimizer step of each run, by rank."""

    ranks: Sequence[RecordedStep]
    reference: Sequence[RecordedStep]
    twin: Sequence[RecordedStep]


def _drop_computed_inputs(sides: StepSides) -> None:
    """Leave out the inputs that are no samples, such as a state from the step before: rounding moves them."""
    runs = ([each.value.totals if each.value else [] for each in steps[0].of_kind(Kind.SAMPLES)] for steps in sides[1:])
    pairs = [zip_longest(*each) for each in zip(*runs, strict=False)]
    moved = [{i for i, (one, other) in enumerate(each) if one != other} for each in pairs]
    for step in (step for steps in sides for step in steps):
        numbers = [i for i, each in enumerate(step.entries) if each.kind is Kind.SAMPLES]
        for i, those in zip(numbers, moved, strict=False):
            each = step.entries[i]
            step.entries[i] = each._replace(value=each.value and each.value.without(those))


class StepComparer:
    """Compares the steps of two trainings, one after another."""

    def __init__(self, rounding: float, *, is_exact: bool = False) -> None:
        """`rounding` is that of the coarsest type that the ranks send. `is_exact`: only equal bits are equal."""
        self.is_exact = is_exact
        self.alignment = Alignment(is_exact=is_exact)
        self.rounding = rounding
        self._norm_rounding = 0.0
        """How much, at most, the norm of a clip was rounded on the reference: the twin adds in the same order, and so
        does not show it."""
        self._losses_seen: frozenset[str] = frozenset()
        self.unstepped: dict[str, None] = {}
        """The parameters that were compared only on the ranks with a gradient, as other ranks do not step them."""
        self._weak: dict[str, Array] = {}
        """By parameter, the elements whose gradient was lost in rounding in some step: optimizers such as Adam step by
        its sign."""

    def compare_step(self, sides: StepSides) -> StepComparison:
        """Compare the next step."""
        _drop_computed_inputs(sides)
        self.alignment.add_starts(*sides, self.rounding)
        entries = [each for steps in sides for step in steps for each in step.entries]
        self.rounding = max([self.rounding, *(ROUNDINGS.get(each.dtype, 0.0) for each in entries)])
        holders = {
            rank for rank, _, _ in self._places_of(self.alignment.first)
        }  # the others get the outputs of a stage before them
        whole = [_samples_of(step) for step in sides.reference]
        forms = {each.form for own in whole for _, each in own}
        of_ranks = {rank: _samples_of(step) for rank, step in enumerate(sides.ranks) if rank in holders}
        of_ranks = {rank: own for rank, own in of_ranks.items() if not own or {each.form for _, each in own} & forms}
        given = list(of_ranks.values())
        samples, expected = ([_rows_of(own) for own in side] for side in (given, whole))
        has_same_samples = any(samples) and set().union(*samples) == set().union(*expected)
        rows: list[Row] = []
        if not has_same_samples:  # samples may be split otherwise than by rows
            apart = _different_inputs(given, whole)
            in_order = [each.in_order for own in given for _, each in own]
            has_same_samples = any(samples) and 0 not in apart and all(flags[i] for flags in in_order for i in apart)
            rows += [Row(Kind.INPUT, f"{i + 1}", 0, Answer.DIFFERENT, 1.0, 0.0) for i in apart if has_same_samples]
        rows += [*self._rows(Kind.OUTPUT, self._outputs(sides)), *self._losses(sides)]
        rows += self._rows(Kind.UNCLIPPED, self._of_parameters(sides, Kind.UNCLIPPED))
        self._norm_rounding = max(self._norm_rounding, _rounding_of_norms(sides.reference))
        rows += self._rows(Kind.NORM, self._numbers(sides, Kind.NORM))
        list(self._of_parameters(sides, Kind.OWN_GRADIENT))  # for the elements that are weak
        rows += self._rows(Kind.GRADIENT, self._of_parameters(sides, Kind.GRADIENT))
        rows += self._rows(Kind.GRADIENT, self._norm_of_copies(sides))
        rows += self._rows(Kind.RATE, self._numbers(sides, Kind.RATE))
        rows += self._rows(Kind.PARAMETER, self._of_parameters(sides, Kind.PARAMETER))
        rows += self._rows(Kind.STATE, self._states(sides))
        rows += self._rows(Kind.BUFFER, self._by_name(sides, Kind.BUFFER))
        rows += self._rows(Kind.EVALUATED, self._by_name(sides, Kind.EVALUATED))
        rows += [*self._metrics(sides), *self._rows(Kind.WRITTEN, self._of_parameters(sides, Kind.WRITTEN))]
        draws = next((each.name for each in entries if each.kind is Kind.RANDOM), "")
        groups: dict[frozenset[tuple[str, bytes]], list[int]] = {}
        for rank, own in zip(of_ranks, samples, strict=True):
            groups.setdefault(frozenset(own), []).append(rank)
        seen = self._losses_seen
        self._losses_seen |= {row.name for row in rows if row.kind is Kind.LOSS}
        return StepComparison(rows, has_same_samples, list(groups.values()) if all(groups) else (), draws, seen)

    # --- parts of a step ----------------------------------------------------------------------------------------------

    def _outputs(self, sides: StepSides) -> Iterator[_Pair]:
        """Yield the outputs of modules whose rows are those of the samples. One rank is compared with its samples."""
        if len(sides.reference) != 1:
            return
        reference, twin = _forwards_of(sides.reference[0]), _forwards_of(sides.twin[0])
        ranks = [_forwards_of(step) for step in sides.ranks]
        for number, (samples, outputs) in enumerate(reference):
            if not samples:
                continue
            times = Counter(samples)  # rows that are alike, as equal tokens, may have outputs that are not
            rows_of = {sample: row for row, sample in enumerate(samples) if times[sample] == 1}
            own_forwards = [forwards[number] if number < len(forwards) else ([], {}) for forwards in ranks]
            parts = [_part_of_samples(values, outputs) for _, values in own_forwards]
            for key, whole in outputs.items():
                for rank, (own, values) in enumerate(own_forwards):
                    value, moved = values.get(key), twin[number][1].get(key) if number < len(twin) else None
                    if value is None or moved is None or value.ndim == 0 or moved.shape != whole.shape:
                        continue
                    if times.keys().isdisjoint(own):  # as in context parallelism
                        part = parts[rank]
                        if part is not None and (one := _part_along(value, whole, *part)) is not None:
                            yield _Pair(key[0], rank, value, one, _size(whole - moved))
                        continue
                    kept = [row for row, each in enumerate(own) if each in rows_of]
                    if not kept or not times.keys() >= set(own):
                        continue
                    if len(value) == len(own) and len(whole) == len(samples) and value.shape[1:] == whole.shape[1:]:
                        one = whole[[rows_of[own[row]] for row in kept]]
                        yield _Pair(key[0], rank, value[kept], one, _size(whole - moved))

    def _losses(self, sides: StepSides) -> Iterator[Row]:
        """Yield the losses of a step: the mean over ranks or samples, or their sum, has to be that of one rank."""
        ranks, reference, twin = ([_losses_of(step) for step in steps] for steps in sides)
        if len(reference) != 1 or any(each.keys() != reference[0].keys() for each in (*ranks, *twin)):
            return
        counts = [sum(len(each.value.rows) for each in own.of_kind(Kind.SAMPLES) if each.value) for own in sides.ranks]
        for site, one in reference[0].items():
            moved, values = twin[0][site], [each[site] for each in ranks]
            means = [np.mean(values), np.sum(values), np.average(values, weights=counts if any(counts) else None)]
            near = min(means, key=lambda value: abs(value - one))
            (row,) = self._rows(Kind.LOSS, [_Pair(site, 0, np.array(near), np.array(one), abs(one - moved))])
            is_same = row.answer is Answer.SAME or not one
            yield row if is_same else row._replace(factor=float(means[0] / one))

    def _numbers(self, sides: StepSides, kind: Kind) -> Iterator[_Pair]:
        reference, twin = (steps[0].of_kind(kind) for steps in sides[1:])
        for number, (one, moved) in enumerate(zip(reference, twin, strict=False)):
            for rank, step in enumerate(sides.ranks):
                if number < len(found := step.of_kind(kind)):
                    noise = abs(one.value - moved.value)
                    values = np.array(found[number].value), np.array(one.value)
                    yield _Pair(one.name, rank, *values, noise)

    def _of_parameters(self, sides: StepSides, kind: Kind) -> Iterator[_Pair]:
        gradients = kind is Kind.GRADIENT
        if gradients and not any(step.of_kind(kind) for steps in sides[:2] for step in steps):
            return
        in_order = [each.name for step in sides.reference for each in step.of_kind(kind)]
        for name in sorted(self._names(), key=lambda name: in_order.index(name) if name in in_order else 0):
            whole, moved = (whole_tensor(steps, kind, name) for steps in sides[1:])
            if whole is None and gradients:  # no gradient is a gradient of zeros
                shaped = whole_tensor(sides.reference, Kind.PARAMETER, name)
                whole = None if shaped is None else np.zeros_like(shaped)
            if whole is None:
                continue
            noise = np.abs(whole - moved) if moved is not None and moved.shape == whole.shape else np.zeros_like(whole)
            if kind in (Kind.GRADIENT, Kind.OWN_GRADIENT) and not self.is_exact:
                level = 4 * EQUAL * _size(noise) / max(noise.size, 1) ** 0.5
                is_weak = (np.abs(whole) <= level) & (np.abs(whole) + noise > 0)
                self._weak[name] = self._weak.get(name, np.zeros(whole.shape, bool)) | is_weak
            places = list(self._places_of(name))
            is_anywhere = any((Kind.GRADIENT, own) in sides.ranks[rank].by_name for rank, own, _ in places)
            for rank, own, place in places:
                step = sides.ranks[rank]
                value, one = step.array(kind, own), place.cut(whole)
                if is_anywhere and (Kind.GRADIENT, own) not in step.by_name:
                    self.unstepped[own] = None
                    continue  # another rank steps it, as an optimizer does that is sharded by hand
                if value is None and gradients and not any(name.startswith(COPY) for _, name in step.by_name):
                    value = np.zeros_like(one)
                if value is not None and value.shape != one.shape:
                    self.alignment.missing[rank, own] = f"has a {kind.value} of another shape than on the reference"
                if value is None or value.shape != one.shape:
                    continue
                share = max(_size(place.cut(noise)), _size(noise) * (one.size / max(whole.size, 1)) ** 0.5)
                if kind in (Kind.PARAMETER, Kind.WRITTEN):
                    value, one = self._without_weak(place, value, one)
                yield _Pair(own, rank, value, one, share)

    def _norm_of_copies(self, sides: StepSides) -> Iterator[_Pair]:
        """Yield the norm of the gradients of the copies of all ranks, if a copy has no place in the reference: no order
        and no padding changes it. Equal gradients of one name are those of replicas, and count once."""
        found = [
            {
                (each.name, each.value.tobytes()): _array_of(each)
                for step in steps
                for each in step.of_kind(Kind.GRADIENT)
                if each.name.startswith(COPY)
            }
            for steps in sides
        ]
        own, one, moved = (list(each.values()) for each in found)
        if self.alignment.missing_copies and one and [a.shape for a in one] == [a.shape for a in moved]:
            norms = [np.array(np.linalg.norm([_size(each) for each in side])) for side in (own, one)]
            noise = _size(np.array([_size(a - b) for a, b in zip(one, moved, strict=True)]))
            yield _Pair(ALL_COPIES, 0, norms[0], norms[1], noise)

    def _states(self, sides: StepSides) -> Iterator[_Pair]:
        names = dict.fromkeys(each.name for step in sides.reference for each in step.of_kind(Kind.STATE))
        for state in names:
            key, _, name = state.partition(" of ")
            whole, moved = (whole_tensor(steps, Kind.STATE, state) for steps in sides[1:])
            for rank, own, place in self._places_of(name):
                value = sides.ranks[rank].array(Kind.STATE, f"{key} of {own}")
                if value is not None and whole is not None and moved is not None:
                    one = place.cut(whole)
                    if value.shape == one.shape:  # another rank may hold the state of a sharded optimizer
                        yield _Pair(f"{key} of {own}", rank, value, one, _size(whole - moved))

    def _by_name(self, sides: StepSides, kind: Kind) -> Iterator[_Pair]:
        """Yield tensors that are not trained: those of equal names, or what an evaluated copy has of a parameter."""
        for name in dict.fromkeys(each.name for step in sides.reference for each in step.of_kind(kind)):
            whole, moved = (whole_tensor(steps, kind, name) for steps in sides[1:])
            for rank, step in enumerate(sides.ranks):
                value, place = step.array(kind, name), self.alignment.places.get((rank, name))
                if kind is Kind.BUFFER and place is None and whole is not None and moved is not None:
                    value = _sum_if_near([each.array(kind, name) for each in sides.ranks], whole, moved, value)
                if value is None or whole is None or moved is None or (place is not None and place.name != name):
                    continue
                one = whole if place is None else place.cut(whole)
                if value.shape == one.shape:
                    value, one = (value, one) if place is None else self._without_weak(place, value, one)
                    yield _Pair(name, rank, value, one, _size(whole - moved))

    def _metrics(self, sides: StepSides) -> Iterator[Row]:
        """Yield the numbers that are reduced in evaluations: their sum, mean, or each has to be that of one rank."""
        if len(sides.reference) != 1:
            return
        seen = [
            {row for step in steps for each in step.of_kind(Kind.SEEN) for row in each.value.rows}
            for steps in sides[:2]
        ]
        ranks = [step.of_kind(Kind.METRIC) for step in sides.ranks]
        reference, twin = (steps[0].of_kind(Kind.METRIC) for steps in sides[1:])
        if not seen[0] or seen[0] != seen[1] or {len(each) for each in (*ranks, twin)} != {len(reference)}:
            return
        for one, moved, *own in zip(reference, twin, *ranks, strict=True):
            values = [each.value for each in own]
            near = min(
                [sum(values), float(np.mean(values)), max(values), min(values)], key=lambda each: abs(each - one.value)
            )
            pair = _Pair(one.name, 0, np.array(near), np.array(one.value), abs(one.value - moved.value))
            for row in self._rows(Kind.METRIC, [pair]):
                is_known = row.answer is not Answer.UNKNOWN  # a vote may turn by a rounding
                yield row if is_known else row._replace(answer=Answer.SAME)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _without_weak(self, place: Place, value: Array, one: Array) -> tuple[Array, Array]:
        is_weak = place.cut(self._weak[place.name]) if place.name in self._weak else False
        return np.where(is_weak, 0, value), np.where(is_weak, 0, one)

    def _names(self) -> list[str]:
        return list(dict.fromkeys(place.name for place in self.alignment.places.values()))

    def _places_of(self, name: str) -> Iterator[tuple[int, str, Place]]:
        for (rank, own), place in self.alignment.places.items():
            if place.name == name:
                yield rank, own, place

    def _rows(self, kind: Kind, pairs: Iterable[_Pair]) -> Iterator[Row]:
        """Yield the rows of pairs of tensors.

        A small tensor may by luck not move in the twin; so it counts as moved by as much as half of the others are.
        """
        found = [(pair, _size(pair.one)) for pair in pairs]
        usual = median([pair.noise / size for pair, size in found if size] or [0.0])
        rounding = self.rounding + (self._norm_rounding if kind in _CLIPPED else 0.0)
        for pair, size in found:
            tolerance = 0.0 if self.is_exact else EQUAL * (max(pair.noise, usual * size) + rounding * size)
            apart = _size(pair.value - pair.one)
            relative = apart / size if size else float(apart > 0)
            row = Row(kind, pair.name, pair.rank, Answer.SAME, relative, tolerance / size if size else 0.0)
            if apart > tolerance or np.isnan(apart):
                factor = constant_factor(pair.value, pair.one, tolerance)
                is_apart = (
                    (factor is not None and pair.one.size > 1)
                    or apart > _DIFFERENT * tolerance
                    or (np.isnan(apart) and np.isfinite(size))
                )
                row = row._replace(answer=Answer.DIFFERENT if is_apart else Answer.UNKNOWN, factor=factor)
            yield row


def constant_factor(value: Array, one: Array, tolerance: float) -> float | None:
    """Return the number by which a tensor is another one, up to a tolerance; None if it is not."""
    square = float(np.vdot(one, one))
    if not square or not np.isfinite(square) or tolerance > 0.25 * square**0.5:
        return None
    factor = fitted_factor(value, one)
    is_apart = abs(factor - 1) * square**0.5 > 2 * tolerance
    return factor if is_apart and _size(value - factor * one) <= abs(factor) * tolerance else None


def _rounding_of_norms(reference: Sequence[RecordedStep]) -> float:
    """Return the relative error of the step's norm against its gradients, if that may be rounding; else 0."""
    names = dict.fromkeys(each.name for step in reference for each in step.of_kind(Kind.UNCLIPPED))
    wholes = [whole_tensor(reference, Kind.UNCLIPPED, name) for name in names]
    norm = _size(np.array([_size(whole) for whole in wholes if whole is not None]))
    norms = [each.value for step in reference for each in step.of_kind(Kind.NORM)]
    if len(norms) > len(reference):  # of parts that are clipped apart, whose norms are not that of all gradients
        return 0.0
    parts = [abs(each - norm) / norm for each in norms if norm]
    return max((part for part in parts if part <= _MOST_OF_A_NORM), default=0.0)


def _sum_if_near(values: Sequence[Array | None], one: Array, moved: Array, own: Array | None) -> Array | None:
    """Return the sum of the ranks' values if it is that of one rank, as of what each counts in its part; else `own`."""
    known = [each for each in values if each is not None and each.shape == one.shape]
    total = np.sum(known, axis=0) if len(known) == len(values) else one + np.inf
    near = _size(total - one) <= max(8 * _size(one - moved), 1e-5 * _size(one))
    return total if near and _size(one) else own


def _size(values: Array) -> float:
    return float(np.linalg.norm(np.ravel(values)))


def _samples_of(step: RecordedStep) -> list[tuple[str, Inputs]]:
    return [(each.name, each.value) for each in step.of_kind(Kind.SAMPLES) if each.value and each.value.totals]


def _rows_of(given: Iterable[tuple[str, Inputs]]) -> set[tuple[str, bytes]]:
    return {(name, row) for name, each in given for row in each.rows}


def _different_inputs(ranks: Sequence[Samples], reference: Sequence[Samples]) -> list[int]:
    """Return the numbers of the inputs that all ranks together do not have as often as the reference, or k times."""
    lengths = {len(each.totals) for own in (*ranks, *reference) for _, each in own}
    if len(lengths) != 1:
        return [0]
    apart = []
    for i in range(lengths.pop()):
        hashed, number = (sum(each.totals[i][part] for own in ranks for _, each in own) for part in (0, 1))
        one, size = (sum(each.totals[i][part] for own in reference for _, each in own) for part in (0, 1))
        times = number // max(size, 1)
        if times * size != number or (hashed - times * one) % 2**64:
            apart.append(i)
    return apart


_Outputs = Mapping[tuple[str, int], Array]
_Forward = tuple[Sequence[bytes], _Outputs]


def _part_along(value: Array, whole: Array, number: int, count: int) -> Array | None:
    """Return this one of `count` parts of a tensor, along the dimension in which it is larger than another one."""
    larger = [i for i in range(whole.ndim) if whole.ndim == value.ndim and whole.shape[i] != value.shape[i]]
    if len(larger) != 1 or whole.shape[larger[0]] != count * value.shape[larger[0]]:
        return None
    return np.split(whole, count, larger[0])[number]


def _part_of_samples(values: _Outputs, outputs: _Outputs) -> tuple[int, int] | None:
    """Return which part of each sample a rank has, as a number and a count, where outputs say it."""
    for key in (key for key in outputs if key in values):
        value, whole = values[key], outputs[key]
        count = whole.size // max(value.size, 1)
        parts = [(number, _part_along(value, whole, number, count)) for number in range(count)]
        near = [number for number, one in parts if one is not None and _size(value - one) < 0.1 * _size(one)]
        if len(near) == 1:
            return near[0], count
    return None


def _forwards_of(step: RecordedStep) -> list[_Forward]:
    """Return each forward of a model in a step: its samples, and its outputs by module and how often it had run.

    A model that follows another has the samples of that one.
    """
    forwards: list[_Forward] = []
    samples: Sequence[bytes] = ()
    outputs: dict[tuple[str, int], Array] = {}
    for each in step.entries:
        if each.kind is Kind.OUTPUT:
            key = next((each.name, n) for n in range(len(outputs) + 1) if (each.name, n) not in outputs)
            outputs[key] = _array_of(each)
        elif each.kind is Kind.SAMPLES:
            samples = samples if each.value is None else each.value.rows
            forwards.append((samples, outputs))
            outputs = {}
    return forwards


def _losses_of(step: RecordedStep) -> dict[str, float]:
    """Return the sum of the losses by line: ranks may share a step's micro-batches otherwise than one rank."""
    return {name: sum(each.value for each in own) for (kind, name), own in step.by_name.items() if kind is Kind.LOSS}


def _array_of(entry: Entry) -> Array:
    return np.asarray(entry.value, dtype=np.float64)
