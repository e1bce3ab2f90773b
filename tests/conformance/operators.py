"""torch's DTensorOpTestBase at work: each operator of op_db on sharded and replicated arguments.

torch's own file with such tests is not in its wheel; this is ours. What an operator gives for DTensors has to be what
it gives for whole tensors. An operator that DTensor does not know fails on gloo as it does here, which says so.
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
    for operator in operators.op_db:
        if torch.float32 in operator.dtypes:
            name = re.sub(r"\W", "_", f"test_{operator.name}_{operator.variant_test_name}").rstrip("_")
            setattr(OperatorsOnShards, name, _test_of(operator))


# So that four ranks can share the dimensions of most arguments.
operators.S, operators.M, operators.L, operators.XS = 4, 8, 16, 4
_add_tests()
