"""What an engine's front end and its workers' control servers say to each other, in frames on a Unix socket.

::

    front end                                      worker
      |-- BeginTransfer(token, source) -------------->|  a thread receives, or maps what the first worker has received
      |<- TransferTold(token, progress: ready, ...) --|  when it has ended, in whichever way
      |-- AskProgress(token) ------------------------>|  for transfers that may hang
      |<- TransferTold(token, progress: receiving) ---|
      |-- LetIn(source) ----------------------------->|  others are to take the version that it has

The front end numbers what it asks with *tokens*, and each is answered under its own.
"""

from msgspec import Struct

from trinity_bus.runtime.frames import Dialect
from trinity_bus.weights.receiver import SharedVersion, TransferProgress
from trinity_bus.weights.transport import Source


class BeginTransfer(Struct, tag="begin", frozen=True):
    """Receive a version, or take the one that another worker of this engine has received."""

    token: int
    source: Source
    shared: SharedVersion | None = None


class AskProgress(Struct, tag="progress", frozen=True):
    token: int


class LetIn(Struct, tag="let_in", frozen=True):
    """Members of this announcement may take the version from here, if it is the one that is held."""

    source: Source


class TransferTold(Struct, frozen=True):
    token: int
    progress: TransferProgress


type ToWorker = BeginTransfer | AskProgress | LetIn

TO_WORKER: Dialect[ToWorker] = Dialect(BeginTransfer | AskProgress | LetIn, limit=1 << 16)
TO_FRONT_END: Dialect[TransferTold] = Dialect(TransferTold, limit=1 << 16)
