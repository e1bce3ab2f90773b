"""The exceptions of the engine."""

from __future__ import annotations


class EngineError(RuntimeError):
    """Base of all errors of the engine."""


class UsageError(EngineError, ValueError):
    """The caller gave an argument or made a call that the engine cannot accept; the text says what to do instead."""


class ReplicaMismatchError(EngineError):
    """The ranks' models or settings differ; every rank raises it, with the differences by name."""


class ParameterChangedError(EngineError):
    """A parameter was frozen, unfrozen, replaced or added after the engine laid out its buckets."""


class OpenBackwardError(EngineError):
    """A backward ended without the gradients of some parameters; the text names them and their ranks."""


class BypassedBackwardError(EngineError):
    """A gradient was computed that no forward through the wrapped model announced, so it would not be reduced."""


class JoinError(EngineError):
    """The ranks inside a join disagree, one left it by an exception, or joined ranks cannot answer a call."""
