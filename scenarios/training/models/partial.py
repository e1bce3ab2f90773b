"""Networks of which a batch may use only a part: the rest gets no gradient."""

# A module that is called gives Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ddpsim import UsageError
from ddpsim.scenarios.training.models.network import Network

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


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
                raise UsageError(f"names has {name!r}, expected different words that no attribute is called: rename it")
            self.add_module(name, nn.Linear(width, width))

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        body: Tensor = self.body(batch).tanh()
        outputs = body
        for name in taken:
            outputs = outputs + self.get_submodule(name)(body)
        return outputs


class EarlyExit(Network):
    """Stages, each with an exit: a batch leaves after the last stage it takes, with the sum of the exits it passed.

    The stages are called first, second, ...; the first is always taken, the others are the branches.
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

    def taken(self, uses: Sequence[str] | None) -> tuple[str, ...]:
        """Return the stages after the first that a batch uses. Raises UsageError if one before its last is left out."""
        taken = super().taken(uses)
        if taken != self.branches[: len(taken)]:
            missing = next(name for name in self.branches if name not in taken)
            raise UsageError(f"uses leaves out {missing!r} before {taken[-1]!r}, expected no gap: name it too")
        return taken

    def _outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        hidden = self.get_submodule("first.layer")(batch).tanh()
        outputs = self.get_submodule("first.exit")(hidden)
        for name in taken:
            hidden = self.get_submodule(f"{name}.layer")(hidden).tanh()
            outputs = outputs + self.get_submodule(f"{name}.exit")(hidden)
        return outputs
