"""Gradients through functional collectives, and what a compiler sees of them: torch's test_functional_api.py.

Values, groups by name, mesh and rank lists are in tests/semantics/functional.py.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.proxy_tensor import make_fx

from tests.kit.results import returned

WORLD_SIZE = 4

# Their names since torch 2.13, or else the older ones.
all_gather_single, all_gather_single_autograd, reduce_scatter_single, reduce_scatter_single_autograd = (
    getattr(functional, name, None) or getattr(functional, name.replace("single", "tensor"))
    for name in (
        "all_gather_single",
        "all_gather_single_autograd",
        "reduce_scatter_single",
        "reduce_scatter_single_autograd",
    )
)


def test_the_backward_of_an_all_to_all_sends_gradients_back():
    def program(rank):
        rows = torch.full((WORLD_SIZE, 2), float(rank), requires_grad=True)
        received = functional.all_to_all_single_autograd(rows, None, None, dist.group.WORLD)
        # Row i of the result came from rank i, and its gradient goes there.
        (received * torch.tensor([10.0 * rank + sender for sender in range(WORLD_SIZE)])[:, None]).sum().backward()
        return received[:, 0].tolist(), rows.grad[:, 0].tolist()

    for rank, (values, gradients) in enumerate(returned(program, WORLD_SIZE)):
        assert values == [0.0, 1.0, 2.0, 3.0]
        assert gradients == [10.0 * receiver + rank for receiver in range(WORLD_SIZE)]


def test_an_all_to_all_with_splits_of_its_own():
    # Rank r sends r + 1 rows to each rank.
    def program(rank):
        rows = torch.full(((rank + 1) * WORLD_SIZE,), float(rank))
        return functional.all_to_all_single(
            rows, [sender + 1 for sender in range(WORLD_SIZE)], [rank + 1] * WORLD_SIZE, dist.group.WORLD
        ).tolist()

    assert returned(program, WORLD_SIZE) == ([0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0],) * WORLD_SIZE


def test_the_backward_of_an_all_gather_sums_what_each_rank_does_with_it():
    def program(rank):
        own = torch.tensor([1.0, 2.0], requires_grad=True)
        gathered = all_gather_single_autograd(own, 0, dist.group.WORLD)
        (gathered * float(rank + 1)).sum().backward()
        return own.grad.tolist()

    assert returned(program, WORLD_SIZE) == ([10.0, 10.0],) * WORLD_SIZE


def test_the_backward_of_a_reduce_scatter_gives_everybody_each_share():
    def program(rank):
        whole = torch.ones(WORLD_SIZE, requires_grad=True)
        share = reduce_scatter_single_autograd(whole, "sum", 0, dist.group.WORLD)
        (share * float(rank + 1)).sum().backward()
        return share.tolist(), whole.grad.tolist()

    assert returned(program, WORLD_SIZE) == (([4.0], [1.0, 2.0, 3.0, 4.0]),) * WORLD_SIZE


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_gathering_and_scattering_along_any_dimension_of_a_mesh(dimension):
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        own = torch.full((2, 2, 2), float(rank))
        gathered = all_gather_single(own, dimension, (mesh, 1))
        scattered = reduce_scatter_single(gathered, "sum", dimension, (mesh, 1))
        return gathered.wait() if hasattr(gathered, "wait") else gathered, scattered + 0

    for rank, (gathered, scattered) in enumerate(returned(program, WORLD_SIZE)):
        row = [2 * (rank // 2), 2 * (rank // 2) + 1]
        expected = torch.cat([torch.full((2, 2, 2), float(each)) for each in row], dim=dimension)
        torch.testing.assert_close(torch.as_tensor(gathered), expected)
        torch.testing.assert_close(torch.as_tensor(scattered), 2 * torch.full((2, 2, 2), float(rank)))


def test_a_traced_collective_is_a_call_and_a_wait():
    def program(rank):
        def twice(tensor):
            return functional.all_reduce(tensor, "sum", dist.group.WORLD) * 2

        traced = make_fx(twice)(torch.ones(2))
        names = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
        return names, traced(torch.full((2,), float(rank))).tolist()

    for names, values in returned(program, WORLD_SIZE):
        assert names == [
            "_c10d_functional.all_reduce.default",
            "_c10d_functional.wait_tensor.default",
            "aten.mul.Tensor",
        ]
        assert values == [12.0, 12.0]


def test_a_tensor_without_data_has_the_shape_of_the_result():
    def program(rank):
        whole = torch.empty(8, 3, device="meta")
        return (
            functional.all_reduce(whole, "sum", dist.group.WORLD).shape,
            all_gather_single(whole, 1, dist.group.WORLD).shape,
            reduce_scatter_single(whole, "sum", 0, dist.group.WORLD).shape,
        )

    assert returned(program, WORLD_SIZE) == (((8, 3), (8, 12), (2, 3)),) * WORLD_SIZE


def test_ranks_in_a_ring_hand_their_tensor_on():
    def program(rank):
        to = [(sender + 1) % WORLD_SIZE for sender in range(WORLD_SIZE)]
        return functional.permute_tensor(torch.tensor([float(rank)]), to, dist.group.WORLD).tolist()

    assert returned(program, WORLD_SIZE) == ([3.0], [0.0], [1.0], [2.0])


def test_ranks_exchange_their_tensors_along_each_dimension_of_a_mesh():
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        own = torch.tensor([float(rank)])
        return [functional.permute_tensor(own, [1, 0], mesh[name]).item() for name in ("rows", "columns")]

    assert returned(program, WORLD_SIZE) == ([2.0, 1.0], [3.0, 0.0], [0.0, 3.0], [1.0, 2.0])


def test_a_view_of_a_result_waits_no_more_than_the_result_does():
    def program(rank):
        total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        view = total.view(2, 2)
        kinds = [type(each).__name__ for each in (total, view, view + 1)]
        return kinds, view.tolist()

    waits = "AsyncCollectiveTensor"
    assert returned(program, WORLD_SIZE) == (([waits, waits, "Tensor"], [[4.0, 4.0], [4.0, 4.0]]),) * WORLD_SIZE
