"""All passes (kinds of simplification) that shrink a declared training, in the order in which they run.

Most are general passes for any structure. The passes in this file know more about trainings: faults and exceptional
iterations refer to ranks by number, values per rank may become one value, and a mesh has to contain all ranks.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from msgspec import structs

from ddpsim.scenarios.training.models import NetworkOptionError, make_meta_network
from ddpsim.scenarios.training.training import (
    CommunicationHook,
    ExceptionalIterations,
    IterationRule,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    ParallelLayout,
    Training,
)
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.shrinking import structure
from ddpsim.simulator.shrinking.greedy import FailureSize, ShrinkPass

PLAINEST_FIRST = (
    "linear",
    "mlp",
    "discriminator",
    "generator",
    "mixed_dtypes",
    "branches",
    "early_exit",
    "embedding",
    "shared",
    "batch_norm",
    "sync_batch_norm",
    "conv",
    "resnet",
    "transformer",
)
"""The networks in order of complexity, the simplest first."""


class DeclaredTraining(NamedTuple):
    """A training, how many ranks train, and its faults."""

    training: Training
    world_size: int
    faults: tuple[Fault, ...] = ()

    @property
    def iterations_by_rank(self) -> tuple[int, ...]:
        """Return the iterations of each rank."""
        return tuple(self.training.iteration_count(rank) for rank in range(self.world_size))


FEATURES = (
    "join",
    "averages_buffers",
    "reduces_loss",
    "optimizer",
    "seed",
    "dtype",
    "wrapper",
    "parallel",
    "mixed_precision",
    "recomputes",
    "clip_norm",
    "engine_options",
)
"""Fields of a training whose values count in its size if they differ from the default."""


def _default_rows(plain: object, *names: str) -> dict[str, structure.Row]:
    return {name: (getattr(plain, name),) for name in names}


STRUCTURE = structure.StructureShrinker(
    {
        DeclaredTraining: {"training": (), "faults": ()},
        Training: {
            **{"networks": (), "iterations": 0, "rows": 1, "exceptions": (), "accumulation": 1},
            "communication_hook": (None, CommunicationHook.ALLREDUCE),
            **_default_rows(Training(), *FEATURES),
        },
        NetworkChoice: {"name": PLAINEST_FIRST, "options": 1},
        IterationRule: {"start": 0, "step": 0, "cycle": (None,)},
        ExceptionalIterations: _default_rows(ExceptionalIterations(), "uses", "action", "iterations", "ranks"),
        JoinOptions: _default_rows(JoinOptions(), *JoinOptions.__struct_fields__),
        OptimizerChoice: _default_rows(OptimizerChoice(), *OptimizerChoice.__struct_fields__),
        ParallelLayout: _default_rows(ParallelLayout(), "schedule", "micro_batches"),
    }
)


def size_of_training(declared: DeclaredTraining) -> FailureSize:
    """Return the size of a declared training without its schedule: numbers by which trainings are compared."""
    training = declared.training
    return FailureSize(
        ranks=declared.world_size,
        steps=sum(declared.iterations_by_rank),
        calls=len(training.networks) + len(declared.faults) + sum(map(_exception_weight, training.exceptions)),
        shapes=STRUCTURE.distance_of_numbers(declared),
        options=STRUCTURE.distance_of_words(declared),
    )


def _exception_weight(exception: ExceptionalIterations) -> int:
    """Return what a rule for exceptional iterations adds to the size: 1, and 1 per rank, iteration and branch named."""
    named = (exception.ranks, exception.iterations, exception.uses)
    said = (exception.action, exception.uses)
    return sum(len(each or ()) for each in named) + sum(each is not None for each in said)


def _replace_fields(declared: DeclaredTraining, **fields: object) -> DeclaredTraining:
    changed = replace(declared.training, **fields)  # type: ignore[arg-type]
    return declared._replace(training=changed)


def remove_ranks_of_training(declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Remove a block of ranks and all settings of these ranks. If few ranks are left, try only two or three ranks."""
    for kept in structure.with_fewer_values(range(declared.world_size)):
        if kept and declared.training.parallel is None:
            yield from _keep_ranks(kept, declared)


