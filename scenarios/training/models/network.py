"""What all networks have in common: how a batch is drawn for them, and which of their branches it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from ddpsim import UsageError


class Split(Enum):
    """How a linear layer, or an embedding, is shared by the ranks of tensor parallelism."""

    COLUMNS = "columns"
    """Each rank has some outputs, and hands these on as they are."""
    ROWS = "rows"
    """Each rank has some inputs, which it is handed; outputs are added up."""
    GATHERED_COLUMNS = "gathered columns"
    """Each rank has some outputs, and all are gathered."""


class Layer(NamedTuple):
    """A step of a network that can be cut: what it has, by names of modules and parameters, and what it computes."""

    names: tuple[str, ...]
    run: Callable[[Tensor], Tensor]


class Network(nn.Module):
    """A network that a scenario trains; `output.square().mean()` is a loss that reaches all of its parameters.

    A subclass has only keyword parameters, each with a default: they are the options that `make` takes.
    """

    branches: tuple[str, ...] = ()
    """The parts that a batch may leave out; the parameters of a branch are those whose names begin with its name."""
    communicates: bool = False
    """Whether its forward makes collectives of its own, on `group`."""
    sparse: bool = False
    """Whether some of its gradients are sparse."""
    group: ProcessGroup | None = None
    """Where a network that communicates does so; None is the default group."""
    row: tuple[int, ...] = ()
    """The shape of a batch without its first dimension."""
    words: int = 0
    """How many different tokens a batch is made of; 0 if it is made of numbers."""
    split: Mapping[str, Split] = MappingProxyType({})
    """By name, how layers are shared in tensor parallelism; empty if there is no way."""
    recomputes: bool = False
    """Whether the backward computes each layer anew, instead of keeping what lies in between."""
    _kept: slice = slice(None)
    """The layers that are left."""

    def layers_in_order(self) -> tuple[Layer, ...]:
        """What a batch goes through, one after the other; () if the network cannot be cut into such."""
        return ()

    def keep(self, layers: range) -> None:
        """Cut off all layers but these; what is left keeps its names."""
        for index, layer in enumerate(self.layers_in_order()):
            for name in layer.names if index not in layers else ():
                owner, _, leaf = name.rpartition(".")
                parent = self.get_submodule(owner)
                if leaf in parent._parameters:
                    parent.register_parameter(leaf, None)
                else:  # not None: a list of modules would number those behind it anew
                    parent.register_module(leaf, nn.Identity())
        self._kept = slice(layers.start, layers.stop)

    def batch(self, rows: int, generator: torch.Generator) -> Tensor:
        """Inputs drawn from `generator`: normally distributed in the network's dtype, or int64 tokens.

        Numbers are drawn in float32 and then cast, so that the same network in float64 is given the same ones.
        """
        weight = next(self.parameters())
        shape, device = (rows, *self.row), generator.device
        if self.words:
            return torch.randint(self.words, shape, generator=generator, device=device).to(weight.device)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(weight)

    def forward(self, batch: Tensor, uses: Sequence[str] | None = None) -> Tensor:
        """The outputs for a batch, a row each; `uses` names the branches that it takes, in any order, None takes all.

        Raises UsageError for branches that it cannot take.
        """
        return self._outputs(batch, self.taken(uses))

    def taken(self, uses: Sequence[str] | None) -> tuple[str, ...]:
        """The branches that a batch takes, in order. Raises UsageError for those that it cannot take."""
        for name in uses or ():
            if name not in self.branches:
                known = ", ".join(self.branches) or "none, since it has no branches"
                raise UsageError(f"uses has {name!r}, expected branches of the network, which are {known}")
        return self.branches if uses is None else tuple(name for name in self.branches if name in uses)

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        """What `forward` returns, if the batch takes these branches."""
        raise NotImplementedError

    def _through_layers(self, batch: Tensor) -> Tensor:
        """What comes of the layers that are left."""
        for layer in self.layers_in_order()[self._kept]:
            batch = checkpoint(layer.run, batch, use_reentrant=False) if self.recomputes else layer.run(batch)
        return batch

    def cast(self, dtype: torch.dtype) -> None:
        """Convert the parameters and floating buffers, which are in float32, to `dtype`."""
        self.to(dtype)
