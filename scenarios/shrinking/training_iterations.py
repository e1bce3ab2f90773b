"""A declared training of fewer iterations, with fewer that are out of the ordinary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from msgspec import structs

from ddpsim.scenarios.shrinking.declared import Declared
from ddpsim.scenarios.training.training import Exceptional, Rule
from ddpsim.simulator.shrinking.blocks import blocks

Named = TypeVar("Named")


def fewer_iterations(declared: Declared) -> Iterator[Declared]:
    """Without a block of iterations on all ranks; what is said of later ones holds of those in their place."""
    training = declared.training
    for block in blocks(max(declared.counts)):
        iterations: tuple[int, ...] | Rule
        if isinstance(training.iterations, Rule):
            iterations = structs.replace(training.iterations, start=max(0, training.iterations.start - len(block)))
        else:
            iterations = tuple(_without(count, block) for count in training.iterations)
        exceptions = tuple(found for each in training.exceptions for found in _moved(each, block))
        yield declared._replace(training=replace(training, iterations=iterations, exceptions=exceptions))


def fewer_on_one_rank(declared: Declared) -> Iterator[Declared]:
    """With no iterations on one rank, half of them, or one less."""
    for rank, count in enumerate(declared.counts):
        for less in sorted({0, count // 2, max(count - 1, 0)}):
            if less < count:
                counts = (*declared.counts[:rank], less, *declared.counts[rank + 1 :])
                yield declared._replace(training=replace(declared.training, iterations=counts))


def plainer_rule(declared: Declared) -> Iterator[Declared]:
    """With one number for all ranks, or a rule of fewer words."""
    counts, rule = declared.counts, declared.training.iterations
    rules = [Rule(counts[0])] if len(set(counts)) == 1 else []
    if isinstance(rule, Rule):
        rules += [Rule(rule.start), structs.replace(rule, cycle=None), structs.replace(rule, start=0)]
        rules += [structs.replace(rule, step=step) for step in (1, -1)]
    for each in rules:
        yield declared._replace(training=replace(declared.training, iterations=each))


def fewer_exceptions(declared: Declared) -> Iterator[Declared]:
    """Without a block of them; with one that says less."""
    exceptions = declared.training.exceptions
    for block in blocks(len(exceptions)):
        yield _with(declared, (*exceptions[: block.start], *exceptions[block.stop :]))
    for index, exception in enumerate(exceptions):
        for simpler in _simpler(exception):
            yield _with(declared, (*exceptions[:index], simpler, *exceptions[index + 1 :]))


def _with(declared: Declared, exceptions: tuple[Exceptional, ...]) -> Declared:
    return declared._replace(training=replace(declared.training, exceptions=exceptions))


def _simpler(exception: Exceptional) -> Iterator[Exceptional]:
    """With one thing less said; of all iterations, of one or without one; so for ranks; without a branch."""
    if exception.action is not None and exception.uses is not None:
        yield structs.replace(exception, uses=None)
        yield structs.replace(exception, action=None)
    for iterations in (None, *_fewer(exception.iterations)):
        yield structs.replace(exception, iterations=iterations)
    for ranks in (None, *_fewer(exception.ranks)):
        yield structs.replace(exception, ranks=ranks)
    for uses in _fewer(exception.uses):
        yield structs.replace(exception, uses=uses)
    if exception.uses is not None:
        yield structs.replace(exception, uses=())


def _fewer(named: tuple[Named, ...] | None) -> Iterator[tuple[Named, ...]]:
    """One of them alone, or all but one."""
    for each in named or ():
        yield (each,)
        if len(named or ()) > 1:
            yield tuple(other for other in named or () if other != each)


def _moved(exception: Exceptional, gone: range) -> Iterator[Exceptional]:
    """The exception where it is when iterations are gone; nothing if it is about those only."""
    if exception.iterations is None:
        yield exception
        return
    left = [each for each in exception.iterations if each not in gone]
    if left:
        yield structs.replace(exception, iterations=tuple(_without(each, gone) for each in left))


def _without(count: int, gone: range) -> int:
    """How many of the first `count` are left."""
    return count - len(range(min(gone.start, count), min(gone.stop, count)))
