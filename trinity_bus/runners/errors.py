"""Errors of runners.

::

    TrinityError
    +-- RunnerDiedError           an attempt's failure: it was alone in a runner, and that died, or had to be stopped
    +-- WorkflowRaisedError       an attempt's failure: its workflow raised something, whose type and message it carries
    +-- RunnersError              the explorer's own end: runners cannot be started, or the fork server is gone

A runner that says what it must not say (``ProtocolError`` of ``trinity_bus.runtime.frames``) is stopped.
"""

from trinity_bus.errors import TrinityError


class RunnerDiedError(TrinityError):
    """An attempt was alone in a runner when that died or had to be stopped; the message says how."""


class WorkflowRaisedError(TrinityError):
    """A workflow raised an error in its runner.

    Args:
        kind: Name of the error's type.
        message: Its message.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class RunnersError(TrinityError):
    """Runners cannot be started, or the process that starts them is gone."""
