"""The exceptions of the engine."""


class EngineError(RuntimeError):
    """Base class of the engine's exceptions."""


class UsageError(EngineError, ValueError):
    """An argument or a call is invalid. The text says what to do instead."""


class ReplicaMismatchError(EngineError):
    """The models or settings of the ranks differ. Every rank raises it; the text lists the differences by name."""


class ParameterChangedError(EngineError):
    """A parameter was frozen, unfrozen, replaced or added after the engine laid out its buckets."""


class OpenBackwardError(EngineError):
    """A backward ended without gradients for some parameters. The text names these parameters and their ranks."""


class BypassedBackwardError(EngineError):
    """A parameter got a gradient without a forward through the wrapped model, so the gradient would not be reduced."""


class JoinError(EngineError):
    """The ranks inside a join disagree, one left it by an exception, or joined ranks cannot answer a call."""
