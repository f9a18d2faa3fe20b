"""The workflows that come with the project. Importing this package registers them."""

from trinity_bus.rollout.workflows.gym import GymWorkflow
from trinity_bus.rollout.workflows.single_turn import MathWorkflow, SequenceWorkflow

__all__ = ["GymWorkflow", "MathWorkflow", "SequenceWorkflow"]
