"""What becomes of replicas that differ: who makes them equal again has meant it.

Note [Local SGD]. Ranks may step by gradients of their own and average the parameters now and then. So a difference of
parameters is taken back where the program has since brought as many elements to calls of its own as differed, and the
parameters are equal again. One that is left at the end counts if ranks were longer apart than ever before an average.

Note [Last word]. At moments that are no optimizer step (simulator/diagnosis/replica_divergence.py, `Occasion`) a
difference may still be on its way to be mended, as by a broadcast or by a state that is loaded. So it is told only if
it was there at the last of these moments, and if optimizer steps, whose findings know more, tell nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpsim.simulator.attribution.wrapper import WrapperKey
from ddpsim.simulator.verdict import Code, Finding

_Key = tuple[WrapperKey, Code]


@dataclass(slots=True)
class _Spell:
    """From where parameters differ until they are equal again."""

    elements: int
    """How many differed at first."""
    exchanged: int
    """What the program had brought to calls of its own by then."""
    moments: int = 1


class Lasting:
    """The differences between the replicas of one execution that last."""

    def __init__(self, found: Mapping[_Key, Finding]) -> None:
        """`found` is what optimizer steps tell."""
        self._found = found
        self._spells: dict[WrapperKey, _Spell] = {}
        self._longest: dict[WrapperKey, int] = {}
        """How many moments the longest spell took that the program ended by an average."""
        self._later: dict[_Key, Finding] = {}

    def apart(self, key: WrapperKey, elements: int, exchanged: int) -> None:
        """Parameters differ."""
        spell = self._spells.get(key)
        if spell is None:
            self._spells[key] = _Spell(elements, exchanged)
        else:
            spell.moments += 1

    def equal(self, key: WrapperKey, exchanged: int) -> bool:
        """All parameters are equal. True if the program has averaged them since they differed."""
        spell = self._spells.get(key)
        if spell is None or exchanged - spell.exchanged < spell.elements:
            return False
        del self._spells[key]
        self._longest[key] = max(spell.moments, self._longest.get(key, 0))
        return True

    def is_average_due(self, key: WrapperKey) -> bool:
        """True if ranks are apart no longer than they were before an average."""
        spell = self._spells.get(key)
        return spell is not None and spell.moments <= self._longest.get(key, 0)

    def differs(self, key: WrapperKey, finding: Finding) -> None:
        """At a moment that is no optimizer step."""
        self._later.setdefault((key, finding.code), finding)

    def agrees(self, key: WrapperKey, code: Code) -> None:
        """They are equal by now."""
        self._later.pop((key, code), None)

    def findings(self) -> list[Finding]:
        """What is to be told besides: parameters that differ say more than their gradients."""
        told = {key for key, code in self._found if code is not Code.DIVERGENCE_BUFFERS}
        told |= {
            key for key, code in self._later if code is Code.DIVERGENCE_PARAMETERS and not self.is_average_due(key)
        }
        return [
            finding
            for (key, code), finding in self._later.items()
            if (key, code) not in self._found
            and not (code is Code.DIVERGENCE_GRADIENTS and key in told)
            and not (code is Code.DIVERGENCE_PARAMETERS and self.is_average_due(key))
        ]
