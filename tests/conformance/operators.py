"""torch's DTensorOpTestBase at work: the operators of op_db that DTensor knows, on sharded and replicated arguments.

torch's own file with such tests is not in its wheel; this is ours. What an operator gives for DTensors has to be what
it gives for whole tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.testing._internal import common_methods_invocations as operators
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter, DTensorOpTestBase
from torch.utils._pytree import tree_map_only

SAMPLES = 3
"""Of the arguments that op_db has for an operator."""
PLACEMENTS = 6
"""Of the ways to shard and replicate the tensors among them."""


class OperatorsOnShards(DTensorOpTestBase):
    """A test for each operator, which `_add_tests` adds."""


def _check(test: OperatorsOnShards, operator: Any) -> None:
    mesh = test.build_device_mesh()
    for sample in islice(operator.sample_inputs("cpu", torch.float32), SAMPLES):
        args = (sample.input, *sample.args)
        expected = operator(*args, **sample.kwargs)
        for sharded, named in islice(DTensorConverter(mesh, args, sample.kwargs), PLACEMENTS):
            test.assertEqual(_whole(operator(*sharded, **named)), expected)  # noqa: PT009, of torch's class


def _whole(value: Any) -> Any:
    return tree_map_only(DTensor, lambda tensor: tensor.full_tensor(), value)


def _test_of(operator: Any) -> Callable[[OperatorsOnShards], None]:
    def test(self: OperatorsOnShards) -> None:
        _check(self, operator)

    return test


def _add_tests() -> None:
    known = _known()
    for operator in operators.op_db:
        has_values = "empty" not in operator.name
        is_known = operator.aten_name in known and torch.float32 in operator.dtypes
        if has_values and is_known and not operator.variant_test_name:
            setattr(OperatorsOnShards, re.sub(r"\W", "_", f"test_{operator.name}"), _test_of(operator))


def _known() -> set[str]:
    """The names of the operators for which DTensor has a way to compute on shards."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    tables = ("op_strategy_funcs", "op_to_rules", "op_single_dim_strategy_funcs")
    overloads = {overload for table in tables for overload in getattr(propagator, table, {})}
    return {overload.name().partition("::")[2].partition(".")[0] for overload in overloads}


# So that four ranks can share the dimensions of most arguments.
operators.S, operators.M, operators.L, operators.XS = 4, 8, 16, 4
_add_tests()
