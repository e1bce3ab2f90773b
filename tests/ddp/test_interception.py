"""Collectives are noticed before they are made, and the groups' classes are left as they were."""

from __future__ import annotations

from contextlib import contextmanager

import torch
import torch.distributed as dist

from ddpsim.ddp.collective_table import OPERATIONS
from ddpsim.ddp.interception import CollectiveInterception
from tests.kit.running import run


def noting(seen):
    @contextmanager
    def around(operation, arguments):
        seen.append(operation)
        yield
        seen.append(f"after {operation}")

    return around


def test_calls_are_made_inside_the_context_until_it_stops():
    def program(rank):
        seen, total = [], torch.tensor(rank)
        interception = CollectiveInterception({dist.group.WORLD: noting(seen)})
        dist.all_reduce(total)
        dist.barrier()
        interception.stop_intercepting()
        interception.stop_intercepting()
        dist.all_reduce(total)
        return seen, total.item()

    assert list(run(program, 2).returns) == [(["allreduce", "after allreduce", "barrier", "after barrier"], 2)] * 2


def test_groups_and_ranks_that_nobody_asked_about_are_left_alone():
    def program(rank):
        other, seen = dist.new_group([0, 1]), []
        interception = CollectiveInterception({dist.group.WORLD: noting(seen)}) if rank == 0 else None
        dist.barrier()
        dist.barrier(other)
        dist.barrier()
        if interception is not None:
            interception.stop_intercepting()
        dist.barrier()
        return seen

    assert list(run(program, 2).returns) == [["barrier", "after barrier"] * 2, []]


def test_a_later_interception_of_the_same_group_counts():
    def program(rank):
        first, second = [], []
        one, other = (CollectiveInterception({dist.group.WORLD: noting(seen)}) for seen in (first, second))
        dist.barrier()
        one.stop_intercepting()
        dist.barrier()
        other.stop_intercepting()
        return len(first), len(second)

    assert list(run(program, 2).returns) == [(0, 4)] * 2


def test_every_method_of_torchs_groups_that_communicates_is_watched():
    public = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    others = {
        *("BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL", "abort", "bound_device_id"),
        *("boxed", "get_group_store", "group_desc", "group_name", "merge_remote_group", "name", "rank", "set_timeout"),
        *("shutdown", "size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous"),
        # Since torch 2.15.
        *("get_backend", "get_reconfigure_handle", "new_window", "reconfigure", "register_abort_hook"),
        *("register_post_hook", "register_pre_hook", "supports_abort_hooks", "supports_completion_hooks"),
        *("supports_reconfigure", "supports_window", "unregister_abort_hook", "unregister_post_hook"),
        "unregister_pre_hook",
    }
    unknown = {name for name in public - others - set(OPERATIONS) if not name.startswith("_")}
    assert not unknown
