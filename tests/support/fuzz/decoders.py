"""Every decoder, with messages that it takes and the errors that it may raise."""

import contextlib
import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import msgspec
from pydantic import ValidationError

from schemas import BatchRecord, ExperienceGroup, Record, Rollout, Sampling, StepTrained, Task
from schemas.codec import RECORDS, DecodeError, SchemaError, decode, encode
from schemas.groups.trainable import Bounds
from schemas.topic import DLQ_REASON, TRACEPARENT
from tests.support.fakes.experiences import kept_of
from tests.support.fakes.mesh_records import dispatch
from tests.support.fuzz.outside import outside
from trinity_bus.bus.read.received import header
from trinity_bus.chat import wire
from trinity_bus.chat.messages import Completion
from trinity_bus.coordination import StateError
from trinity_bus.rollout.answer import decode_answer, encode_answer
from trinity_bus.rollout.workflow import WorkflowError
from trinity_bus.runners import control, messages
from trinity_bus.runtime.forking import ChildExited, ChildForked, SignalChild
from trinity_bus.runtime.frames import FrameReader, ProtocolError
from trinity_bus.telemetry import parent_context
from trinity_bus.weights.channel import ANSWER, ENTRY, REQUEST, StoreEntry, WeightsAnswer, WeightsRequest
from trinity_bus.weights.errors import ManifestError, TensorFileError, WireError
from trinity_bus.weights.layout import TransferManifest
from trinity_bus.weights.tensor_file import TensorFile
from workers.coordinator.outputs import pack_positions, unpack_leader, unpack_positions
from workers.coordinator.pending_commit import sound
from workers.explorer import outcome

ORDER = dispatch(attempt=3, timeout_s=60)
BY_HAND = [cls for cls in RECORDS if issubclass(cls, Record) and cls.JSON]
"""What may also come as JSON."""
GOLDEN = Path(__file__).parents[2] / "unit" / "schemas" / "golden"


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    run: Callable[[bytes], object]
    """Reads a message, and uses what it has read as its readers do."""
    errors: tuple[type[Exception], ...]
    """What it may raise."""
    samples: list[bytes]
    weight: float = 1.0
    """How many of all inputs it gets."""


def targets(folder: Path) -> list[Target]:
    """All decoders but the machine; files that are read lie in ``folder``."""
    records = [path.read_bytes() for path in sorted(GOLDEN.glob("*.msgpack"))]
    large = _large_records()
    texts = [path.read_bytes() for path in sorted(GOLDEN.glob("*.json"))]
    by_hand = [_json(value) for value in records if value[:1] != b"\x92" and _may_be_json(value)]
    request, answer = REQUEST.encode(WeightsRequest(3, "0" * 64)), ANSWER.encode(WeightsAnswer("", _weight_manifest()))
    passing = REQUEST.encode(WeightsRequest(3, "0" * 64, 4711, 5, alone=True))
    elsewhere = ANSWER.encode(WeightsAnswer("", _weight_manifest(), bytes(32), ("10.0.0.1", 4711)))
    positions = pack_positions({("tasks", 0): 7, ("explorer-events", 3): 1})
    return [
        Target("records", _record, (DecodeError,), records, 6),
        Target("large records", _record, (DecodeError,), large, 0.15),
        Target("JSON tasks", lambda value: _sent_on(decode(value, Task)), (DecodeError,), texts, 2),
        Target("JSON records", _record, (DecodeError,), by_hand, 1.5),
        Target("headers", _headers, (), [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"bad_value"], 1),
        Target("frames of runners", _from_runner, (ProtocolError, ValidationError), _frames_of_runners(), 2),
        Target("answers of runners", _answer, (SchemaError, WorkflowError), _answers(), 2),
        Target("frames for runners", _to_runner, (ProtocolError,), _frames_for_runners(), 1),
        Target("pieces of frames", _pieces, (ProtocolError,), _frames_of_runners(), 0.5),
        Target(
            "datagrams of a fork server", control.FROM_FORK_SERVER.decode, (ProtocolError,), _datagrams_of_nursery(), 1
        ),
        Target(
            "datagrams for a fork server", control.TO_FORK_SERVER.decode, (ProtocolError,), _datagrams_for_nursery(), 1
        ),
        Target("tensor files", partial(_tensor_file, folder), (TensorFileError, OSError), [_safetensors()], 0.7),
        Target("manifests of weights", _manifest, (ManifestError,), [_weight_manifest()], 1),
        Target("requests for weights", REQUEST.decode, (WireError,), [request, passing], 0.7),
        Target("answers about weights", ANSWER.decode, (WireError,), [answer, elsewhere], 0.7),
        Target("messages of links", ENTRY.decode, (WireError,), [ENTRY.encode(StoreEntry("k", b"v"))], 0.3),
        Target("asks of gateways", wire.ASKS.decode, (ProtocolError,), _asks(), 0.5),
        Target("frames for gateways", _frames_for_gateways, (ProtocolError,), _drawn(), 0.5),
        Target("positions", unpack_positions, (StateError,), [positions], 0.4),
        Target("leaders", unpack_leader, (StateError,), [msgpack.packb(["c", "life", "active"])], 0.3),
        *(Target(*decoder) for decoder in outside(folder)),
    ]


