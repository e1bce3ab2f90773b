"""The names of parameters that torch's errors report only by index."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.attribution.wrapper import Wrapper
from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.diagnosis.rank_errors import FROZEN

_NO_PARAMETER = ""
"""In no bucket of any model."""


def parameter_names(wrappers: WrapperRegistry, rank: int, indices: Sequence[int]) -> tuple[str, ...]:
    """The names behind a Reducer's indices on a rank; () if the rank has several wrappers, or its model is gone.

    Of those that require no gradient any more, FROZEN follows the name.

    A Reducer counts the parameters that required a gradient when the model was wrapped, those to ignore left out.
    """
    mine = wrappers.of_rank(rank)
    names = _reduced(mine[0]) if len(mine) == 1 else []
    return tuple(names[index] for index in indices) if max(indices, default=0) < len(names) else ()


def _reduced(wrapper: Wrapper) -> list[str]:
    if wrapper.module is None:
        return []
    ignored = getattr(wrapper.module, "parameters_to_ignore", ())
    named = [(name, p) for name, p in wrapper.module.module.named_parameters() if name not in ignored]
    if wrapper.is_reduced(_NO_PARAMETER):  # its buckets are not known yet, so nothing has been frozen since
        return [name for name, parameter in named if parameter.requires_grad]
    return [name + FROZEN * (not parameter.requires_grad) for name, parameter in named if wrapper.is_reduced(name)]
