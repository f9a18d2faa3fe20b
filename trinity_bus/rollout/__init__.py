"""Rollouts: how a workflow turns a task into samples with rewards.

A *workflow* is code, found by name in a registry, that turns one task into one ``Rollout`` per run. It sees token ids
and an engine to ask for more; text exists only at its edges. Nothing here imports torch or vLLM.
"""

from schemas.experience import Rollout
from trinity_bus.chat import Completion, Tokenizer
from trinity_bus.rollout import workflows
from trinity_bus.rollout.conversations import Conversation, ToolWorkflow
from trinity_bus.rollout.registry import REGISTRY, UnknownWorkflow, get_workflow, register
from trinity_bus.rollout.single_runs import Reusable, SingleRunWorkflow, reused
from trinity_bus.rollout.tools import ToolError, ToolTimeoutError
from trinity_bus.rollout.workflow import (
    Engine,
    PartialRunsError,
    Pools,
    RolloutContext,
    RunState,
    Workflow,
    WorkflowError,
    merge_sampling,
    prompt_tokens,
)
from trinity_bus.rollout.workflows import Answered

__all__ = [
    "REGISTRY",
    "Answered",
    "Completion",
    "Conversation",
    "Engine",
    "PartialRunsError",
    "Pools",
    "Reusable",
    "Rollout",
    "RolloutContext",
    "RunState",
    "SingleRunWorkflow",
    "Tokenizer",
    "ToolError",
    "ToolTimeoutError",
    "ToolWorkflow",
    "UnknownWorkflow",
    "Workflow",
    "WorkflowError",
    "get_workflow",
    "merge_sampling",
    "prompt_tokens",
    "register",
    "reused",
    "workflows",
]
