"""Rollouts: how a workflow turns a task into samples with rewards.

A *workflow* is code, found by name in a registry, that turns one task into one ``Rollout`` per run. It sees token ids
and an engine to ask for more; text exists only at its edges. Nothing here imports torch or vLLM.
"""

# Registers the workflows that come with the project.
from trinity_bus.rollout import workflows as workflows
