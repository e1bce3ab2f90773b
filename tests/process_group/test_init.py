"""The default group made again after a destroy, also by a name for init_process_group bound before the run."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import init_process_group

from ddpsim import simulate

ADDRESS = "tcp://127.0.0.1:1"
"""Nobody listens there."""


def later(**options):
    def program(rank):
        dist.destroy_process_group()
        init_process_group(**options)
        total = torch.tensor(float(rank))
        dist.all_reduce(total)
        return dist.get_rank(), dist.get_world_size(), total.item()

    return program


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "gloo"},
        {"backend": "gloo", "init_method": "env://"},
        {"backend": "gloo", "init_method": ADDRESS, "world_size": 3},
    ],
)
def test_no_address_is_needed(options):
    result = simulate(later(**options), 3)
    assert [result.returns[rank] for rank in range(3)] == [(rank, 3, 3.0) for rank in range(3)], str(result)


def test_a_world_of_another_size_is_refused():
    result = simulate(later(backend="gloo", init_method=ADDRESS, world_size=2, rank=0), 3)
    assert "init_process_group got world_size 2, expected 3" in str(result.errors[0])


def test_again_and_again():
    def program(rank):
        for _ in range(2):
            dist.destroy_process_group()
            init_process_group("gloo")
        dist.barrier()
        return dist.get_world_size()

    assert simulate(program, 2).verdict.value == "pass"
