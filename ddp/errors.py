"""The exceptions of the engine.

EngineError                     everything below
+-- UsageError                  an argument, or a call at this point, that the engine cannot work with
+-- ReplicaMismatchError        the ranks' models or settings differ
+-- ParameterChangedError       a parameter was frozen, unfrozen, replaced or added after construction
+-- OpenBackwardError           a backward ended and some parameters that were waited for got no gradient
+-- BypassedBackwardError       gradients came that no forward through the wrapper had announced
+-- JoinError                   the ranks inside a join disagree, or one left it, or a call cannot be shadowed
"""

from __future__ import annotations


class EngineError(RuntimeError):
    """Base of everything the engine raises."""


class UsageError(EngineError, ValueError):
    """The caller gave something the engine cannot work with; the text says what to do instead."""


class ReplicaMismatchError(EngineError):
    """The models or settings of the ranks differ; raised on every rank, with the differences by name."""


class ParameterChangedError(EngineError):
    """A parameter was frozen, unfrozen, replaced or added after the engine had laid out its buckets."""


class OpenBackwardError(EngineError):
    """A backward ended and some parameters that were waited for got no gradient; the text has names and ranks."""


class BypassedBackwardError(EngineError):
    """Gradients came that no forward through the wrapper had announced, so that nobody would have reduced them."""


class JoinError(EngineError):
    """The ranks inside a join disagree, one of them left it by an exception, or a call cannot be shadowed."""
