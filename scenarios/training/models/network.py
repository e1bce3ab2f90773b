"""The base class of all networks: how to draw a batch, and which branches a batch uses."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from ddpsim import UsageError


class LayerSplit(Enum):
    """How tensor parallelism splits a linear layer, or an embedding."""

    COLUMNS = "columns"
    """Each rank computes some of the outputs, which stay split over the ranks."""
    ROWS = "rows"
    """Each rank has some of the inputs, and receives only these. The outputs are summed over the ranks."""
    GATHERED_COLUMNS = "gathered columns"
    """Each rank computes some of the outputs, and all outputs are gathered on every rank."""


class Layer(NamedTuple):
    """A layer of a network that can be cut into stages: the names of its modules and parameters, and its function."""

    names: tuple[str, ...]
    run: Callable[[Tensor], Tensor]


class Network(nn.Module):
    """A network that a scenario trains. The loss `output.square().mean()` depends on all parameters of the network.

    A subclass has only keyword parameters, each with a default; these are the options that `make_network` takes.
    """

    branches: tuple[str, ...] = ()
    """The branches that a batch may leave out. The name of a branch is the prefix of the names of its parameters."""
    communicates: bool = False
    """True if the network's forward calls collectives on the process group `group`."""
    sparse: bool = False
    """True if some of the gradients are sparse."""
    group: ProcessGroup | None = None
    """The group for collectives in forward; None is the default group."""
    row: tuple[int, ...] = ()
    """The shape of a batch without its first dimension."""
    words: int = 0
    """The number of different tokens in batches; 0 for batches of floats."""
    split: Mapping[str, LayerSplit] = MappingProxyType({})
    """How tensor parallelism splits each layer, by name; empty if the network cannot be split."""
    recomputes: bool = False
    """True if the backward recomputes each layer, instead of keeping activations."""
    _kept: slice = slice(None)
    """The layers that are left after `keep_layers`."""

    def layers_in_order(self) -> tuple[Layer, ...]:
        """Return the layers that a batch passes through, in order; () if the network cannot be cut into layers."""
        return ()

    def keep_layers(self, layers: range) -> None:
        """Remove all layers except the given layers, which keep their names."""
        for index, layer in enumerate(self.layers_in_order()):
            for name in layer.names if index not in layers else ():
                owner, _, leaf = name.rpartition(".")
                parent = self.get_submodule(owner)
                if leaf in parent._parameters:
                    parent.register_parameter(leaf, None)
                else:  # not None: a list of modules would renumber the following ones
                    parent.register_module(leaf, nn.Identity())
        self._kept = slice(layers.start, layers.stop)

    def draw_batch(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return inputs drawn from `generator`: normally distributed in the network's dtype, or int64 tokens.

        The numbers are drawn in float32 and then cast, so a float64 network gets the same numbers.
        """
        weight = next(self.parameters())
        shape, device = (rows, *self.row), generator.device
        if self.words:
            return torch.randint(self.words, shape, generator=generator, device=device).to(weight.device)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(weight)

    def forward(self, batch: Tensor, uses: Sequence[str] | None = None) -> Tensor:
        """Return a row of outputs for each row. `uses` names branches, else UsageError; None means all branches."""
        return self._compute_outputs(batch, self.branches_taken(uses))

    def branches_taken(self, uses: Sequence[str] | None) -> tuple[str, ...]:
        """Return the branches that a batch uses, in order. Raises UsageError for branches that cannot be used."""
        for name in uses or ():
            if name not in self.branches:
                known = ", ".join(self.branches) or "none, since it has no branches"
                raise UsageError(f"uses has {name!r}, expected branches of the network, which are {known}")
        return self.branches if uses is None else tuple(name for name in self.branches if name in uses)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        """Return the outputs for a batch that uses these branches; by default, those of all layers in order."""
        for layer in self.layers_in_order()[self._kept]:
            batch = checkpoint(layer.run, batch, use_reentrant=False) if self.recomputes else layer.run(batch)
        return batch

    def cast_to_dtype(self, dtype: torch.dtype) -> None:
        """Convert the parameters and floating buffers, which are in float32, to `dtype`."""
        self.to(dtype)
