"""What an explorer and its nursery say to each other: one msgpack message per datagram of a socket pair.

::

    explorer                                nursery
       │ Load, once ──────────────────────────> │  imports workflows, loads the tokenizer
       │ <────────────────── Loaded or Broken │
       │ ForkRunner(serial), with a socket ───> │
       │ <───────────────────── Born(serial, pid) │
       │ SignalRunner(serial, signal) ────────> │  nothing happens where it is dead already
       │ <──────────────────── Died(serial, how) │  once for each that was asked for, also where it could not be forked

When the explorer's end is closed, the nursery kills its runners and ends.
"""

import msgspec
from msgspec import Struct

from workers.explorer.runners.errors import ProtocolError

MAX_BYTES = 1 << 16


class Load(Struct, tag="load", frozen=True):
    """What all runners have in common."""

    tokenizer: str
    """What loads it, as ``module:function``; it is called with ``model_path``."""
    model_path: str
    modules: list[str]
    """Modules that register workflows, imported in this order."""
    explorer: str
    namespace: str
    telemetry: bytes
    """``TelemetrySettings`` as JSON."""


class ForkRunner(Struct, tag="fork", frozen=True):
    """Fork a runner that speaks through the socket that comes along."""

    serial: int


class SignalRunner(Struct, tag="signal", frozen=True):
    """Send a runner a signal."""

    serial: int
    number: int


class Loaded(Struct, tag="loaded", frozen=True):
    """Runners can be forked."""

    workflows: list[str]


class Broken(Struct, tag="broken", frozen=True):
    """They cannot."""

    why: str


class Born(Struct, tag="born", frozen=True):
    """A runner runs."""

    serial: int
    pid: int


class Died(Struct, tag="died", frozen=True):
    """A runner is gone, and so are all processes that it had started."""

    serial: int
    how: str
    """As in "was killed by signal 11 (SIGSEGV)"."""


type ToNursery = Load | ForkRunner | SignalRunner
type FromNursery = Loaded | Broken | Born | Died

_ENCODER = msgspec.msgpack.Encoder()
_TO_NURSERY: msgspec.msgpack.Decoder[ToNursery] = msgspec.msgpack.Decoder(Load | ForkRunner | SignalRunner)
_FROM_NURSERY: msgspec.msgpack.Decoder[FromNursery] = msgspec.msgpack.Decoder(Loaded | Broken | Born | Died)


def encode(message: ToNursery | FromNursery) -> bytes:
    """A message as a datagram."""
    return _ENCODER.encode(message)


def to_nursery(datagram: bytes) -> ToNursery:
    """The message in a datagram of the explorer's.

    Raises:
        ProtocolError: There is none.
    """
    return _decoded(_TO_NURSERY, datagram)


def from_nursery(datagram: bytes) -> FromNursery:
    """The message in a datagram of the nursery's.

    Raises:
        ProtocolError: There is none.
    """
    return _decoded(_FROM_NURSERY, datagram)


def _decoded[M](decoder: msgspec.msgpack.Decoder[M], datagram: bytes) -> M:
    try:
        return decoder.decode(datagram)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ProtocolError(f"a datagram that cannot be read: {error}") from error
