"""Staging: tensors of a GPU go through memory of the host, as gloo stages them itself where it takes them at all.

torch's gloo takes GPU tensors for some collectives and none for messages (the table in torch's documentation of
torch.distributed, "Backends"); so all are staged here, and gloo sees none.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ddpsim.simulator.transport.payload import Payload


class Stage:
    """One rank's payload, in memory of the host."""

    def __init__(self, payload: Payload) -> None:
        self._original = payload
        self._copies: dict[int, Tensor] = {}
        """By id() of the tensor, as inputs may be outputs."""
        self.payload = payload
        if any(needs_staging(tensor) for tensor in (*payload.inputs, *payload.outputs)):
            gathered: list[Tensor] | None = None if payload.gathered is None else []
            inputs, outputs = self._on_host(payload.inputs), self._on_host(payload.outputs)
            self.payload = payload._replace(inputs=inputs, outputs=outputs, gathered=gathered)

    def finish(self) -> None:
        """Bring back what was received; the caller's stream waits for it, as for any copy."""
        original, staged = self._original, self.payload
        if staged is original:
            return
        for tensor, copy in zip(original.outputs, staged.outputs, strict=True):
            tensor.copy_(copy)
        if original.gathered is not None and staged.gathered is not None:
            original.gathered.extend(each.to(original.inputs[0].device) for each in staged.gathered)

    def _on_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for tensor in tensors:
            if id(tensor) not in self._copies:
                self._copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
        return [self._copies[id(tensor)] for tensor in tensors]


def needs_staging(tensor: Tensor) -> bool:
    """True for a tensor that is not in memory of the host."""
    return tensor.device.type != "cpu"
