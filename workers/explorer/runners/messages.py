"""What an explorer and a runner say to each other, and how it looks on the socket between them.

::

    explorer                                       runner
       │ Run(job) ───────────────────────────────────> │  the workflow starts
       │ <──────────────────────── Generate(job, request)  any number, several at once
       │ Completions(job, request) or EngineFailed ──> │
       │ <───────────────────────── Abandon(job, request)  nobody waits for it any more: the engine drops it
       │ CancelRun(job) ─────────────────────────────> │  the workflow is cancelled
       │ <────────────── Done, Failed or Cancelled(job) │  exactly one for each Run
       │ Ping ───────────────────────────────────────> │
       │ <──────────────────────────────── Pong(states) │  also the first thing that it says, unasked

A *job* is one attempt in one runner, numbered by the explorer; a *request* is numbered by the runner, within its job.

A frame is the length of its body (4 bytes, little endian) and the body, a msgpack array that begins with the number of
its type. Token ids (int32), logprobs (float32) and masks (uint8) are raw little-endian buffers, never arrays of
msgpack. The two sides are of one program on one machine: there are no versions.

Failures: a frame over ``MAX_FRAME_BYTES`` is refused by its length, before any of it is kept; a body that is not one of
these messages, or a buffer that is no vector, is a ``ProtocolError``. Who hears one stops the other side.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from schemas.experience import ExperienceGroup
from schemas.record import BatchType
from trinity_bus.inference.completion import Completion
from trinity_bus.rollout import Rollout
from workers.explorer.runners.errors import ProtocolError

MAX_FRAME_BYTES = ExperienceGroup.MAX_BYTES
"""Limit of one frame: what an attempt yields has to fit into one record anyway."""

_LENGTH = struct.Struct("<I")
INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
UINT8 = np.dtype("|u1")
_ARRAY_TYPES = {INT32: "i", FLOAT32: "f"} if sys.byteorder == "little" else {}
"""Element types of Python's own arrays, where they are those of the wire."""


class Run(Struct, tag=1, array_like=True, gc=False, frozen=True):
    """Run a workflow."""

    job: int
    task: bytes
    """The task, as JSON."""
    repeat_times: int
    run_id_base: int
    batch_type: BatchType
    sampling: bytes
    """The explorer's defaults, as JSON."""
    traceparent: str | None


class CancelRun(Struct, tag=2, array_like=True, gc=False, frozen=True):
    """Cancel it. The answer to its ``Run`` still comes."""

    job: int


class Drawn(Struct, array_like=True, gc=False, frozen=True):
    """One response of the engine."""

    token_ids: memoryview
    logprobs: memoryview
    finish_reason: str
    versions: list[tuple[int, int]]


class Completions(Struct, tag=3, array_like=True, gc=False, frozen=True):
    """What the engine drew."""

    job: int
    request: int
    drawn: list[Drawn]


class EngineFailed(Struct, tag=4, array_like=True, gc=False, frozen=True):
    """The engine did not serve a request."""

    job: int
    request: int
    kind: str
    """Name of the error's type."""
    message: str


class Ping(Struct, tag=5, array_like=True, gc=False, frozen=True):
    """Are you there?"""


class Generate(Struct, tag=6, array_like=True, gc=False, frozen=True):
    """Draw ``n`` responses to a prompt."""

    job: int
    request: int
    prompt: memoryview
    sampling: bytes
    """As JSON."""
    n: int
    traceparent: str | None


class Abandon(Struct, tag=7, array_like=True, gc=False, frozen=True):
    """Stop drawing them."""

    job: int
    request: int


class WireRollout(Struct, array_like=True, gc=False, frozen=True):
    """One run of a task."""

    prompt: memoryview
    response: memoryview
    logprobs: memoryview
    mask: memoryview | None
    reward: float
    metrics: dict[str, float]
    finish_reason: str
    versions: list[tuple[int, int]]


class Done(Struct, tag=8, array_like=True, gc=False, frozen=True):
    """A workflow has returned."""

    job: int
    rollouts: list[WireRollout]
    error: str | None
    """The first error, where some runs broke off."""


class Failed(Struct, tag=9, array_like=True, gc=False, frozen=True):
    """A workflow has raised."""

    job: int
    kind: str
    message: str


class Cancelled(Struct, tag=10, array_like=True, gc=False, frozen=True):
    """A workflow has ended because it was cancelled, whatever it did last."""

    job: int


class Pong(Struct, tag=11, array_like=True, gc=False, frozen=True):
    """I am here, and this is what workflows have set since I last said so."""

    states: dict[int, dict[str, Any]]
    """By job."""


type ToRunner = Run | CancelRun | Completions | EngineFailed | Ping
type ToExplorer = Generate | Abandon | Done | Failed | Cancelled | Pong

_ENCODER = msgspec.msgpack.Encoder()
_TO_RUNNER: msgspec.msgpack.Decoder[ToRunner] = msgspec.msgpack.Decoder(
    Run | CancelRun | Completions | EngineFailed | Ping
)
_TO_EXPLORER: msgspec.msgpack.Decoder[ToExplorer] = msgspec.msgpack.Decoder(
    Generate | Abandon | Done | Failed | Cancelled | Pong
)


