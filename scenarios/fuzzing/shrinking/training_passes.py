"""All passes that shrink a declared training, in the order in which they run.

Most come from the general passes for any structure. The passes here know more: ranks and iterations are numbers that
exceptions and faults refer to, per-rank values may become one value, and a mesh has to fill its world.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from msgspec import structs

from ddpsim.scenarios.fuzzing.shrinking.declared import FEATURES, STRUCTURE, Declared
from ddpsim.scenarios.training.models import OptionError, outline
from ddpsim.scenarios.training.parallel import Parallel
from ddpsim.scenarios.training.training import Exceptional, NetworkChoice, Rule, Training
from ddpsim.simulator.shrinking.structure import blocks, fewer_of, smaller_numbers, with_one_simpler


def _with(declared: Declared, **fields: object) -> Declared:
    changed = replace(declared.training, **fields)  # type: ignore[arg-type]
    return declared._replace(training=changed)


# --- ranks ------------------------------------------------------------------------------------------------------------


def fewer_ranks(declared: Declared) -> Iterator[Declared]:
    """Remove a block of ranks and what refers to them; if few ranks are left, try only two or three."""
    if declared.training.parallel is None:
        yield from (each for kept in fewer_of(range(declared.world_size)) if kept for each in _of(kept, declared))


def smaller_mesh(declared: Declared) -> Iterator[Declared]:
    """Reduce one dimension of the mesh to one, or to half."""
    mesh = declared.training.parallel
    if mesh is None:
        return
    for name, size in mesh.dimensions.items():
        for less in dict.fromkeys((1, size // 2)) if size > 1 else ():
            smaller = _with_place(mesh, name, less)
            kept = [rank for rank in range(declared.world_size) if mesh.coordinates(rank)[name] < less]
            for each in _of(kept, declared):
                yield each._replace(training=replace(each.training, parallel=smaller))


def _with_place(mesh: Parallel, name: str, size: int) -> Parallel:
    """Return the mesh with that size along a dimension, without options that then have no effect."""
    smaller = structs.replace(mesh, **{name: size})
    if smaller.pp == 1:
        smaller = structs.replace(smaller, schedule=Parallel().schedule, micro_batches=None)
    if smaller.dp_replicate == 1:
        smaller = structs.replace(smaller, dp=smaller.data_size, dp_shard=1)
    return smaller


def _of(kept: Collection[int], declared: Declared) -> Iterator[Declared]:
    """Keep only some ranks: a rule for iterations stays, or becomes the numbers that these ranks had."""
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
        exceptions=tuple(found for each in training.exceptions for found in _renumbered(each, number)),
    )


def _renumbered(exception: Exceptional, number: dict[int, int]) -> Iterator[Exceptional]:
    if exception.ranks is None:
        yield exception
    elif left := tuple(number[rank] for rank in exception.ranks if rank in number):
        yield structs.replace(exception, ranks=left)


# --- iterations ---


def fewer_iterations(declared: Declared) -> Iterator[Declared]:
    """Remove a block of iterations on all ranks; exceptions for later iterations move forward."""
    training = declared.training
    for block in blocks(max(declared.counts)):
        iterations: tuple[int, ...] | Rule
        if isinstance(training.iterations, Rule):
            iterations = structs.replace(training.iterations, start=max(0, training.iterations.start - len(block)))
        else:
            iterations = tuple(_without(count, block) for count in training.iterations)
        exceptions = tuple(found for each in training.exceptions for found in _moved(each, block))
        yield _with(declared, iterations=iterations, exceptions=exceptions)


def fewer_on_one_rank(declared: Declared) -> Iterator[Declared]:
    """Give one rank no iterations, half of them, or one less."""
    for counts in with_one_simpler(declared.counts, partial(smaller_numbers, least=0)):
        yield _with(declared, iterations=counts)


def _moved(exception: Exceptional, gone: range) -> Iterator[Exceptional]:
    """Yield the exception after iterations were removed; nothing if it was only about those."""
    if exception.iterations is None:
        yield exception
    elif left := [each for each in exception.iterations if each not in gone]:
        yield structs.replace(exception, iterations=tuple(_without(each, gone) for each in left))


def _without(count: int, gone: range) -> int:
    """Return how many of the first `count` are left."""
    return count - len(range(min(gone.start, count), min(gone.stop, count)))


# --- options of all ranks ---


def plainest(declared: Declared) -> Iterator[Declared]:
    """Keep only networks, iterations, rows and exceptions."""
    yield _with(declared, **{name: getattr(Training(), name) for name in FEATURES})


def one_for_all(declared: Declared) -> Iterator[Declared]:
    """Use one number of rows, or of iterations, for all ranks."""
    training, counts = declared.training, declared.counts
    if not isinstance(training.rows, int):
        yield from (_with(declared, rows=rows) for rows in (1, min(training.rows)))
    if len(set(counts)) == 1:
        yield _with(declared, iterations=Rule(counts[0]))
    if isinstance(training.iterations, Rule):
        yield _with(declared, iterations=Rule(training.iterations.start))


def _repaired(declared: Declared) -> Declared:
    """Remove options of other networks, branches that no longer exist, and exceptions without an effect."""
    networks = tuple(map(_with_its_options, declared.training.networks))
    branches = {branch for choice in networks for branch in outline(choice.name, choice.options).branches}
    exceptions = (_of_branches(each, branches) for each in declared.training.exceptions)
    return _with(declared, networks=networks, exceptions=tuple(filter(_says_something, exceptions)))


def _says_something(exception: Exceptional) -> bool:
    is_of_any = exception.ranks != () and exception.iterations != ()
    return is_of_any and (exception.action is not None or exception.uses is not None)


def _with_its_options(choice: NetworkChoice) -> NetworkChoice:
    try:
        outline(choice.name, choice.options)
    except OptionError:
        return NetworkChoice(choice.name)
    return choice


def _of_branches(exception: Exceptional, branches: set[str]) -> Exceptional:
    if exception.uses is None:
        return exception
    uses = tuple(branch for branch in exception.uses if branch in branches)
    return structs.replace(exception, uses=uses if branches else None)


def _sensible(shrink_pass: Callable[[Declared], Iterator[Declared]]) -> Callable[[Declared], Iterator[Declared]]:
    """Wrap a pass: repair its results, and drop those that a file could not declare."""

    def sensible(declared: Declared) -> Iterator[Declared]:
        for simpler in shrink_pass(declared):
            training = simpler.training
            said = (each for each in (training.iterations, training.rows) if isinstance(each, tuple))
            if training.networks and all(len(each) == simpler.world_size for each in said):
                yield _repaired(simpler)

    return sensible


_PASSES: tuple[Callable[[Declared], Iterator[Declared]], ...] = (
    fewer_ranks,
    smaller_mesh,
    fewer_iterations,
    fewer_on_one_rank,
    plainest,
    STRUCTURE.fewer,
    one_for_all,
    STRUCTURE.plainer,
)

PASSES = tuple(map(_sensible, _PASSES))
