"""The table of causes: what usually leads to a finding, and what to try. Each row has two texts.

Its facts, such as ranks, replace braces in the texts: `Cause.DID_NOT_COME.lines(who="rank 2", operation="barrier #1")`.
Other files of `diagnosis/` choose the row. Here the rows are in families; `facts.py` defines rows and facts.
"""

from ddpsim.simulator.diagnosis.advice.calls import CallCauses
from ddpsim.simulator.diagnosis.advice.facts import Advice
from ddpsim.simulator.diagnosis.advice.failures import FailureCauses
from ddpsim.simulator.diagnosis.advice.parallelism import ParallelismCauses
from ddpsim.simulator.diagnosis.advice.replicas import WrongNumberCauses

__all__ = ["Advice", "Cause"]


class Cause(CallCauses, ParallelismCauses, WrongNumberCauses, FailureCauses):
    """The causes of findings: the rows of all families, by name."""
