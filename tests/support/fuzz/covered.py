"""Every module that reads a format, with the target that damages its input, or why that is trusted.

What is new belongs here: a test compares this list with the sources.
"""

from collections.abc import Mapping
from typing import Final

READS: Final = (
    r"json\.loads?\(|json\.decode\b|msgpack\.(unpackb|decode)\b|\.Decoder[\[(]|model_validate_json|tomllib\.loads?\("
    r"|JSONDecoder|struct\.unpack|(?m:^[A-Z_]+: Dialect\[)"
)
"""What a module that reads a format has in it."""

FUZZED: Final[Mapping[str, str]] = {
    "schemas/codec/plain.py": "records",
    "trinity_bus/chat/formats.py": "tool calls of models",
    "trinity_bus/chat/messages.py": "requests to gateways",
    "trinity_bus/chat/openai.py": "requests to gateways",
    "trinity_bus/chat/responses.py": "requests to gateways",
    "trinity_bus/coordination/state/codec.py": "state of coordinators",
    "trinity_bus/chat/wire.py": "frames for gateways",
    "trinity_bus/inference/server/client.py": "answers of servers",
    "trinity_bus/runners/control.py": "datagrams of a fork server",
    "trinity_bus/runners/messages.py": "frames of runners",
    "trinity_bus/runners/service.py": "frames of runners",
    "trinity_bus/runtime/frames.py": "pieces of frames",
    "trinity_bus/training/checkpoint/manifest.py": "manifests of checkpoints",
    "trinity_bus/training/checkpoint/mirror.py": "indexes of checkpoints",
    "trinity_bus/weights/layout.py": "manifests of weights",
    "trinity_bus/weights/tensor_file.py": "tensor files",
    "trinity_bus/weights/channel.py": "requests for weights",
    "workers/coordinator/outputs.py": "positions",
    "workers/explorer/http_side.py": "asks of explorers",
    "workers/gateway/contributions.py": "feedback for gateways",
}

ELSEWHERE: Final[Mapping[str, str]] = {
    "schemas/message.py": "tests/unit/schemas/test_messages.py",
    "trinity_bus/bus/read/batches.py": "tests/unit/bus/test_batches.py",
    "trinity_bus/bus/read/wire_format.py": "tests/unit/bus/test_batches.py",
    "workers/task_lines.py": "tests/unit/task_lines",
    "workers/taskset/columns_main.py": "tests/attacks/test_50_damaged_data_sets.py",
    "workers/taskset/rows.py": "tests/attacks/test_50_damaged_data_sets.py",
}
"""Damaged by tests of their own."""

TRUSTED: Final[Mapping[str, str]] = {
    "trinity_bus/broker/": "the embedded broker of this user, and its file",
    "trinity_bus/chat/encoding.py": "the user's model",
    "trinity_bus/config/": "the user's own settings",
    "trinity_bus/console/index/": "columns of the console's own database",
    "trinity_bus/inference/launch.py": "the user's model",
    "trinity_bus/inference/server/engine.py": "the user's model",
    "trinity_bus/rollout/": "within a runner, which may fail: what it answers is damaged as answers of runners",
    "trinity_bus/runners/fork_server.py": "the user's own Python, asked for its version",
    "trinity_bus/runners/runner_main.py": "within a runner, and said by its explorer",
    "trinity_bus/runtime/preload.py": "between a process and those that it has forked",
    "trinity_bus/sandbox/jail.py": "said by the process that has started it",
    "trinity_bus/telemetry/": "spans that the user asks to be shown",
    "trinity_bus/testing.py": "what a workflow under test says",
    "trinity_bus/tracking/": "the ledger of the same program",
    "trinity_bus/training/families.py": "the user's model",
    "trinity_bus/training/tensors.py": "the user's model",
    "trinity_bus/hub.py": "the user's model",
    "trinity_bus/training/checkpoint/notes.py": "notes of the same trainer, in the folder that it holds",
    "trinity_bus/training/checkpoint/writing.py": "the user's model",
    "trinity_bus/training/checkpoint/listing.py": "progress.json, of which any error means that all is needed",
    "trinity_bus/training/ranks/": "between the ranks of one trainer",
    "trinity_bus/weights/staging.py": "a checkpoint of the same trainer, in the folder that it holds",
    "trinity_bus/weights/vllm/control.py": "between an engine and its workers",
    "workers/cli/workflow.py": "what its user has typed",
    "workers/console/actions.py": "shown as text, whatever it is; a test shows hostile ones",
    "workers/console/draft.py": "shown back to who has written it; tomllib's errors are taken",
    "workers/gateway/request_run.py": "messages that it has written itself",
    "workers/harbor.py": "its own file, in a folder of this user",
    "workers/up.py": "its own file, in a folder of this user",
}
"""By the beginning of the path."""
