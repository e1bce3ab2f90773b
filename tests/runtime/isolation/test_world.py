"""The c10d world: process groups, their names in C++, and device meshes, per rank."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from ddpsim.simulator.runtime.isolation import Isolation
from ddpsim.simulator.runtime.isolation.world import C10dWorld
from tests.runtime.isolation.test_isolation import resolves

in_c = torch._C._distributed_c10d


def join(rank, world_size):
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


def test_a_rank_world_shares_nothing():
    one, other = C10dWorld(0), C10dWorld(1)
    properties = [
        name for name in dir(distributed_c10d._World) if not name.startswith("_") and name != "pg_config_info"
    ]
    assert {"default_pg", "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg"} <= set(properties)
    for name in properties:
        value = getattr(one, name)
        if isinstance(value, dict | list):
            assert value is not getattr(other, name)
            assert value is not getattr(distributed_c10d._world, name)
            assert not value
        else:
            setattr(one, name, 5)
            assert getattr(other, name) != 5
            assert getattr(distributed_c10d._world, name) != 5


def test_a_group_of_the_host_is_untouched(interleave):
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    try:
        group = dist.group.WORLD

        def program(rank):
            before = dist.is_initialized()
            join(rank, 2)
            yield
            return before

        assert interleave(program, 2, own_threads=True) == [False, False]
        assert dist.group.WORLD is group
        assert in_c._resolve_process_group(group.group_name) is group
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("was_isolating", [False, True])
def test_thread_isolation_is_as_it_was(was_isolating, in_thread):
    in_c._set_thread_isolation_mode(was_isolating)
    try:
        isolation = Isolation(1)
        isolation.install()
        isolation.uninstall()
        group = dist.ProcessGroup(0, 1)  # the registry does not keep it alive
        in_c._register_process_group("a name", group)
        assert in_thread(lambda: resolves("a name")) is not was_isolating
        in_c._unregister_process_group("a name")
        assert not resolves("a name")
    finally:
        in_c._set_thread_isolation_mode(False)


def test_meshes_of_ranks_are_different_keys(interleave):
    def program(rank):
        join(rank, 4)
        yield
        mesh = device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        yield
        assert mesh.get_group("inner").size() == 2
        return mesh, mesh["inner"], device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))

    meshes = interleave(program, 4, own_threads=True)
    assert len({mesh for mesh, _, _ in meshes}) == 4
    assert len({part for _, part, _ in meshes}) == 4
    assert all(mesh == again and hash(mesh) == hash(again) for mesh, _, again in meshes)
    assert [tuple(mesh.get_coordinate()) for mesh, _, _ in meshes] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_mesh_in_use_is_the_rank_s_own(interleave):
    def program(rank):
        join(rank, 2)
        if rank == 0:
            yield
            with pytest.raises(RuntimeError, match="No device mesh is currently active"):
                device_mesh._mesh_resources.get_current_mesh()
            return None
        with device_mesh.DeviceMesh("cpu", [0, 1]) as mesh:
            yield
            yield
            return device_mesh._mesh_resources.get_current_mesh() is mesh

    assert interleave(program, 2, own_threads=True) == [None, True]
    assert device_mesh._mesh_resources.mesh_stack == []


def test_the_random_tracker_of_dtensor(isolation):
    from torch.distributed.tensor import _random

    before = _random._rng_tracker
    isolation.switch_rank(None, 0)
    assert _random._rng_tracker is None
    _random._rng_tracker = "rank 0's"
    isolation.switch_rank(0, 1)
    assert _random._rng_tracker is None
    isolation.switch_rank(1, 0)
    assert _random._rng_tracker == "rank 0's"
    isolation.uninstall()
    assert _random._rng_tracker is before
