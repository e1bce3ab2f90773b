"""How far two sums of the same numbers may lie apart, if they were added in different orders.

A backend adds in an order of its own (gloo in a ring, from another rank on for each part), the simulator from rank 0
to the last. Either result lies within gamma(k) * S of the exact one, where k is the number of operations that round, S
the sum of the magnitudes of what is added, gamma(k) = k u / (1 - k u), and u half of the dtype's eps (N. J. Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2). So two of them lie at most

    2 gamma(k) S

apart. For n ranks k is n - 1; the division of AVG rounds once more, and divides S by n. A PRODUCT has the product of
the magnitudes in place of S (section 3.1 there).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from ddpsim.scenarios.ranks.interpreter import input_tensors
from ddpsim.simulator.operations import IN_PROGRAMS
from ddpsim.simulator.programs.check import MatchedCall
from ddpsim.simulator.programs.program import FRACTIONAL

_ROUNDING = frozenset({"SUM", "AVG", "PRODUCT"})


def rounds(met: Sequence[MatchedCall]) -> bool:
    """True if the result of calls that met depends on the order in which they are reduced."""
    issue = met[0].issue
    return IN_PROGRAMS[issue.operation].reduces and issue.dtype in FRACTIONAL and issue.reduction in _ROUNDING


def bounds(met: Sequence[MatchedCall], rank: int) -> list[Tensor]:
    """For each output of `rank`, and each element of it, how far two results may lie apart."""
    issue = met[0].issue
    columns = zip(*(input_tensors(call.issue, call.rank) for call in met), strict=True)
    apart = [_bound(column, str(issue.dtype), str(issue.reduction)) for column in columns]
    index = [call.rank for call in met].index(rank)
    if issue.operation == "reduce_scatter":
        return [apart[index]]
    if issue.operation == "reduce_scatter_tensor":
        return [apart[0].chunk(len(met))[index]]
    return apart


def _bound(column: Sequence[Tensor], dtype: str, reduction: str) -> Tensor:
    magnitudes = [tensor.double().abs() for tensor in column]
    size = reduce(torch.mul if reduction == "PRODUCT" else torch.add, magnitudes)
    operations = len(column) - 1
    if reduction == "AVG":
        operations, size = len(column), size / len(column)
    unit = operations * torch.finfo(getattr(torch, dtype)).eps / 2
    return 2 * unit / (1 - unit) * size
