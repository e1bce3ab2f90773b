"""Cases of collectives that are part of a backward: torch.distributed.nn and the autograd functional collectives.

What to expect comes from autograd itself: all ranks' inputs as leaves of one graph, in which the collective is plain
torch, and the sum of all ranks' losses as its root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn

from tests.semantics.case import Case
from tests.semantics.sweep import Setting, sample

ROOT = 1

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Differentiable:
    """A collective of tensors in and tensors out.

    `call` makes it on one rank; `model` computes all ranks' outputs from all ranks' inputs. With `only_at_root`, what
    the other ranks get out is unspecified, and their losses do not count.
    """

    name: str
    input_shapes: Callable[[int, int], Sequence[tuple[int, ...]]]
    call: Callable[[int, int, Tensors], Sequence[torch.Tensor]]
    model: Callable[[list[Tensors]], list[Tensors]]
    only_at_root: bool = False
    tolerance: float = 0.0


def cases() -> Iterator[Case]:
    for collective in COLLECTIVES:
        for world_size in (2, 3):
            yield _case(collective, world_size)
    yield Case("autograd-model-parallel", 2, _model_parallel, _model_whole, tolerance=1e-6)


def _case(collective: Differentiable, world_size: int) -> Case:
    def inputs(rank: int) -> Tensors:
        shapes = collective.input_shapes(rank, world_size)
        return [
            sample(Setting(shape=shape), rank=rank, piece=piece).requires_grad_() for piece, shape in enumerate(shapes)
        ]

    def counts(rank: int) -> bool:
        return rank == ROOT or not collective.only_at_root

    def program(rank: int) -> dict[str, object]:
        leaves = inputs(rank)
        outputs = collective.call(rank, world_size, leaves)
        # The backward communicates, so every rank takes part, whether its loss counts or not.
        _loss(rank, outputs).backward()
        return {
            "outputs": [_plain(output) for output in outputs] if counts(rank) else [],
            "gradients": [leaf.grad for leaf in leaves],
        }

    def expected(rank: int) -> dict[str, object]:
        leaves = [inputs(other) for other in range(world_size)]
        outputs = collective.model(leaves)
        torch.stack([_loss(other, outputs[other]) for other in range(world_size) if counts(other)]).sum().backward()
        return {
            "outputs": [output.detach() for output in outputs[rank]] if counts(rank) else [],
            "gradients": [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves[rank]],
        }

    name = f"autograd-{collective.name}-world{world_size}"
    return Case(name, world_size, program, expected, tolerance=collective.tolerance)


def _loss(rank: int, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    # Whole numbers, other ones for every rank, output and element: no two gradients look alike.
    terms = [
        (output * (1 + rank + 5 * index + torch.arange(output.numel()).reshape(output.shape))).sum()
        for index, output in enumerate(outputs)
    ]
    return torch.stack(terms).sum()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(tensor.detach())


def _one(rank: int, world_size: int) -> Sequence[tuple[int, ...]]:
    return [(2, 2)]


def _one_per_rank(rank: int, world_size: int) -> Sequence[tuple[int, ...]]:
    return [(3,)] * world_size


def _one_whole(rank: int, world_size: int) -> Sequence[tuple[int, ...]]:
    return [(2 * world_size, 2)]


def _one_for_splits(rank: int, world_size: int) -> Sequence[tuple[int, ...]]:
    return [(sum(_splits(rank, world_size)), 2)]


def _splits(rank: int, world_size: int) -> list[int]:
    """How many rows `rank` sends to each rank, and gets from each."""
    return [rank + other for other in range(world_size)]


def _blank(count: int) -> Tensors:
    return [torch.zeros(3) for _ in range(count)]


def _sum_everywhere(inputs: list[Tensors]) -> list[Tensors]:
    total = torch.stack([mine[0] for mine in inputs]).sum(dim=0)
    return [[total] for _ in inputs]


def _mean_everywhere(inputs: list[Tensors]) -> list[Tensors]:
    return [[total / len(inputs)] for (total,) in _sum_everywhere(inputs)]


def _all_gathered(inputs: list[Tensors]) -> list[Tensors]:
    return [[mine[0] * 1 for mine in inputs] for _ in inputs]


def _all_gathered_in_one(inputs: list[Tensors]) -> list[Tensors]:
    return [[torch.cat([mine[0] for mine in inputs])] for _ in inputs]


def _reduce_scattered(inputs: list[Tensors]) -> list[Tensors]:
    return [[torch.stack([mine[rank] for mine in inputs]).sum(dim=0)] for rank in range(len(inputs))]


def _chunks(inputs: list[Tensors]) -> list[Tensors]:
    return [list(mine[0].chunk(len(inputs))) for mine in inputs]


def _exchanged(inputs: list[Tensors]) -> list[Tensors]:
    return [[mine[rank] * 1 for mine in inputs] for rank in range(len(inputs))]


def _joined(outputs: list[Tensors]) -> list[Tensors]:
    return [[torch.cat(mine)] for mine in outputs]


def _split_rows(inputs: list[Tensors]) -> list[Tensors]:
    return [list(mine[0].split(_splits(rank, len(inputs)))) for rank, mine in enumerate(inputs)]


COLLECTIVES = (
    Differentiable("nn-all_reduce", _one, lambda rank, size, given: [nn.all_reduce(given[0])], _sum_everywhere),
    Differentiable(
        "nn-all_reduce-AVG",
        _one,
        lambda rank, size, given: [nn.all_reduce(given[0], op=dist.ReduceOp.AVG)],
        _mean_everywhere,
        tolerance=1e-6,
    ),
    Differentiable(
        "nn-broadcast",
        _one,
        lambda rank, size, given: [nn.broadcast(given[0], ROOT)],
        lambda inputs: [[inputs[ROOT][0] * 1] for _ in inputs],
    ),
    Differentiable(
        "nn-reduce",
        _one,
        lambda rank, size, given: [nn.reduce(given[0], ROOT)],
        _sum_everywhere,
        only_at_root=True,
    ),
    Differentiable(
        "nn-gather",
        _one,
        lambda rank, size, given: nn.gather(given[0], ROOT),
        _all_gathered,
        only_at_root=True,
    ),
    Differentiable(
        "nn-scatter",
        _one_per_rank,
        lambda rank, size, given: [nn.scatter(given, ROOT)],
        lambda inputs: [[inputs[ROOT][rank] * 1] for rank in range(len(inputs))],
    ),
    Differentiable("nn-all_gather", _one, lambda rank, size, given: nn.all_gather(given[0]), _all_gathered),
    Differentiable(
        "nn-reduce_scatter",
        _one_per_rank,
        lambda rank, size, given: [nn.reduce_scatter(torch.zeros(3), given)],
        _reduce_scattered,
    ),
    Differentiable(
        "nn-all_to_all", _one_per_rank, lambda rank, size, given: nn.all_to_all(_blank(size), given), _exchanged
    ),
    Differentiable(
        "nn-all_to_all_single",
        _one_whole,
        lambda rank, size, given: [nn.all_to_all_single(torch.zeros(2 * size, 2), given[0])],
        lambda inputs: _joined(_exchanged(_chunks(inputs))),
    ),
    Differentiable(
        "nn-all_to_all_single-splits",
        _one_for_splits,
        lambda rank, size, given: [
            nn.all_to_all_single(
                torch.zeros(sum(_splits(rank, size)), 2),
                given[0],
                output_split_sizes=_splits(rank, size),
                input_split_sizes=_splits(rank, size),
            )
        ],
        lambda inputs: _joined(_exchanged(_split_rows(inputs))),
    ),
    Differentiable(
        "functional-all_reduce",
        _one,
        lambda rank, size, given: [functional.all_reduce(given[0], "sum", dist.group.WORLD)],
        _sum_everywhere,
    ),
    Differentiable(
        "functional-all_gather_tensor",
        _one,
        lambda rank, size, given: [functional.all_gather_tensor_autograd(given[0], 0, dist.group.WORLD)],
        _all_gathered_in_one,
    ),
    Differentiable(
        "functional-reduce_scatter_tensor",
        _one_whole,
        lambda rank, size, given: [functional.reduce_scatter_tensor_autograd(given[0], "sum", 0, dist.group.WORLD)],
        lambda inputs: _reduce_scattered(_chunks(inputs)),
    ),
    Differentiable(
        "functional-all_to_all_single",
        _one_whole,
        lambda rank, size, given: [
            functional.all_to_all_single_autograd(given[0], [2] * size, [2] * size, dist.group.WORLD)
        ],
        lambda inputs: _joined(_exchanged(_chunks(inputs))),
    ),
)


def _weights() -> Tensors:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(6, 4, generator=generator), torch.randn(4, 6, generator=generator)]


def _model_parallel(rank: int) -> Tensors:
    """Two layers cut over the ranks, the hidden units first; one all_reduce joins the output in the forward."""
    first, second = _weights()
    mine = slice(2 * rank, 2 * rank + 2)
    upper = first[:, mine].clone().requires_grad_()
    lower = second[mine].clone().requires_grad_()
    given = torch.ones(1, 6)
    output = functional.all_reduce((given @ upper).relu() @ lower, "sum", dist.group.WORLD)
    # Every rank has the same loss, so its gradient arrives once from every rank.
    (output.square().sum() / dist.get_world_size()).backward()
    return [_plain(output), upper.grad, lower.grad]


def _model_whole(rank: int) -> Tensors:
    first, second = (weight.requires_grad_() for weight in _weights())
    output = (torch.ones(1, 6) @ first).relu() @ second
    output.square().sum().backward()
    mine = slice(2 * rank, 2 * rank + 2)
    return [output.detach(), first.grad[:, mine], second.grad[mine]]
