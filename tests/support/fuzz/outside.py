"""Decoders of what strangers send over HTTP, engines' servers answer, models write, and disks hold."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import msgspec
from pydantic import ValidationError

from schemas import Sampling
from tests.support.golden_state import GOLDEN
from trinity_bus.chat import ChatError, wire
from trinity_bus.chat.anthropic import read_messages_request
from trinity_bus.chat.formats import read_hermes, read_llama, read_mistral, read_xml
from trinity_bus.chat.messages import calls_of, for_template, text_of
from trinity_bus.chat.openai import read_completion_request, read_request
from trinity_bus.chat.responses import read_responses_request
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import CoordinatorMachine, StateError
from trinity_bus.coordination.state.codec import LEVEL_KEY, NEWEST_LEVEL
from trinity_bus.inference.errors import GenerationError
from trinity_bus.inference.server.client import (
    Asked,
    completion_of,
    load_of,
    read_answer,
    read_json,
    scores_of,
    spread,
)
from trinity_bus.inference.server.start import KINDS
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.testing import CharacterTokenizer
from trinity_bus.training.checkpoint import FORMAT, Manifest, TrainingProgress, WrittenBy, read_progress
from trinity_bus.training.checkpoint.mirror import StoredCheckpoint, StoredFile, StoredIndex, read_index
from trinity_bus.training.errors import CheckpointError
from workers.gateway.contributions import Commit, Feedback, read_said

type Decoder = tuple[str, Callable[[bytes], object], tuple[type[Exception], ...], list[bytes], float]
"""Name, what reads a message, what that may raise, messages that it takes, and its weight among all."""

_CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}
_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
_TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "3"},
]
_BLOCKS = [{"type": "tool_use", "id": "u", "name": "add", "input": {"a": 1}}]
_RESULTS = [{"type": "tool_result", "tool_use_id": "u", "content": [{"type": "text", "text": "3"}]}]
_ASKED: tuple[dict[str, Any], ...] = (
    {"model": "policy", "messages": _TALK, "tools": [_TOOL], "max_tokens": 9, "stop": ["a"], "n": 2, "stream": True}
    | {"stream_options": {"include_usage": True}, "logprobs": True, "temperature": 0.5, "response_format": None},
    {"model": "policy", "prompt": "1 + 2", "max_tokens": 5, "stop": "x"},
    {"model": "policy", "prompt": [1, 2, 3]},
    {
        "model": "policy",
        "system": [{"type": "text", "text": "Be short."}],
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "1 + 2?"},
            {"role": "assistant", "content": _BLOCKS},
            {"role": "user", "content": _RESULTS},
        ],
        "tools": [{"name": "add", "description": "d", "input_schema": {"type": "object"}}],
        "stop_sequences": ["a"],
    },
    {
        "model": "policy",
        "instructions": "Be short.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "3"}]},
            {"type": "function_call", "call_id": "u", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "u", "output": "3"},
        ],
        "tools": [{"type": "function", "name": "add", "description": "d", "parameters": {}, "strict": True}],
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "store": True,
        "previous_response_id": "resp_1",
    },
)
_GIVEN: tuple[dict[str, Any], ...] = (
    {"reward": 0.5, "msg_ids": ["a", "b"], "task_id": "t", "run_id": 1},
    {"reward": 1, "session": "s"},
    {"task_ids": ["t"]},
)
_ANSWERED: tuple[dict[str, Any], ...] = (
    {
        "choices": [
            {
                "index": 0,
                "token_ids": [5, 6],
                "finish_reason": "stop",
                "logprobs": {"token_logprobs": [-0.5, -1.0], "top_logprobs": [{"a": -0.5, "b": -1.0}, None]},
            }
        ]
    },
    {"choices": [{"index": 1, "logprobs": {"token_logprobs": [None, -0.5, -0.25]}}]},
    {
        "choices": [
            {
                "token_ids": [5],
                "finish_reason": "stop",
                "logprobs": {"content": [{"token_id": 5, "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}]}]},
                "weight_versions": [{"version": "a", "start": 0, "end": 1}],
                "sampling_mask": [[5, 6]],
                "routed_experts": (
                    "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDMsIDEsIDEpLCB9"
                    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAKAAEC"
                ),
            }
        ],
        "prompt_logprobs": [None, {"5": {"logprob": -0.5}}, {"6": {"logprob": -0.5}}],
    },
    {"success": False, "message": "no"},
    {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 100}]},
)
_WRITTEN = (
    'So: <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {}}',
    '[TOOL_CALLS][{"name": "add", "arguments": {"a": [1]}}]',
    "<tool_call><function=add><parameter=a>\n1\n</parameter></function></tool_call>",
)


def outside(folder: Path) -> Iterator[Decoder]:
    """All of them; files that are read lie in ``folder``."""
    yield "requests to gateways", _request, (ChatError,), [_json(one) for one in _ASKED], 1
    yield "feedback for gateways", _feedback, (ChatError,), [_json(one) for one in _GIVEN], 0.4
    yield "asks of explorers", _ask, (ProtocolError, ValidationError), list(_asks()), 0.5
    metrics = KINDS["vllm"].metrics
    told = "\n".join(f'{name}{{model="m"}} {number}.5' for number, name in enumerate(metrics)).encode()
    yield "answers of servers", _answer, (GenerationError,), [_json(one) for one in _ANSWERED], 0.7
    yield "metrics of servers", partial(_metrics, metrics), (GenerationError,), [told], 0.2
    yield "tool calls of models", _tool_calls, (), [text.encode() for text in _WRITTEN], 0.5
    yield "state of coordinators", _state, (StateError,), list(_states()), 0.4
    yield "manifests of checkpoints", partial(_progress, folder), (CheckpointError,), list(_manifests()), 0.3
    yield "indexes of checkpoints", partial(read_index, where="s3://bucket"), (CheckpointError,), list(_indexes()), 0.3


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _request(body: bytes) -> None:
    """As a gateway takes it: by each of its routes, and to the point where a template takes its messages."""
    refused: list[ChatError] = []
    for read in (
        lambda: read_request(body, None),
        lambda: read_messages_request(body, Sampling()),
        lambda: read_responses_request(body, Sampling()),
        lambda: read_completion_request(body, Sampling(), CharacterTokenizer()),
    ):
        try:
            asked = read()
            for message in getattr(asked, "messages", ()):
                text_of(message)
                calls_of(message)
                for_template(message)
        except ChatError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _feedback(body: bytes) -> None:
    for kind in (Feedback, Commit):
        read_said(body, kind)


def _asks() -> Iterator[bytes]:
    sampling = _json({"temperature": 0.5, "stop": ["a"], "max_tokens": 9})
    yield wire.ASKS.encode(wire.ChatAsk(_json({"messages": _TALK}), sampling))
    yield wire.ASKS.encode(wire.ScoreAsk(wire.token_bytes([1, 2, 3]), 1))
    yield wire.ASKS.encode(wire.Ask(wire.token_bytes([1, 2]), sampling, 2, stream=True))


def _ask(body: bytes) -> None:
    match wire.ASKS.decode(body):
        case wire.ChatAsk(sampling=sampling):
            Sampling.model_validate_json(sampling)
        case wire.ScoreAsk(tokens):
            wire.tokens_of(tokens)
        case wire.Ask(prompt, sampling):
            wire.tokens_of(prompt)
            Sampling.model_validate_json(sampling)


class _Told(msgspec.Struct):
    """What a server says of itself, in the shapes of all its routes."""

    success: bool = True
    message: str = ""
    weight_version: str | None = None
    data: list[dict[str, Any]] = []


def _answer(body: bytes) -> None:
    """As an explorer takes it, for a request and for each event of a stream."""
    read_json(body, _Told)
    answer = read_answer(body)
    spread(answer)
    refused: list[GenerationError] = []
    for use in (*map(_uses, answer.choices), lambda: scores_of(answer, [4, 5, 6], 1)):
        try:
            use()
        except GenerationError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _uses(choice: Any) -> Callable[[], object]:
    labels = None if choice.weight_versions is None else {"a": 1}
    asked = Asked(3, [(0, 1)], labels, most_kept=9, routes=choice.routed_experts is not None)
    return lambda: [completion_of(choice, asked, partial=partial) for partial in (True, False)]


def _metrics(names: tuple[str, ...], body: bytes) -> None:
    load_of(body.decode(errors="replace"), names, 3)


def _tool_calls(value: bytes) -> None:
    text = value.decode(errors="surrogateescape")
    for read in (read_hermes, read_llama, read_mistral, read_xml):
        # What was read is told to people and tools.
        for call in read(text).calls:
            json.dumps([call.name, call.arguments])


def _states() -> Iterator[bytes]:
    """An entry of each kind, after its key."""
    yield msgpack.packb([LEVEL_KEY, [NEWEST_LEVEL, NEWEST_LEVEL]])  # a state of the first level holds none
    known: set[str] = set()
    for path in sorted(GOLDEN.glob("*.msgpack")):
        for key, value in msgpack.unpackb(path.read_bytes())["entries"].items():
            kind = key.partition("/")[0]
            if kind not in known:
                known.add(kind)
                yield msgpack.packb([key, msgpack.unpackb(value, strict_map_key=False)])


def _state(message: bytes) -> None:
    """As a coordinator that takes over takes it."""
    key, value = "tasks", message
    with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        said, body = msgpack.unpackb(message, strict_map_key=False)
        key, value = said if isinstance(said, str) else key, msgpack.packb(body)
    CoordinatorMachine(CoordinatorSettings()).restore([(key, value)])


_WRITER = WrittenBy(dtype="float32")


def _manifests() -> Iterator[bytes]:
    manifest = Manifest(**_WRITER.model_dump(), format=FORMAT, progress=TrainingProgress(step=7, version=7), files={})
    yield manifest.model_dump_json().encode()
    yield manifest.sealed().model_dump_json().encode()


def _indexes() -> Iterator[bytes]:
    file = StoredFile(size=7, pieces=("ab" * 32,))
    stored = StoredCheckpoint(life=f"00000001-{'0' * 32}", written=1.5, needs=9, files={"model.safetensors": file})
    for checkpoints in ({}, {7: stored}):
        index = StoredIndex(run="0" * 32, notes={".told": "{}"}, checkpoints=checkpoints)
        yield index.model_dump_json().encode()


def _progress(folder: Path, value: bytes) -> None:
    step = folder / "checkpoints" / "step-00000007"
    step.mkdir(parents=True, exist_ok=True)
    (step / "progress.json").write_bytes(value)
    read_progress(step, _WRITER)
