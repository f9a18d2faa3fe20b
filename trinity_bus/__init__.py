"""Trinity Bus: every name that users import.

``from trinity_bus import Client, Task`` and so on. Each name is imported from where it lives when it is first asked
for, so that ``import trinity_bus`` costs nothing; none of them imports torch, vLLM or Megatron-core. An engine for the
tests of one's own workflows is in :mod:`trinity_bus.testing`.
"""

from typing import TYPE_CHECKING

from schemas import lazy

if TYPE_CHECKING:
    from schemas import (
        BatchLifecycleState,
        BatchResult,
        ExperienceGroup,
        Message,
        Sample,
        Sampling,
        Task,
        TaskResult,
    )
    from schemas.codec import decode, encode
    from schemas.experience import Rollout
    from trinity_bus.chat import Completion, Session, Tokenizer, renderer_for
    from trinity_bus.client import (
        BatchHandle,
        Client,
        CompletedTaskResult,
        RolloutCoordinator,
        Scheduler,
        Status,
        Synchronizer,
        deserialize_many,
    )
    from trinity_bus.config import Settings
    from trinity_bus.errors import (
        AccessDeniedError,
        BrokerError,
        BrokerUnreachableError,
        BusError,
        ConfigError,
        DecodeError,
        EncodeError,
        NoCoordinatorError,
        NotOwnerError,
        NotStartedError,
        RecordError,
        RecordGoneError,
        RecordTooLargeError,
        RefusedError,
        SchemaError,
        SendError,
        TimedOutError,
        TopicMismatchError,
        TrinityError,
        UnknownBatchError,
    )
    from trinity_bus.rollout import scores
    from trinity_bus.rollout.agents import AgentWorkflow, Endpoint, ProgramWorkflow, agent
    from trinity_bus.rollout.conversations import Conversation, ToolWorkflow
    from trinity_bus.rollout.registry import UnknownWorkflow, register
    from trinity_bus.rollout.rewards import math_reward, sequence_reward
    from trinity_bus.rollout.single_runs import Reusable, SingleRunWorkflow, reused
    from trinity_bus.rollout.text_env import TextEnv, TextEnvWorkflow
    from trinity_bus.rollout.threads import BlockingContext
    from trinity_bus.rollout.tools import ToolError, sandboxed_python
    from trinity_bus.rollout.workflow import (
        Engine,
        PartialRunsError,
        RolloutContext,
        Workflow,
        WorkflowError,
        prompt_tokens,
    )
    from trinity_bus.rollout.workflows import Answered
    from trinity_bus.sandbox import Sandbox, SandboxError, SandboxLimits

# fmt: off
__all__ = [
    "AccessDeniedError", "AgentWorkflow", "Answered", "BatchHandle", "BatchLifecycleState", "BatchResult",
    "BlockingContext", "BrokerError", "BrokerUnreachableError", "BusError", "Client", "CompletedTaskResult",
    "Completion", "ConfigError", "Conversation", "DecodeError", "EncodeError", "Endpoint",
    "Engine", "ExperienceGroup", "Message", "NoCoordinatorError", "NotOwnerError", "NotStartedError",
    "PartialRunsError", "ProgramWorkflow", "RecordError", "RecordGoneError", "RecordTooLargeError", "RefusedError",
    "Reusable", "Rollout", "RolloutContext", "RolloutCoordinator", "Sample", "Sampling", "Sandbox", "SandboxError",
    "SandboxLimits", "Scheduler", "SchemaError", "SendError", "Session", "Settings", "SingleRunWorkflow", "Status",
    "Synchronizer", "Task", "TaskResult", "TextEnv", "TextEnvWorkflow", "TimedOutError", "Tokenizer", "ToolError",
    "ToolWorkflow", "TopicMismatchError", "TrinityError", "UnknownBatchError", "UnknownWorkflow", "Workflow",
    "WorkflowError", "agent", "decode", "deserialize_many", "encode", "math_reward", "prompt_tokens", "register",
    "renderer_for", "reused", "sandboxed_python", "scores", "sequence_reward",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__)
