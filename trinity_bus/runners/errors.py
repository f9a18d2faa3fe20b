"""Errors of runners. One that says what it must not say (``ProtocolError``) is stopped."""

from trinity_bus.errors import TrinityError


class RunnerDiedError(TrinityError):
    """An attempt was alone in a runner when that died or had to be stopped; the message says how."""


class WorkflowRaisedError(TrinityError):
    """A workflow raised an error in its runner: ``kind`` is the name of its type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class RunnersError(TrinityError):
    """Runners cannot be started, or the process that starts them is gone."""