def _record(value: bytes) -> None:
    try:
        record = decode(value, *RECORDS)
    except DecodeError as error:
        assert error.reason.isidentifier()  # noqa: PT017 - either outcome is fine
        raise
    _sent_on(record)


def _sent_on(record: Record | ExperienceGroup) -> None:
    """What a reader does with a record: sends it on, looks at samples, prints it."""
    sent = encode(record)
    if isinstance(record, ExperienceGroup):
        assert len(list(record.samples())) == len(record)
        return
    if isinstance(record, Task | StepTrained):
        encode(decode(sent, type(record)))
    if not isinstance(record, BatchRecord):
        repr(record)


def _may_be_json(value: bytes) -> bool:
    return msgpack.unpackb(value)["schema"] in {cls.SCHEMA for cls in BY_HAND}


def _json(value: bytes) -> bytes:
    return json.dumps(msgpack.unpackb(value)).encode()


def _large_records() -> list[bytes]:
    """Of each way that large records are read."""
    task: dict[str, Any] = {"schema": "task", "schema_version": 1, "task_id": "t", "workflow": "w"}
    entry = {
        "task_id": "t",
        "status": "completed",
        "parts": [{"attempt": 1, "samples": 2, "position": {"partition": 1, "offset": 5}}],
    }
    batch = {
        "schema": "batch",
        "schema_version": 1,
        "batch_id": "b",
        "batch_type": "train",
        "state": "finalized",
        "sequence": 3,
    }
    group = (GOLDEN / "experience.v1.msgpack").read_bytes()
    header, binary = msgpack.unpackb(group)
    metrics = {f"m/{i}": 0.5 for i in range(99)}
    return [
        msgpack.packb({**task, "data": {"a": [[i, str(i), -i, i / 7] for i in range(2000)]}}),
        msgpack.packb({**task, "messages": [{"role": "user", "content": "word " * 30}] * 300}),
        json.dumps({**task, "data": {"a": [{"x": i, "y": [i, "é", None]} for i in range(1500)]}}).encode(),
        msgpack.packb({**batch, "sequence": 3, "manifest": [entry] * 700, "metrics": metrics}),
        b"\x92" + msgpack.packb({**header, "future": ["x" * 40] * 1000}) + msgpack.packb(binary),
    ]


def _headers(value: bytes) -> None:
    headers = ((TRACEPARENT, value), (DLQ_REASON, value))
    context = header(headers, TRACEPARENT)
    header(headers, DLQ_REASON)
    if (known := sound(context)) is not None:
        parent_context(known)


