"""Networks of linear layers: one layer, several, of two dtypes, and the two networks of a GAN."""

# A module that is called gives Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddpsim.scenarios.training.models.network import Layer, Network, Split


class Linear(Network):
    """One linear layer."""

    def __init__(self, *, features: int = 8, outputs: int = 4) -> None:
        super().__init__()
        self.row = (features,)
        self.layer = nn.Linear(features, outputs)
        self.split = {"layer": Split.GATHERED_COLUMNS}

    def layers_in_order(self) -> tuple[Layer, ...]:
        """Return its only layer."""
        return (Layer(("layer",), self.layer),)

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self._through_layers(batch)


class Mlp(Network):
    """Linear layers with ReLU in between; `hidden` has their widths."""

    def __init__(self, *, features: int = 8, hidden: tuple[int, ...] = (16, 16), outputs: int = 4) -> None:
        super().__init__()
        self.row = (features,)
        self.layers = nn.ModuleList(nn.Linear(*widths) for widths in pairwise((features, *hidden, outputs)))
        self.split = {f"layers.{index}": Split.GATHERED_COLUMNS for index in range(len(self.layers))}

    def layers_in_order(self) -> tuple[Layer, ...]:
        """Return each layer with the ReLU that follows it; none follows the last."""
        last = len(self.layers) - 1
        return tuple(
            Layer((f"layers.{index}",), layer if index == last else partial(_with_relu, layer))
            for index, layer in enumerate(self.layers)
        )

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self._through_layers(batch)


def _with_relu(layer: nn.Module, batch: Tensor) -> Tensor:
    return F.relu(layer(batch))


class MixedDtypes(Network):
    """A layer in the network's dtype, followed by one in float64; with dtype float64, everything is float64."""

    def __init__(self, *, features: int = 8, width: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.row = (features,)
        self.narrow = nn.Linear(features, width)
        self.wide = nn.Linear(width, outputs)

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.wide(self.narrow(batch).tanh().double())

    def cast(self, dtype: torch.dtype) -> None:
        """Convert the first layer to `dtype`, the second to float64."""
        self.narrow.to(dtype)
        self.wide.to(torch.float64)


class GanGenerator(Network):
    """The generator of a GAN: makes samples from noise, with as many `features` as the discriminator takes."""

    def __init__(self, *, noise: int = 4, width: int = 16, features: int = 8) -> None:
        super().__init__()
        self.row = (noise,)
        self.inner = nn.Linear(noise, width)
        self.outer = nn.Linear(width, features)

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.outer(F.relu(self.inner(batch)))


class GanDiscriminator(Network):
    """The discriminator of a GAN: one number per row, higher for a sample that it considers real."""

    def __init__(self, *, features: int = 8, width: int = 16) -> None:
        super().__init__()
        self.row = (features,)
        self.inner = nn.Linear(features, width)
        self.outer = nn.Linear(width, 1)

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.outer(F.leaky_relu(self.inner(batch), 0.2))
