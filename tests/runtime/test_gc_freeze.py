"""The collector is calmer during a run, still collects young cycles, and is as it was afterwards."""

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, explore, simulate
from ddpsim.simulator.runtime import gc_freeze
from ddpsim.simulator.runtime.gc_freeze import _FrozenObjects, _FullCollections, fewer_collections


@pytest.fixture(autouse=True)
def as_in_a_program(monkeypatch):
    """Nothing is frozen, as pytest's session is here."""
    gc.unfreeze()
    monkeypatch.setattr(gc_freeze, "_FROZEN_OBJECTS", _FrozenObjects())
    yield
    gc.freeze()


class Node:
    """One end of a cycle."""


def test_what_exists_is_frozen_once_and_no_longer_than_the_run():
    with fewer_collections(2):
        frozen = gc.get_freeze_count()
        with fewer_collections(2):
            assert gc.get_freeze_count() == frozen
        assert gc.get_freeze_count() == frozen > 0
    assert gc.get_freeze_count() == 0


def test_what_the_process_froze_stays_so_and_is_counted_once(monkeypatch):
    gc.freeze()
    counts = []
    monkeypatch.setattr("gc.get_freeze_count", lambda count=gc.get_freeze_count: counts.append(count()) or counts[-1])
    for _ in range(3):
        simulate(lambda rank: rank, 2)
    monkeypatch.undo()
    assert len(counts) == 1
    assert gc.get_freeze_count() > 0


def test_an_exploration_sets_aside_once(monkeypatch):
    """What an execution leaves then dies young: it was looked for among all that there is, every 250 executions."""
    frozen = []
    monkeypatch.setattr("gc.freeze", lambda freeze=gc.freeze: frozen.append(freeze()))
    explore(lambda rank: rank, 2, policy="random", budget=Budget(executions=3))
    assert len(frozen) == 1
    assert gc.get_freeze_count() == 0


def test_a_collector_that_the_process_switched_off_stays_off_and_one_that_a_rank_does_stays_on():
    gc.disable()
    try:
        with fewer_collections(2):
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    simulate(lambda rank: gc.disable(), 2)
    assert gc.isenabled()


def test_cycles_that_die_young_are_collected_during_a_run():
    def program(rank):
        node = Node()
        node.itself = node
        dead = weakref.ref(node)
        del node
        objects = [[] for _ in range(200_000)]
        return dead() is None and len(objects)

    assert simulate(program, 1).returns == (200_000,)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_ranks_of_each_run_count(isolation, monkeypatch):
    """Forked ranks did not, so that what is old was never looked through: 22 KiB were left by each run."""
    counted = []
    monkeypatch.setattr(gc_freeze, "_OLD_COLLECTIONS", SimpleNamespace(collect_if_due=counted.append))
    for world_size in (2, 1):
        simulate(lambda rank: rank, world_size, isolation=isolation)
    assert counted == [2, 1]


def test_cycles_that_outlive_their_run_go_after_a_thousand_ranks():
    gone = []

    def run(number):
        node = Node()
        node.itself = node
        weakref.finalize(node, gone.append, number)
        with fewer_collections(250):
            pass  # it is alive while what there is is set aside

    collections = _FullCollections()
    for number in range(3):
        run(number)
        collections.collect_if_due(250)
    collections.collect_if_due(250)
    assert 2 not in gone
    collections.collect_if_due(250)

    assert sorted(gone) == [0, 1, 2]


def test_where_little_is_found_collections_become_rare(monkeypatch):
    found = iter([0, 9_999, 10_000, 0])
    looks = []
    collections = _FullCollections()

    for ranks in range(100, 9_100, 100):
        monkeypatch.setattr("gc.collect", lambda ranks=ranks: looks.append(ranks) or next(found))
        collections.collect_if_due(100)

    assert looks == [1_100, 3_100, 7_100, 8_100]


def test_an_execution_goes_at_once_and_leaves_nothing_to_look_for(monkeypatch):
    """It was all one cycle: the collector took a tenth of a small execution, in an exploration, to find that."""
    monkeypatch.delitem(sys.modules, "pdb", raising=False)  # its class in there is of an execution, and holds it
    gone = []

    def program(rank):
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        host = dist.group.WORLD.issue.__self__.host
        weakref.finalize(host, gone.append, "the host")
        weakref.finalize(host.hazards, gone.append, "what is known of its calls")

    gc.disable()
    try:
        simulate(program, 2)
        assert sorted(set(gone)) == ["the host", "what is known of its calls"]
    finally:
        gc.enable()
