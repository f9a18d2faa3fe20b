"""Errors of inference engines: of one's own, and of those that are asked over HTTP."""

from trinity_bus.errors import TrinityError


class EngineError(TrinityError):
    """Something went wrong with the engine or one of its requests."""


class EngineStartError(EngineError):
    """The engine did not start; the message ends with vLLM's own reason."""


class EngineDeadError(EngineError):
    """The engine is gone, or must not be used any more. Nothing but a new process helps."""


class RequestRefusedError(EngineError, ValueError):
    """The engine cannot serve this request: the prompt is too long, or a sampling parameter is out of range."""


class GenerationError(EngineError):
    """The engine took a request and did not finish it."""


class NoEngineError(EngineError):
    """There is no explorer that could be asked."""


class EngineSlowError(EngineError, TimeoutError):
    """An explorer that was asked gave no answer within the limit."""


class UnknownPoolError(EngineError, LookupError):
    """A workflow asks for a pool that its explorer does not ask: ``explorer.auxiliary_pools`` names those."""
