"""What may be wrong with a program, in the classes of the MPI corpora, and by what words a tool says so.

The classes are those of MPI-CorrBench (the prefixes of its file names: tudasc/MPI-Corrbench) and, for races and the
life of a request, of MPI-BugBench (Correctness 2024), as far as torch.distributed has them: it has no one-sided
communication and no types made by users.
"""

from __future__ import annotations

import re
from enum import Enum

from ddpsim import Code

_HANG = r"tim(ed|e) ?out|closed by peer|did not (join|reach)|not all ranks join|monitoredBarrier|reset by peer"
"""Words of a tool that says no more than that somebody did not come."""
_MISMATCH = r"mismatch"
_MISSING = frozenset({Code.DEADLOCK_MISSING_RANK, Code.DEADLOCK_DEAD_RANK})
_STUCK = _MISSING | {Code.DEADLOCK_CYCLE}
_ORDER = frozenset({Code.MISMATCH_OPERATION, Code.MISMATCH_SHAPE, Code.MISMATCH_DTYPE, Code.MISMATCH_ORIGIN})

ORDER_NOTE = "order"
"""Stands for a note of a run that passed, which says what may come in another order."""


class Kind(Enum):
    """Class, findings that name it, and the words of any other tool that are taken for its name."""

    CORRECT = ("Correct", frozenset[str](), "$^")
    ARGUMENT = ("ArgError", frozenset({Code.RANK_ERROR}), r"Error")
    ROOT = ("ArgMismatch-root", frozenset({Code.MISMATCH_ROOT, Code.MISMATCH_GROUP}), rf"\broot|src|dst|{_MISMATCH}")
    REDUCTION = ("ArgMismatch-operation", frozenset({Code.MISMATCH_REDUCTION}), rf"reduc\w* ?op|ReduceOp|{_MISMATCH}")
    COUNT = (
        "ArgMismatch-count",
        frozenset({Code.MISMATCH_SHAPE, Code.MISMATCH_SPLITS}),
        rf"shape|size|bytes|length|{_MISMATCH}",
    )
    TYPE = ("ArgMismatch-type", frozenset({Code.MISMATCH_DTYPE}), rf"dtype|type|bytes|{_MISMATCH}")
    TAG = ("ArgMismatch-tag", _STUCK, rf"\btag|{_HANG}")
    PEER = ("ArgMismatch-peer", _STUCK, rf"\bpeer|{_HANG}")
    GROUP = ("ArgMismatch-communicator", _STUCK | {Code.MISMATCH_GROUP, Code.MISMATCH_OPERATION}, rf"group|{_HANG}")
    MISSING = ("MissingCall", _STUCK | _ORDER | {Code.MISMATCH_GROUP}, rf"{_HANG}|{_MISMATCH}")
    MISSING_WAIT = ("MissingCall-wait", frozenset({Code.HAZARD_UNWAITED_WORK, Code.HAZARD_TENSOR_IN_FLIGHT}), r"\bwait")
    MISPLACED = (
        "MisplacedCall",
        _STUCK | _ORDER | {Code.HAZARD_GROUP_ORDER, Code.MISMATCH_GROUP},
        rf"{_HANG}|{_MISMATCH}",
    )
    CRASH = ("Crash", frozenset({Code.RANK_ERROR}), r"cannot be divided")
    BUFFER = ("LocalConcurrency", frozenset({Code.HAZARD_TENSOR_IN_FLIGHT}), r"in flight|overlap|before .*wait")
    RACE = (
        "MessageRace",
        frozenset({Code.RANK_ERROR, ORDER_NOTE}) | _STUCK | _ORDER,
        rf"came from another|{_HANG}|{_MISMATCH}",
    )

    def __init__(self, label: str, codes: frozenset[str], words: str) -> None:
        self.label = label
        self.codes = codes
        self.words = re.compile(words, re.IGNORECASE)
