"""A declared training of fewer and plainer networks, with nothing said that need not be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from ddpsim.scenarios.models import outline
from ddpsim.scenarios.shrinking.declared import PLAINEST_FIRST, Declared
from ddpsim.scenarios.training.training import (
    CommunicationHook,
    Exceptional,
    JoinTerms,
    NetworkChoice,
    OptimizerChoice,
    Options,
    Training,
)
from ddpsim.simulator.shrinking.blocks import blocks


def fewer_faults(declared: Declared) -> Iterator[Declared]:
    """Without a block of what strikes the ranks."""
    for block in blocks(len(declared.faults)):
        yield declared._replace(faults=(*declared.faults[: block.start], *declared.faults[block.stop :]))


def fewer_networks(declared: Declared) -> Iterator[Declared]:
    """Without a block of networks."""
    networks = declared.training.networks
    for block in blocks(len(networks)):
        left = (*networks[: block.start], *networks[block.stop :])
        if left:
            yield _with_networks(declared, left)


def plainer_networks(declared: Declared) -> Iterator[Declared]:
    """With a plainer network in place of one, the plainest first; or the same of a smaller size."""
    networks = declared.training.networks
    for index, choice in enumerate(networks):
        plainer = [NetworkChoice(name) for name in PLAINEST_FIRST[: PLAINEST_FIRST.index(choice.name)]]
        smaller = [NetworkChoice(choice.name, options) for options in _simpler_options(choice.options)]
        for other in (*plainer, *smaller):
            yield _with_networks(declared, (*networks[:index], other, *networks[index + 1 :]))


def fewer_rows(declared: Declared) -> Iterator[Declared]:
    """With batches of one row, of half as many rows, of one row less; all alike before one by one."""
    rows = declared.training.rows
    least = rows if isinstance(rows, int) else min(rows)
    for less in sorted({1, least // 2, least - 1, least}):
        yield from _changed(declared, rows=max(less, 1))
    for rank, count in enumerate(() if isinstance(rows, int) else rows):
        for less in sorted({1, count // 2, count - 1}):
            assert isinstance(rows, tuple)
            yield from _changed(declared, rows=(*rows[:rank], max(less, 1), *rows[rank + 1 :]))


def plainest(declared: Declared) -> Iterator[Declared]:
    """With nothing but networks, iterations and exceptions; then without a block of the engine's options."""
    plain = Training()
    yield from _changed(
        declared,
        engine_options={},
        join=None,
        optimizer=plain.optimizer,
        communication_hook=None,
        averages_buffers=False,
        reduces_loss=False,
        seed=0,
        dtype=plain.dtype,
    )
    options = declared.training.engine_options
    for block in blocks(len(options)):
        left = {key: value for index, (key, value) in enumerate(options.items()) if index not in block}
        yield from _changed(declared, engine_options=left)


def plainer(declared: Declared) -> Iterator[Declared]:
    """With one thing plain."""
    plain, optimizer = Training(), declared.training.optimizer
    for field in ("join", "communication_hook", "averages_buffers", "reduces_loss", "optimizer", "seed", "dtype"):
        yield from _changed(declared, **{field: getattr(plain, field)})
    if declared.training.join is not None:
        yield from _changed(declared, join=JoinTerms())
    if declared.training.communication_hook is not None:
        yield from _changed(declared, communication_hook=CommunicationHook.ALLREDUCE)
    for field in ("is_sharded", "momentum", "learning_rate", "name"):
        simpler = structs.replace(optimizer, **{field: getattr(plain.optimizer, field)})
        yield from _changed(declared, optimizer=simpler)
    yield from _changed(declared, optimizer=OptimizerChoice(is_sharded=optimizer.is_sharded))


def _changed(declared: Declared, **fields: object) -> Iterator[Declared]:
    changed = replace(declared.training, **fields)  # type: ignore[arg-type]
    yield declared._replace(training=changed)


def _simpler_options(options: Options) -> Iterator[Options]:
    """Without a block of a network's options; with one of them smaller."""
    for block in blocks(len(options)):
        yield {key: value for index, (key, value) in enumerate(options.items()) if index not in block}
    for key, value in options.items():
        for smaller in _smaller(value):
            yield {**options, key: smaller}


def _smaller(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        yield from (value[:index] + value[index + 1 :] for index in range(len(value)))
        for index, each in enumerate(value):
            yield from ((*value[:index], less, *value[index + 1 :]) for less in _smaller(each))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (less for less in sorted({1, value // 2, value - 1}) if 0 < less < value)


def _with_networks(declared: Declared, networks: tuple[NetworkChoice, ...]) -> Declared:
    """With other networks; of branches that there are no more nothing is said."""
    branches = {branch for choice in networks for branch in outline(choice.name, choice.options).branches}
    exceptions = tuple(_of_branches(each, branches) for each in declared.training.exceptions)
    said = tuple(each for each in exceptions if each.action is not None or each.uses is not None)
    return declared._replace(training=replace(declared.training, networks=networks, exceptions=said))


def _of_branches(exception: Exceptional, branches: set[str]) -> Exceptional:
    if exception.uses is None:
        return exception
    uses = tuple(branch for branch in exception.uses if branch in branches)
    return structs.replace(exception, uses=uses if branches else None)
