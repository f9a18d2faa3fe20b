"""What an explorer and its fork server say to each other, beside what all of them do (``trinity_bus.runtime.forking``).

::

    explorer                                fork server
       │ LoadWorkflows, once ─────────────────> │  imports workflows, loads the tokenizer
       │ <─────── WorkflowsLoaded or LoadFailed │
       │ ForkRunner(serial), with a socket ───> │
"""

from typing import Any

from msgspec import Struct

from trinity_bus.chat.encoding import Writing
from trinity_bus.runtime.forking import ChildExited, ChildForked, SignalChild
from trinity_bus.runtime.frames import Dialect

MAX_BYTES = 1 << 16


class LoadWorkflows(Struct, tag="load", frozen=True):
    # ``module:function``; called as ``trinity_bus.chat.encoding.load_tokenizer`` is.
    tokenizer: str
    model_path: str
    model: str
    sampling: bytes  # the explorer's defaults, as JSON
    modules: list[str]  # that register workflows, imported in this order
    explorer: str
    namespace: str
    telemetry: bytes  # ``TelemetrySettings`` as JSON
    template_options: dict[str, Any] = {}
    writing: Writing = Writing()
    # User, by name or number, to become before anything of the workflows' is imported; None: to stay.
    user: str | None = None


class ForkRunner(Struct, tag="fork", frozen=True):
    """Fork a runner that speaks through the socket that comes along."""

    serial: int


class WorkflowsLoaded(Struct, tag="loaded", frozen=True):
    workflows: list[str]


class LoadFailed(Struct, tag="failed", frozen=True):
    why: str


type ToForkServer = LoadWorkflows | ForkRunner | SignalChild
type FromForkServer = WorkflowsLoaded | LoadFailed | ChildForked | ChildExited

TO_FORK_SERVER: Dialect[ToForkServer] = Dialect(LoadWorkflows | ForkRunner | SignalChild, limit=MAX_BYTES)
FROM_FORK_SERVER: Dialect[FromForkServer] = Dialect(
    WorkflowsLoaded | LoadFailed | ChildForked | ChildExited, limit=MAX_BYTES
)