def _body(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def _frames_of_runners() -> list[bytes]:
    ask = wire.Ask(wire.token_bytes([1, 2, 3]), b"{}", 4)
    return [
        _body(messages.EngineRequest(1, 2, ask, None, "00-" + "0" * 32)),
        _body(messages.EngineRequest(1, 2, wire.ChatAsk(b"[]", b"{}"), "judge")),
        _body(messages.EngineRequest(1, 2, wire.ScoreAsk(wire.token_bytes([1, 2]), 1), "teacher")),
        _body(messages.AbandonRequest(1, 2)),
        _body(messages.RunDone(1, _answers()[0], None)),
        _body(messages.RunFailed(1, "ValueError", "é")),
        _body(messages.RunCancelled(1)),
        _body(messages.Pong({1: {"begin_time": 1.5, "workflow_id": "a/b/0", "more": [1, {"a": None}]}})),
    ]


def _frames_for_runners() -> list[bytes]:
    drawn = wire.frame_of(Completion([1, 2], [-0.5, -1.0], "stop", [(0, 3)]))
    return [
        _body(messages.Run(1, encode(ORDER), 0, None)),
        _body(messages.CancelRun(1)),
        _body(messages.RequestAnswered(1, 2, [drawn])),
        _body(messages.RequestAnswered(1, 2, [wire.FailedFrame("no", "RuntimeError")])),
        _body(messages.Ping()),
    ]


def _from_runner(body: bytes) -> None:
    match messages.to_explorer(body):
        case messages.EngineRequest(ask=wire.Ask(prompt, sampling)):
            wire.tokens_of(prompt)
            Sampling.model_validate_json(sampling)


def _answers() -> list[bytes]:
    """What runners answer to ``ORDER``."""
    rollout = Rollout(
        prompt_token_ids=[1, 2],
        response_token_ids=[3],
        logprobs=[-0.5],
        mask=[True],
        reward=1.0,
        metrics={"a": 1.0},
        kept=kept_of([3, 700]),
    )
    return [encode_answer(ORDER, [rollout] * runs, "policy") for runs in (1, 2)]


def _answer(value: bytes) -> None:
    """As an explorer takes it: whatever is left is what was asked for, and can be told of."""
    group = decode_answer(ORDER, value, "policy")
    assert (group.task_id, group.attempt, len(group.metrics)) == ("t", 3, len(group))
    with contextlib.suppress(outcome.UntrainableSampleError):
        outcome.check_trainable(group, Bounds(vocabulary=1 << 20, positions=1 << 20))
    encode(outcome.finished(ORDER, group, experience=None, seconds=1.0))


def _to_runner(body: bytes) -> None:
    match messages.TO_RUNNER.decode(body):
        case messages.RequestAnswered(frames=[wire.DrawnFrame() as drawn]):
            wire.completion_of(drawn)


def _pieces(value: bytes) -> None:
    frames = FrameReader(messages.TO_EXPLORER.limit)
    for at in range(0, len(value), 7):
        for body in frames.feed(value[at : at + 7]):
            messages.to_explorer(body)


def _datagrams_for_nursery() -> list[bytes]:
    load = control.LoadWorkflows("a:b", "/model", "policy", b"{}", ["math"], "e", "trinity", b"{}")
    return [_body(message) for message in (load, control.ForkRunner(1), SignalChild(1, 9))]


def _datagrams_of_nursery() -> list[bytes]:
    said = (
        control.WorkflowsLoaded(["math"]),
        control.LoadFailed("no"),
        ChildForked(1, 77),
        ChildExited(1, -9),
    )
    return [_body(message) for message in said]


def _asks() -> list[bytes]:
    return [wire.ASKS.encode(wire.Ask(wire.token_bytes([1, 2]), b'{"stop": ["a"], "top_p": 0.5}', 2))]


def _drawn() -> list[bytes]:
    drawn = wire.DrawnFrame(index=0, token_ids=wire.token_bytes([1]), logprobs=wire.logprob_bytes([-0.5]), version=1)
    last = msgspec.structs.replace(
        drawn,
        finish_reason="stop",
        versions=[(0, 1)],
        routes=wire.Routes(experts=b"abcd", layers=2, k=1),
        kept=kept_of([1, 9]),
    )
    return [wire.FRAMES.frame(drawn) + wire.FRAMES.frame(last), wire.FRAMES.frame(wire.FailedFrame("no"))]


def _frames_for_gateways(value: bytes) -> None:
    drawing = Completion([], [], "", [])
    for body in wire.frame_reader().feed(value):
        frame = wire.decode_frame(body)
        if isinstance(frame, wire.DrawnFrame):
            wire.take_frame(drawing, frame)


def _safetensors() -> bytes:
    table = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(32))


def _tensor_file(folder: Path, value: bytes) -> None:
    # The first half of what is read may also be the file's name.
    if len(value) % 16 == 0:
        with TensorFile(folder / value[:20].decode("latin-1").replace("/", "_")):
            return
    path = folder / "tensors"
    path.write_bytes(value)
    with TensorFile(path) as file:
        for meta in file.metas:
            file.read_part(meta.name, 0, memoryview(bytearray(meta.nbytes)))


def _weight_manifest() -> bytes:
    return json.dumps(
        {
            "version": 3,
            "content": "0" * 64,
            "bucket_bytes": 1 << 20,
            "tensors": [["a", "float32", [2, 3]], ["b", "bfloat16", [4]]],
        }
    ).encode()


def _manifest(value: bytes) -> None:
    manifest = TransferManifest.from_json(value)
    manifest.buckets()
    manifest.to_json()


def scratch() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)  # noqa: S108 - private
