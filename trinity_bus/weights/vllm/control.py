"""A worker's control server: begins transfers, and tells of their end, while the engine computes.

What is asked of a worker through vLLM waits for the end of a step of generation, tens of milliseconds where the engine
is busy. A transfer touches nothing that a step uses, so a thread of the worker listens on a Unix socket to its front
end, and to nobody else::

    front end                                      worker
      |-- (through vLLM) open_control(folder) -------->|  listens on folder/<rank>.sock
      |-- connects, removes the folder --------------->|  stops listening
      |-- BeginTransfer(token, source) --------------->|  a thread receives, or maps what the first worker has received
      |<- TransferTold(token, progress: ready, ...) ---|  when it has ended, in whichever way
      |-- AskProgress(token) ------------------------->|  for transfers that may hang
      |<- TransferTold(token, progress: receiving) ----|

The front end numbers what it asks with *tokens*, and each is answered under its own. Failures: what is no message ends
the connection; the front end counts the engine as dead then, as it does when the worker is gone.
"""

import logging
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from trinity_bus.runtime.frames import Dialect, ProtocolError, read_frame
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.receiver import SharedVersion, TransferProgress, WeightReceiver
from trinity_bus.weights.transport import Source


class BeginTransfer(Struct, tag="begin", frozen=True):
    token: int
    source: Source
    shared: SharedVersion | None = None


class AskProgress(Struct, tag="progress", frozen=True):
    token: int


class TransferTold(Struct, frozen=True):
    token: int
    progress: TransferProgress


type ToWorker = BeginTransfer | AskProgress

TO_WORKER: Dialect[ToWorker] = Dialect(BeginTransfer | AskProgress, limit=1 << 16)
TO_FRONT_END: Dialect[TransferTold] = Dialect(TransferTold, limit=1 << 16)


_log = logging.getLogger(__name__)

_MAX_ERROR_CHARS = 4000


class ControlServer:
    """Serves one front end on a socket at ``path``, which does not exist yet."""

    def __init__(self, receiver: WeightReceiver, path: Path) -> None:
        self._receiver = receiver
        self._sending = threading.Lock()
        self._connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(path))
        self._listener.listen(1)
        threading.Thread(target=self._run, name="weights-control", daemon=True).start()

    def _run(self) -> None:
        self._connection, _ = self._listener.accept()
        self._listener.close()
        with self._connection, self._connection.makefile("rb") as frames:
            try:
                while (body := read_frame(frames, TO_WORKER.limit)) is not None:
                    self._handle(TO_WORKER.decode(body))
            except ProtocolError as error:
                _log.error("what came over the control socket is no command: %s", error)

    def _handle(self, command: ToWorker) -> None:
        token = command.token
        if isinstance(command, AskProgress):
            self._say(token, self._receiver.progress)
            return
        try:
            self._receiver.start(command.source, lambda progress: self._say(token, progress), command.shared)
        except WeightTransferError as error:
            self._say(token, TransferProgress(state="failed", error=str(error)))

    def _say(self, token: int, progress: TransferProgress) -> None:
        shown = replace(progress, error=progress.error and progress.error[:_MAX_ERROR_CHARS])
        frame = TO_FRONT_END.frame(TransferTold(token, shown))
        with self._sending:
            if self._connection is not None:
                try:
                    self._connection.sendall(frame)
                except OSError as error:
                    # The front end is gone, and this process is about to follow it.
                    _log.debug("nobody reads the control socket: %s", error)
