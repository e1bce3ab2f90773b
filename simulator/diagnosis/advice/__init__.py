"""The table of causes: what usually leads to a finding, and what to try.

The other files of `diagnosis/` decide which cause applies, and fill in what stands in braces, the facts of its row:
`cause.lines(who="rank 2", operation="barrier #1")`. The rows stand by family, in the order of the findings: what waits
or meets, what differs, hazards, errors. `Cause` has them all; what they are made of is in facts.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.simulator.diagnosis.advice.arguments import Arguments
from ddpsim.simulator.diagnosis.advice.endings import Endings
from ddpsim.simulator.diagnosis.advice.errors import Errors
from ddpsim.simulator.diagnosis.advice.facts import Advice
from ddpsim.simulator.diagnosis.advice.hazards import Hazards
from ddpsim.simulator.diagnosis.advice.loops import Loops
from ddpsim.simulator.diagnosis.advice.messages import Messages
from ddpsim.simulator.diagnosis.advice.parallelism import Parallelism
from ddpsim.simulator.diagnosis.advice.replicas import Replicas
from ddpsim.simulator.diagnosis.advice.wrappers import Wrappers

__all__ = ["TABLE", "Advice", "Cause"]


class Cause(Loops, Arguments, Messages, Parallelism, Wrappers, Replicas, Hazards, Errors, Endings):
    """The causes of findings: the rows of all families, by name."""


TABLE: Mapping[str, Advice[...]] = {
    name: row for family in Cause.__bases__ for name, row in vars(family).items() if isinstance(row, Advice)
}
"""All causes, by name."""
