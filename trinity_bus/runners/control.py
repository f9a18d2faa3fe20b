"""What an explorer and its fork server say to each other: one message per datagram of a socket pair.

::

    explorer                                fork server
       │ LoadWorkflows, once ─────────────────> │  imports workflows, loads the tokenizer
       │ <─────── WorkflowsLoaded or LoadFailed │
       │ ForkRunner(serial), with a socket ───> │
       │ <─────────── RunnerForked(serial, pid) │
       │ SignalRunner(serial, signal) ────────> │  nothing happens where it is dead already
       │ <─────────── RunnerExited(serial, how) │  once for each that was asked for, also where it could not be forked

When the explorer's end is closed, the fork server kills its runners and ends.
"""

from typing import Any

from msgspec import Struct

from trinity_bus.runtime.frames import Dialect

MAX_BYTES = 1 << 16


class LoadWorkflows(Struct, tag="load", frozen=True):
    # ``module:function``; called as ``trinity_bus.rollout.tokenizer.load_tokenizer`` is.
    tokenizer: str
    model_path: str
    model: str
    sampling: bytes  # the explorer's defaults, as JSON
    modules: list[str]  # that register workflows, imported in this order
    explorer: str
    namespace: str
    telemetry: bytes  # ``TelemetrySettings`` as JSON
    template_options: dict[str, Any] = {}
    max_tokens: int | None = None  # of the longest prompt
    parse_special_tokens: bool = False
    renderer: str | None = None
    # User, by name or number, to become before anything of the workflows' is imported; None: to stay.
    user: str | None = None


class ForkRunner(Struct, tag="fork", frozen=True):
    """Fork a runner that speaks through the socket that comes along."""

    serial: int


class SignalRunner(Struct, tag="signal", frozen=True):
    serial: int
    number: int


class WorkflowsLoaded(Struct, tag="loaded", frozen=True):
    workflows: list[str]


class LoadFailed(Struct, tag="broken", frozen=True):
    why: str


class RunnerForked(Struct, tag="born", frozen=True):
    serial: int
    pid: int


class RunnerExited(Struct, tag="died", frozen=True):
    """A runner is gone, and so are all processes that it had started."""

    serial: int
    how: str  # as in "was killed by signal 11 (SIGSEGV)"


type ToForkServer = LoadWorkflows | ForkRunner | SignalRunner
type FromForkServer = WorkflowsLoaded | LoadFailed | RunnerForked | RunnerExited

TO_FORK_SERVER: Dialect[ToForkServer] = Dialect(LoadWorkflows | ForkRunner | SignalRunner, limit=MAX_BYTES)
FROM_FORK_SERVER: Dialect[FromForkServer] = Dialect(
    WorkflowsLoaded | LoadFailed | RunnerForked | RunnerExited, limit=MAX_BYTES
)
