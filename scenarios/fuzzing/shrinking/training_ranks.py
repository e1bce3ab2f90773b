"""A declared training on fewer ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from msgspec import structs

from ddpsim.scenarios.fuzzing.shrinking.declared import Declared
from ddpsim.scenarios.training.parallel import Parallel
from ddpsim.scenarios.training.training import Exceptional, Rule, Training
from ddpsim.simulator.shrinking.blocks import only_two_or_three, without_a_block


def fewer_ranks(declared: Declared) -> Iterator[Declared]:
    """Without a block of ranks, and what is said of them."""
    for kept in without_a_block(range(declared.world_size)):
        yield from _of(kept, declared)


def two_or_three_ranks(declared: Declared) -> Iterator[Declared]:
    """Of few ranks, only two or three."""
    for kept in only_two_or_three(range(declared.world_size)):
        yield from _of(kept, declared)


def smaller_mesh(declared: Declared) -> Iterator[Declared]:
    """With one place, or half of the places, along a dimension of its mesh."""
    mesh = declared.training.parallel
    if mesh is None:
        return
    for name, size in mesh.dimensions.items():
        for less in dict.fromkeys((1, size // 2)) if size > 1 else ():
            smaller = _with_place(mesh, name, less)
            kept = [rank for rank in range(declared.world_size) if mesh.coordinates(rank)[name] < less]
            for each in _renumbered_to(kept, declared):
                yield each._replace(training=replace(each.training, parallel=smaller))


def _with_place(mesh: Parallel, name: str, size: int) -> Parallel:
    """The mesh with that size along a dimension; what then says nothing is left out."""
    smaller = structs.replace(mesh, **{name: size})
    if smaller.pp == 1:
        smaller = structs.replace(smaller, schedule=Parallel().schedule, micro_batches=None)
    if smaller.dp_replicate == 1:
        smaller = structs.replace(smaller, dp=smaller.data_size, dp_shard=1)
    return smaller


def _of(kept: Collection[int], declared: Declared) -> Iterator[Declared]:
    """The training of some ranks: a rule for the iterations stays as it is, or becomes what these ranks had."""
    if 0 < len(kept) < declared.world_size and declared.training.parallel is None:
        yield from _renumbered_to(kept, declared)


def _renumbered_to(kept: Collection[int], declared: Declared) -> Iterator[Declared]:
    number = {rank: index for index, rank in enumerate(kept)}
    training = _training_of(number, declared.training)
    faults = tuple(replace(each, rank=number[each.rank]) for each in declared.faults if each.rank in number)
    counts = tuple(declared.counts[rank] for rank in kept)
    yield Declared(training, len(kept), faults)
    if isinstance(training.iterations, Rule):
        yield Declared(replace(training, iterations=counts), len(kept), faults)


def _training_of(number: dict[int, int], training: Training) -> Training:
    iterations, rows = training.iterations, training.rows
    return replace(
        training,
        iterations=iterations if isinstance(iterations, Rule) else tuple(iterations[rank] for rank in number),
        rows=rows if isinstance(rows, int) else tuple(rows[rank] for rank in number),
        exceptions=tuple(_renumbered(each, number) for each in training.exceptions if _is_about(each, number)),
    )


def _is_about(exception: Exceptional, ranks: Collection[int]) -> bool:
    return exception.ranks is None or any(rank in ranks for rank in exception.ranks)


def _renumbered(exception: Exceptional, number: dict[int, int]) -> Exceptional:
    if exception.ranks is None:
        return exception
    return structs.replace(exception, ranks=tuple(number[rank] for rank in exception.ranks if rank in number))