def shrink_mesh_dimension(declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Reduce one dimension of the mesh to one, or to half."""
    mesh = declared.training.parallel
    if mesh is None:
        return
    for name, size in mesh.dimensions.items():
        for less in dict.fromkeys((1, size // 2)) if size > 1 else ():
            smaller = _with_mesh_size(mesh, name, less)
            kept = [rank for rank in range(declared.world_size) if mesh.coordinates(rank)[name] < less]
            for each in _keep_ranks(kept, declared):
                yield each._replace(training=replace(each.training, parallel=smaller))


def _with_mesh_size(mesh: ParallelLayout, name: str, size: int) -> ParallelLayout:
    """Return the mesh with this size along a dimension. Options that no longer have an effect are removed."""
    smaller = structs.replace(mesh, **{name: size})
    if smaller.pp == 1:
        smaller = structs.replace(smaller, schedule=ParallelLayout().schedule, micro_batches=None)
    if smaller.dp_replicate == 1:
        smaller = structs.replace(smaller, dp=smaller.data_size, dp_shard=1)
    return smaller


def _keep_ranks(kept: Collection[int], declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Keep only some ranks. A rule for the numbers of iterations is kept, then replaced by a list."""
    number = {rank: index for index, rank in enumerate(kept)}
    training = _training_of_ranks(number, declared.training)
    faults = tuple(replace(each, rank=number[each.rank]) for each in declared.faults if each.rank in number)
    counts = tuple(declared.iterations_by_rank[rank] for rank in kept)
    yield DeclaredTraining(training, len(kept), faults)
    if isinstance(training.iterations, IterationRule):
        yield DeclaredTraining(replace(training, iterations=counts), len(kept), faults)


def _training_of_ranks(number: dict[int, int], training: Training) -> Training:
    iterations, rows = training.iterations, training.rows
    return replace(
        training,
        iterations=iterations if isinstance(iterations, IterationRule) else tuple(iterations[rank] for rank in number),
        rows=rows if isinstance(rows, int) else tuple(rows[rank] for rank in number),
        exceptions=tuple(found for each in training.exceptions for found in _renumber_ranks(each, number)),
    )


def _renumber_ranks(exception: ExceptionalIterations, number: dict[int, int]) -> Iterator[ExceptionalIterations]:
    if exception.ranks is None:
        yield exception
    elif left := tuple(number[rank] for rank in exception.ranks if rank in number):
        yield structs.replace(exception, ranks=left)


def remove_iterations(declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Remove a block of iterations on all ranks. Rules for later iterations get smaller iteration numbers."""
    training = declared.training
    for block in structure.index_blocks(max(declared.iterations_by_rank)):
        iterations: tuple[int, ...] | IterationRule
        if isinstance(training.iterations, IterationRule):
            iterations = structs.replace(training.iterations, start=max(0, training.iterations.start - len(block)))
        else:
            iterations = tuple(_count_remaining_iterations(count, block) for count in training.iterations)
        exceptions = tuple(found for each in training.exceptions for found in _renumber_iterations(each, block))
        yield _replace_fields(declared, iterations=iterations, exceptions=exceptions)


def remove_iterations_of_one_rank(declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Reduce the number of iterations of one rank: to zero, to half, or by one."""
    for counts in structure.with_one_simpler(declared.iterations_by_rank, partial(structure.smaller_numbers, least=0)):
        yield _replace_fields(declared, iterations=counts)


def _renumber_iterations(exception: ExceptionalIterations, gone: range) -> Iterator[ExceptionalIterations]:
    """Yield a rule for exceptional iterations, renumbered after iterations were removed. Yield nothing if the rule was
    only about removed iterations."""
    if exception.iterations is None:
        yield exception
    elif left := [each for each in exception.iterations if each not in gone]:
        yield structs.replace(exception, iterations=tuple(_count_remaining_iterations(each, gone) for each in left))


def _count_remaining_iterations(count: int, gone: range) -> int:
    """Return how many of the first `count` iterations are left after a block was removed."""
    return count - len(range(min(gone.start, count), min(gone.stop, count)))


def reset_options_to_defaults(declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Set all options to their defaults, except networks, iterations, rows and exceptional iterations."""
    yield _replace_fields(declared, **{name: getattr(Training(), name) for name in FEATURES})


def use_one_number_for_all_ranks(declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Use the same number of rows, or of iterations, for all ranks."""
    training, counts = declared.training, declared.iterations_by_rank
    if not isinstance(training.rows, int):
        yield from (_replace_fields(declared, rows=rows) for rows in (1, min(training.rows)))
    if len(set(counts)) == 1:
        yield _replace_fields(declared, iterations=IterationRule(counts[0]))
    if isinstance(training.iterations, IterationRule):
        yield _replace_fields(declared, iterations=IterationRule(training.iterations.start))


def _remove_invalid_options(declared: DeclaredTraining) -> DeclaredTraining:
    """Remove options that the network lacks, branches that no longer exist, and rules that have no effect."""
    networks = tuple(map(_with_valid_options, declared.training.networks))
    branches = {branch for choice in networks for branch in make_meta_network(choice.name, choice.options).branches}
    exceptions = (_keep_branches(each, branches) for each in declared.training.exceptions)
    return _replace_fields(declared, networks=networks, exceptions=tuple(filter(_has_exception_effect, exceptions)))


def _has_exception_effect(exception: ExceptionalIterations) -> bool:
    is_of_any = exception.ranks != () and exception.iterations != ()
    return is_of_any and (exception.action is not None or exception.uses is not None)


def _with_valid_options(choice: NetworkChoice) -> NetworkChoice:
    try:
        make_meta_network(choice.name, choice.options)
    except NetworkOptionError:
        return NetworkChoice(choice.name)
    return choice


def _keep_branches(exception: ExceptionalIterations, branches: set[str]) -> ExceptionalIterations:
    if exception.uses is None:
        return exception
    uses = tuple(branch for branch in exception.uses if branch in branches)
    return structs.replace(exception, uses=uses if branches else None)


def _valid_results(shrink_pass: ShrinkPass[DeclaredTraining], declared: DeclaredTraining) -> Iterator[DeclaredTraining]:
    """Run a pass, and repair its results. Drop results that a scenario file could not contain."""
    for simpler in shrink_pass(declared):
        training = simpler.training
        said = (each for each in (training.iterations, training.rows) if isinstance(each, tuple))
        if training.networks and all(len(each) == simpler.world_size for each in said):
            yield _remove_invalid_options(simpler)


_PASSES: tuple[ShrinkPass[DeclaredTraining], ...] = (
    remove_ranks_of_training,
    shrink_mesh_dimension,
    remove_iterations,
    remove_iterations_of_one_rank,
    reset_options_to_defaults,
    STRUCTURE.with_fewer_elements,
    use_one_number_for_all_ranks,
    STRUCTURE.with_plainer_leaf,
)

PASSES = tuple(partial(_valid_results, each) for each in _PASSES)