def frame(message: ToRunner | ToExplorer) -> bytearray:
    """A message as it is written to the socket.

    Raises:
        ProtocolError: It is over ``MAX_FRAME_BYTES``.
    """
    buffer = bytearray(_LENGTH.size)
    _ENCODER.encode_into(message, buffer, _LENGTH.size)
    size = len(buffer) - _LENGTH.size
    if size > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {size} bytes, at most {MAX_FRAME_BYTES} are allowed")
    _LENGTH.pack_into(buffer, 0, size)
    return buffer


def to_runner(body: bytes) -> ToRunner:
    """The message in a frame that an explorer wrote.

    Raises:
        ProtocolError: There is none.
    """
    return _decoded(_TO_RUNNER, body)


def to_explorer(body: bytes) -> ToExplorer:
    """The message in a frame that a runner wrote.

    Raises:
        ProtocolError: There is none.
    """
    return _decoded(_TO_EXPLORER, body)


def _decoded[M](decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"a message that cannot be read: {error}") from error


class Frames:
    """Puts frames together from whatever pieces a socket gives."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete with ``data``.

        Raises:
            ProtocolError: A frame is longer than any may be.
        """
        # Nearly always, a piece is whole frames.
        source = data
        if self._pending:
            self._pending += data
            source = bytes(self._pending)
            self._pending.clear()
        start = 0
        while (body := start + _LENGTH.size) <= len(source):
            (size,) = _LENGTH.unpack_from(source, start)
            if size > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {size} bytes, at most {MAX_FRAME_BYTES} are allowed")
            if body + size > len(source):
                break
            yield source[body : body + size]
            start = body + size
        self._pending += source[start:]


def pack_vector(values: Any, dtype: np.dtype[Any]) -> memoryview:
    """A vector as its raw buffer.

    Args:
        values: A sequence of numbers, or an array of one dimension.
        dtype: The element type.

    Raises:
        ValueError, TypeError, OverflowError: It is no vector of such numbers.
    """
    if type(values) is list and values and dtype in _ARRAY_TYPES:
        # What engines give: four times as fast as through NumPy.
        return memoryview(array(_ARRAY_TYPES[dtype], values)).cast("B")
    vector = np.ascontiguousarray(values, dtype)
    if np.ndim(values) != 1:
        raise ValueError(f"an array of shape {list(np.shape(values))} where a vector is needed")
    return vector.data.cast("B") if vector.size else memoryview(b"")


def unpack_vector(buffer: memoryview, dtype: np.dtype[Any]) -> Any:
    """The vector in a raw buffer, as a NumPy array that is a view of it.

    Raises:
        ProtocolError: Its length is no multiple of an element's.
    """
    if len(buffer) % dtype.itemsize:
        raise ProtocolError(f"a buffer of {len(buffer)} bytes holds no vector of {dtype.itemsize} byte elements")
    return np.frombuffer(buffer, dtype)


def pack_completions(completions: Sequence[Completion]) -> list[Drawn]:
    """The engine's responses, for the wire."""
    return [
        Drawn(
            pack_vector(one.token_ids, INT32), pack_vector(one.logprobs, FLOAT32), one.finish_reason, list(one.versions)
        )
        for one in completions
    ]


def unpack_completions(drawn: Sequence[Drawn]) -> list[Completion]:
    """The engine's responses, for workflows, which get lists of plain numbers."""
    return [
        Completion(
            unpack_vector(one.token_ids, INT32).tolist(),
            unpack_vector(one.logprobs, FLOAT32).tolist(),
            one.finish_reason,
            one.versions,
        )
        for one in drawn
    ]


def pack_rollouts(rollouts: Sequence[Rollout]) -> list[WireRollout]:
    """What a workflow returned, for the wire.

    Raises:
        ValueError, TypeError, OverflowError, AttributeError: It is not what a workflow returns.
    """
    return [
        WireRollout(
            pack_vector(run.prompt_token_ids, INT32),
            pack_vector(run.response_token_ids, INT32),
            pack_vector(run.logprobs, FLOAT32),
            None if run.mask is None else pack_vector(run.mask, UINT8),
            float(run.reward),
            _plain_metrics(run.metrics),
            str(run.finish_reason),
            [(int(start), int(version)) for start, version in run.versions],
        )
        for run in rollouts
    ]


def unpack_rollouts(rollouts: Sequence[WireRollout]) -> list[Rollout]:
    """What a workflow returned.

    Raises:
        ProtocolError: A buffer is no vector.
    """
    return [
        Rollout(
            prompt_token_ids=unpack_vector(run.prompt, INT32),
            response_token_ids=unpack_vector(run.response, INT32),
            logprobs=unpack_vector(run.logprobs, FLOAT32),
            mask=None if run.mask is None else unpack_vector(run.mask, UINT8).astype(np.bool_),
            reward=run.reward,
            metrics=run.metrics,
            finish_reason=run.finish_reason,
            versions=run.versions,
        )
        for run in rollouts
    ]


def _plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in metrics.items()}
