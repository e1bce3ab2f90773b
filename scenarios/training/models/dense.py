"""Networks of linear layers: one layer, several, of two dtypes, the two of a GAN, and some with branches."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddpsim import UsageError
from ddpsim.scenarios.training.models.network import Layer, LayerSplit, Network

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class Linear(Network):
    """One linear layer."""

    def __init__(self, *, features: int = 8, outputs: int = 4) -> None:
        super().__init__()
        self.row = (features,)
        self.layer = nn.Linear(features, outputs)
        self.split = {"layer": LayerSplit.GATHERED_COLUMNS}

    def layers_in_order(self) -> tuple[Layer, ...]:
        """Return the only layer of the network."""
        return (Layer(("layer",), self.layer),)


class Mlp(Network):
    """Linear layers with ReLU in between; `hidden` has their widths."""

    def __init__(self, *, features: int = 8, hidden: tuple[int, ...] = (16, 16), outputs: int = 4) -> None:
        super().__init__()
        self.row = (features,)
        self.layers = nn.ModuleList(nn.Linear(*widths) for widths in pairwise((features, *hidden, outputs)))
        self.split = {f"layers.{index}": LayerSplit.GATHERED_COLUMNS for index in range(len(self.layers))}

    def layers_in_order(self) -> tuple[Layer, ...]:
        """Return the layers in order, each with the ReLU that follows it. No ReLU follows the last layer."""
        last = len(self.layers) - 1
        return tuple(
            Layer((f"layers.{index}",), layer if index == last else partial(_with_relu, layer))
            for index, layer in enumerate(self.layers)
        )


def _with_relu(layer: nn.Module, batch: Tensor) -> Tensor:
    return F.relu(layer(batch))


class MixedDtypes(Network):
    """A layer in the network's dtype, followed by one in float64; with dtype float64, everything is float64."""

    def __init__(self, *, features: int = 8, width: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.row = (features,)
        self.narrow = nn.Linear(features, width)
        self.wide = nn.Linear(width, outputs)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.wide(self.narrow(batch).tanh().double())

    def cast_to_dtype(self, dtype: torch.dtype) -> None:
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

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.outer(F.relu(self.inner(batch)))


class GanDiscriminator(Network):
    """The discriminator of a GAN: one number per row, higher for a sample that it considers real."""

    def __init__(self, *, features: int = 8, width: int = 16) -> None:
        super().__init__()
        self.row = (features,)
        self.inner = nn.Linear(features, width)
        self.outer = nn.Linear(width, 1)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        return self.outer(F.leaky_relu(self.inner(batch), 0.2))


# --- networks of which a batch may use only a part: the rest gets no gradient ----------------------------------------


class Branches(Network):
    """A body, and branches whose outputs are added to the body's; `names` has their names, with spaces between."""

    branches: tuple[str, ...] = ("left", "right")

    def __init__(self, *, features: int = 8, width: int = 8, names: str = "left right") -> None:
        super().__init__()
        self.row = (features,)
        self.body = nn.Linear(features, width)
        self.branches = tuple(names.split())
        for name in self.branches:
            if not name.isidentifier() or hasattr(self, name):
                raise UsageError(
                    f"names has {name!r}, expected distinct words that name no attribute of a module: rename it"
                )
            self.add_module(name, nn.Linear(width, width))

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        body: Tensor = self.body(batch).tanh()
        outputs = body
        for name in taken:
            outputs = outputs + self.get_submodule(name)(body)
        return outputs


class EarlyExit(Network):
    """A network of stages, each with an exit.

    A batch leaves after the last stage that it uses; the output is the sum of the exits that it passed. The stages are
    called first, second, ...; the first is always used, the others are the branches.
    """

    branches: tuple[str, ...] = _ORDINALS[1:3]

    def __init__(self, *, features: int = 8, width: int = 16, depth: int = 3, outputs: int = 4) -> None:
        super().__init__()
        if depth > len(_ORDINALS):
            raise UsageError(f"depth is {depth}, expected {len(_ORDINALS)} at most: take fewer stages")
        self.row = (features,)
        self.branches = _ORDINALS[1:depth]
        for index, name in enumerate(_ORDINALS[:depth]):
            layers = {"layer": nn.Linear(width if index else features, width), "exit": nn.Linear(width, outputs)}
            self.add_module(name, nn.ModuleDict(layers))

    def branches_taken(self, uses: Sequence[str] | None) -> tuple[str, ...]:
        """Return the stages after the first that a batch uses. Raises UsageError if it leaves out an earlier stage."""
        taken = super().branches_taken(uses)
        if taken != self.branches[: len(taken)]:
            missing = next(name for name in self.branches if name not in taken)
            raise UsageError(f"uses leaves out {missing!r} before {taken[-1]!r}, expected no gap: name it too")
        return taken

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        hidden = self.get_submodule("first.layer")(batch).tanh()
        outputs = self.get_submodule("first.exit")(hidden)
        for name in taken:
            hidden = self.get_submodule(f"{name}.layer")(hidden).tanh()
            outputs = outputs + self.get_submodule(f"{name}.exit")(hidden)
        return outputs
