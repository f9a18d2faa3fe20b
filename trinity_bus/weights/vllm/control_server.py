"""A worker's control server: begins transfers, and tells of their end, while the engine computes.

What is asked of a worker through vLLM waits for the end of a step of generation, tens of milliseconds where the engine
is busy, and so does each question about progress. A transfer touches nothing that a step uses, so it needs no such
wait. A thread of the worker's process therefore listens on a Unix socket to its front end, and to nobody else::

    front end                                      worker
      |-- (through vLLM) open_control(folder) -------->|  listens on folder/<rank>.sock
      |-- connects, removes the folder --------------->|  stops listening
      |-- {"op": "begin", "token": 7, "source": ...} ->|  a thread receives
      |<- {"token": 7, "state": "ready", ...} ---------|  when it has ended, in whichever way
      |-- {"op": "progress", "token": 7} ------------->|  for transfers that may hang
      |<- {"token": 7, "state": "receiving", ...} -----|

Messages are lines of JSON. The socket lies in a folder that only this user may enter, for as long as it takes to
connect. Failures: a line that is none ends the connection, which ends transfers for this engine's lifetime; the front
end finds the connection closed and counts the engine as dead, as it does when the worker is gone.
"""

import json
import logging
import os
import socket
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import Source

_log = logging.getLogger(__name__)

MAX_LINE = 1 << 16


class ControlServer:
    """Serves one front end.

    Args:
        receiver: What transfers go into.
        path: Of the socket; does not exist yet.
    """

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
        with self._connection, self._connection.makefile("rb") as lines:
            try:
                while line := lines.readline(MAX_LINE):
                    self._handle(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                _log.error("what came over the control socket is no command: %r", error)
            except ConnectionError as error:
                # It left without reading what was said last.
                _log.debug("the front end is gone: %s", error)

    def _handle(self, command: dict[str, Any]) -> None:
        token = int(command["token"])
        if command["op"] != "begin":
            self._say(token, self._receiver.progress)
            return
        try:
            self._receiver.start(Source(**command["source"]), lambda progress: self._say(token, progress))
        except WeightTransferError as error:
            self._say(token, TransferProgress(state="failed", error=str(error)))

    def _say(self, token: int, progress: TransferProgress) -> None:
        line = json.dumps({"token": token, **asdict(progress)}).encode() + b"\n"
        with self._sending:
            if self._connection is not None:
                try:
                    self._connection.sendall(line)
                except OSError as error:
                    # The front end is gone, and this process is about to follow it.
                    _log.debug("nobody reads the control socket: %s", error)
