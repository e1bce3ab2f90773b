"""Every small join there is: the cases, what is trained in them, and what must come out.

The oracle is plain arithmetic in numpy, for all counts at once: it knows no autograd, no process group and no wrapper.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Counts = tuple[int, ...]
"""Iterations, by rank."""
Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

WORLD_SIZES = (1, 2, 3, 4)
MOST_ITERATIONS = 3
LEARNING_RATE = 0.1
DECAY = 0.25
"""Of parameters that have a gradient: so having none differs from a gradient of zeros."""
HOOK_DIVISOR = 2.5
"""The communication hook's own, instead of the number of ranks."""

WEIGHT, EXTRA = (0.5, -1.0), (0.75, 0.25)
"""The two parameters, to begin with."""
BATCHES: Numbers = np.random.default_rng(3).uniform(-1, 1, (MOST_ITERATIONS, max(WORLD_SIZES), 2))
"""By iteration and rank."""
USES_EXTRA: Flags = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]], dtype=bool)
"""Under `has_unused`, by iteration and rank: first some ranks use the second parameter, then none, then others."""


@dataclass(frozen=True, slots=True)
class Options:
    """One combination of what may matter to a join."""

    divides_by_initial_size: bool
    has_unused: bool
    """A parameter is used by some ranks in some iterations only."""
    has_buffer: bool
    """Every forward changes a buffer, and depends on it."""
    has_hook: bool
    """A communication hook reduces the buckets."""
    throws: bool
    """throw_on_early_termination."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank has at the end."""

    steps: int
    is_refused: bool
    """The join raised."""
    numbers: tuple[float, ...]
    """The two parameters and the buffer."""

    def is_close(self, other: Outcome) -> bool:
        """Whether they are equal, numbers up to 1e-12."""
        return (
            self.steps == other.steps
            and self.is_refused == other.is_refused
            and all(abs(own - wanted) <= 1e-12 for own, wanted in zip(self.numbers, other.numbers, strict=True))
        )


OPTIONS = tuple(Options(*values) for values in product((False, True), repeat=5))


def all_counts(world_size: int) -> tuple[Counts, ...]:
    """0 to 3 iterations for each rank."""
    return tuple(product(range(MOST_ITERATIONS + 1), repeat=world_size))


def expected(
    world_size: int, options: Options, *, hook_has_last_word: bool = False
) -> dict[Counts, tuple[Outcome, ...]]:
    """What each rank must have at the end, by counts.

    In every iteration, for the ranks that have input: the buffer becomes that of the highest of them, and the forward
    changes it; gradients are summed, and divided by the number of all ranks, or of these; a parameter that none of
    them used gets no gradient and stays as it is. At the end all ranks have the state of the rank that trained
    longest, the highest of several.

    With `throws` and counts that differ, every rank trains for as long as all have input, and then the join raises on
    every rank: before its next forward, or instead of leaving the join. Nothing is handed round.

    `hook_has_last_word`: with a communication hook, what gradients are divided by is the hook's business alone, as in
    torch; else the hook takes the place of the division by all ranks, and gets what makes up for those that joined.
    """
    every = all_counts(world_size)
    counts = np.array(every)
    is_refused = options.throws & (counts != counts[:, :1]).any(axis=1)
    steps = np.where(is_refused[:, None], counts.min(axis=1, keepdims=True), counts)
    weight, extra = (np.tile(start, (len(every), 1)) for start in (WEIGHT, EXTRA))
    seen = np.zeros((len(every), world_size, 2))
    for iteration in range(MOST_ITERATIONS):
        batch = BATCHES[iteration, :world_size]
        present = iteration < steps
        uses = present & (USES_EXTRA[iteration, :world_size] | (not options.has_unused))
        if options.has_buffer:
            seen = np.where(present[..., None], _of_last(present, seen) / 2 + batch, seen)
        level = batch + seen
        output = weight[:, None] * level + uses[..., None] * extra[:, None] * batch
        divisor = _divisor(options, present, hook_has_last_word=hook_has_last_word)
        weight = _step(weight, 2 * output * level, present, divisor)
        extra = _step(extra, 2 * output * batch, uses, divisor)
    longest = steps == steps.max(axis=1, keepdims=True)
    seen = np.where(is_refused[:, None, None], seen, _of_last(longest, seen))
    parameters = np.concatenate([weight, extra], axis=1)
    return {
        own: tuple(
            Outcome(own_steps, refused, (*shared, *own_seen))
            for own_steps, own_seen in zip(all_steps, all_seen, strict=True)
        )
        for own, all_steps, refused, shared, all_seen in zip(
            every, steps.tolist(), is_refused.tolist(), parameters.tolist(), seen.tolist(), strict=True
        )
    }


def _divisor(options: Options, present: Flags, *, hook_has_last_word: bool) -> Numbers:
    """By case."""
    counted = np.ones_like(present) if options.divides_by_initial_size else present
    divisor = counted.sum(axis=1, keepdims=True).clip(1).astype(float)
    if not options.has_hook:
        return divisor
    return HOOK_DIVISOR * (np.ones_like(divisor) if hook_has_last_word else divisor / present.shape[1])


def _of_last(ranks: Flags, seen: Numbers) -> Numbers:
    """The buffer of the highest of these ranks, by case (of any rank, where there is none)."""
    last = ranks.shape[1] - 1 - ranks[:, ::-1].argmax(axis=1)
    return seen[np.arange(len(seen)), last][:, None]


def _step(parameter: Numbers, gradients: Numbers, users: Flags, divisor: Numbers) -> Numbers:
    gradient = (gradients * users[..., None]).sum(axis=1) / divisor
    stepped = parameter - LEARNING_RATE * (gradient + DECAY * parameter)
    return np.where(users.any(axis=1, keepdims=True), stepped, parameter)
