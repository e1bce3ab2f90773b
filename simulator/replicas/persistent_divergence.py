"""Replicas that differ, and still do later. Divergence that the program repairs is treated as intended.

Note [Local SGD]. Ranks may step by gradients of their own and average the parameters now and then. So the finding of a
difference is withdrawn if the parameters are equal again, and the program has since brought as many elements to calls
of its own as differed. A difference that is left at the end counts if it lasted longer than each before an average.

Note [Last word]. At moments that are no optimizer step (simulator/diagnosis/replica_divergence.py, `Occasion`) the
program may still be about to repair a difference, as by a broadcast or by loading a state. So such a difference is a
finding only if it was there at the last of these moments, and if optimizer steps, whose findings know more, found none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpsim.simulator.attribution.wrapper import WrapperKey
from ddpsim.simulator.verdict import Code, Finding

_Key = tuple[WrapperKey, Code]


@dataclass(slots=True)
class _Divergence:
    """A period from when parameters differ until they are equal again."""

    elements: int
    """How many differed at first."""
    communicated: int
    """What the program had brought to calls of its own by then."""
    moments: int = 1


class PersistentDivergences:
    """The periods of divergence of one execution."""

    def __init__(self, found: Mapping[_Key, Finding]) -> None:
        """`found` are the findings of optimizer steps."""
        self._found = found
        self._divergences: dict[WrapperKey, _Divergence] = {}
        self._longest: dict[WrapperKey, int] = {}
        """How many moments the longest one took that the program ended by an average."""
        self._later: dict[_Key, Finding] = {}

    def apart(self, key: WrapperKey, elements: int, communicated: int) -> None:
        """Record that parameters differ."""
        divergence = self._divergences.get(key)
        if divergence is None:
            self._divergences[key] = _Divergence(elements, communicated)
        else:
            divergence.moments += 1

    def equal(self, key: WrapperKey, communicated: int) -> bool:
        """Record that all parameters are equal. True if the program has averaged them since they differed."""
        divergence = self._divergences.get(key)
        if divergence is None or communicated - divergence.communicated < divergence.elements:
            return False
        del self._divergences[key]
        self._longest[key] = max(divergence.moments, self._longest.get(key, 0))
        return True

    def is_average_due(self, key: WrapperKey) -> bool:
        """True if the parameters have differed no longer than they did before an earlier average."""
        divergence = self._divergences.get(key)
        return divergence is not None and divergence.moments <= self._longest.get(key, 0)

    def differs(self, key: WrapperKey, finding: Finding) -> None:
        """Record a difference at a time that is no optimizer step."""
        self._later.setdefault((key, finding.code), finding)

    def agrees(self, key: WrapperKey, code: Code) -> None:
        """Record that the replicas are equal by now."""
        self._later.pop((key, code), None)

    def findings(self) -> list[Finding]:
        """Return further findings. Those on parameters come before those on their gradients, which say less."""
        parameters_found = {key for key, code in self._found if code is not Code.DIVERGENCE_BUFFERS}
        parameters_found |= {
            key for key, code in self._later if code is Code.DIVERGENCE_PARAMETERS and not self.is_average_due(key)
        }
        return [
            finding
            for (key, code), finding in self._later.items()
            if (key, code) not in self._found
            and not (code is Code.DIVERGENCE_GRADIENTS and key in parameters_found)
            and not (code is Code.DIVERGENCE_PARAMETERS and self.is_average_due(key))
        ]
