"""All passes that make a declared training simpler: on fewer ranks, in fewer iterations, with less that is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from msgspec import structs

from ddpsim.scenarios.fuzzing.shrinking.declared import PLAINEST_FIRST, Declared
from ddpsim.scenarios.fuzzing.shrinking.training_ranks import fewer_ranks, smaller_mesh, two_or_three_ranks
from ddpsim.scenarios.training.models import outline
from ddpsim.scenarios.training.parallel import Parallel
from ddpsim.scenarios.training.training import (
    CommunicationHook,
    Exceptional,
    JoinTerms,
    NetworkChoice,
    OptimizerChoice,
    Options,
    Rule,
    Training,
)
from ddpsim.simulator.shrinking.blocks import blocks, smaller_numbers, with_one_simpler, without_a_block

Named = TypeVar("Named")

_PLAIN = Training()
_FEATURES = (
    "join",
    "communication_hook",
    "averages_buffers",
    "reduces_loss",
    "optimizer",
    "seed",
    "dtype",
    "wrapper",
    "parallel",
    "accumulation",
    "mixed_precision",
    "recomputes",
    "clip_norm",
)
"""Fields that are plain or not, each whatever the others are."""


def _with(declared: Declared, **fields: object) -> Declared:
    changed = replace(declared.training, **fields)  # type: ignore[arg-type]
    return declared._replace(training=changed)


# --- iterations -------------------------------------------------------------------------------------------------------


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
        yield _with(declared, iterations=iterations, exceptions=exceptions)


def fewer_on_one_rank(declared: Declared) -> Iterator[Declared]:
    """With no iterations on one rank, half of them, or one less."""
    for counts in with_one_simpler(declared.counts, partial(smaller_numbers, least=0)):
        yield _with(declared, iterations=counts)


def plainer_rule(declared: Declared) -> Iterator[Declared]:
    """With one number for all ranks, or a rule of fewer words."""
    counts, rule = declared.counts, declared.training.iterations
    rules = [Rule(counts[0])] if len(set(counts)) == 1 else []
    if isinstance(rule, Rule):
        rules += [Rule(rule.start), structs.replace(rule, cycle=None), structs.replace(rule, start=0)]
        rules += [structs.replace(rule, step=step) for step in (1, -1)]
    yield from (_with(declared, iterations=each) for each in rules)


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


# --- exceptions and faults --------------------------------------------------------------------------------------------


def fewer_exceptions(declared: Declared) -> Iterator[Declared]:
    """Without a block of them; with one that says less."""
    exceptions = declared.training.exceptions
    for fewer in (*without_a_block(exceptions), *with_one_simpler(exceptions, _simpler)):
        yield _with(declared, exceptions=fewer)


def _simpler(exception: Exceptional) -> Iterator[Exceptional]:
    """With one thing less said; of all iterations, of one or without one; so for ranks; without a branch."""
    if exception.action is not None and exception.uses is not None:
        yield structs.replace(exception, uses=None)
        yield structs.replace(exception, action=None)
    for iterations in (None, *_fewer(exception.iterations)):
        yield structs.replace(exception, iterations=iterations)
    for ranks in (None, *_fewer(exception.ranks)):
        yield structs.replace(exception, ranks=ranks)
    for uses in (*_fewer(exception.uses), ()) if exception.uses is not None else ():
        yield structs.replace(exception, uses=uses)


def _fewer(named: tuple[Named, ...] | None) -> Iterator[tuple[Named, ...]]:
    """One of them alone, or all but one."""
    for each in named or ():
        yield (each,)
        if len(named or ()) > 1:
            yield tuple(other for other in named or () if other != each)


def fewer_faults(declared: Declared) -> Iterator[Declared]:
    """Without a block of what strikes the ranks."""
    return (declared._replace(faults=left) for left in without_a_block(declared.faults))


# --- networks and rows ------------------------------------------------------------------------------------------------


def fewer_networks(declared: Declared) -> Iterator[Declared]:
    """Without a block of networks."""
    yield from (_with_networks(declared, left) for left in without_a_block(declared.training.networks) if left)


def plainer_networks(declared: Declared) -> Iterator[Declared]:
    """With a plainer network in place of one, the plainest first; or the same of a smaller size."""
    for networks in with_one_simpler(declared.training.networks, _plainer_network):
        yield _with_networks(declared, networks)


def _plainer_network(choice: NetworkChoice) -> Iterator[NetworkChoice]:
    yield from (NetworkChoice(name) for name in PLAINEST_FIRST[: PLAINEST_FIRST.index(choice.name)])
    yield from (NetworkChoice(choice.name, fewer) for fewer in _fewer_options(choice.options))
    for key, value in choice.options.items():
        yield from (NetworkChoice(choice.name, {**choice.options, key: less}) for less in _smaller(value))


def _fewer_options(options: Options) -> Iterator[Options]:
    yield from map(dict, without_a_block(tuple(options.items())))


def _smaller(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        yield from (value[:index] + value[index + 1 :] for index in range(len(value)))
        yield from with_one_simpler(value, _smaller)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from smaller_numbers(value)


def fewer_rows(declared: Declared) -> Iterator[Declared]:
    """With batches of one row, of half as many rows, of one row less; all alike before one by one."""
    rows = declared.training.rows
    least = rows if isinstance(rows, int) else min(rows)
    for less in (*smaller_numbers(least), least):
        yield _with(declared, rows=less)
    for fewer in () if isinstance(rows, int) else with_one_simpler(rows, smaller_numbers):
        yield _with(declared, rows=fewer)


def _with_networks(declared: Declared, networks: tuple[NetworkChoice, ...]) -> Declared:
    """With other networks; of branches that there are no more nothing is said."""
    branches = {branch for choice in networks for branch in outline(choice.name, choice.options).branches}
    exceptions = tuple(_of_branches(each, branches) for each in declared.training.exceptions)
    said = tuple(each for each in exceptions if each.action is not None or each.uses is not None)
    return _with(declared, networks=networks, exceptions=said)


def _of_branches(exception: Exceptional, branches: set[str]) -> Exceptional:
    if exception.uses is None:
        return exception
    uses = tuple(branch for branch in exception.uses if branch in branches)
    return structs.replace(exception, uses=uses if branches else None)


# --- what is plain or not ---------------------------------------------------------------------------------------------


def plainest(declared: Declared) -> Iterator[Declared]:
    """With nothing but networks, iterations and exceptions; then without a block of the engine's options."""
    yield _with(declared, engine_options={}, **{field: getattr(_PLAIN, field) for field in _FEATURES})
    for options in _fewer_options(declared.training.engine_options):
        yield _with(declared, engine_options=options)


def plainer(declared: Declared) -> Iterator[Declared]:
    """With one thing plain."""
    training, optimizer = declared.training, declared.training.optimizer
    for field in _FEATURES:
        yield _with(declared, **{field: getattr(_PLAIN, field)})
    if training.join is not None:
        yield _with(declared, join=JoinTerms())
    if training.communication_hook is not None:
        yield _with(declared, communication_hook=CommunicationHook.ALLREDUCE)
    for field in ("is_sharded", "momentum", "learning_rate", "name"):
        simpler = structs.replace(optimizer, **{field: getattr(_PLAIN.optimizer, field)})
        yield _with(declared, optimizer=simpler)
    yield _with(declared, optimizer=OptimizerChoice(is_sharded=optimizer.is_sharded))


def plainer_pipeline(declared: Declared) -> Iterator[Declared]:
    """With the plainest schedule, and as many micro-batches as there are stages."""
    parallel = declared.training.parallel
    if parallel is None:
        return
    for field in ("schedule", "micro_batches"):
        yield _with(declared, parallel=structs.replace(parallel, **{field: getattr(Parallel(), field)}))


PASSES = (
    fewer_ranks,
    two_or_three_ranks,
    smaller_mesh,
    fewer_iterations,
    fewer_on_one_rank,
    plainest,
    plainer,
    fewer_networks,
    fewer_exceptions,
    fewer_faults,
    plainer_networks,
    fewer_rows,
    plainer_rule,
    plainer_pipeline,
)
"""In the order in which they run."""
