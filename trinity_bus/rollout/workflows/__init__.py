"""The workflows that come with the project. Importing this package registers them."""

from trinity_bus.rollout.workflows.gym import GymWorkflow
from trinity_bus.rollout.workflows.math import MathWorkflow
from trinity_bus.rollout.workflows.sequence import SequenceWorkflow

__all__ = ["GymWorkflow", "MathWorkflow", "SequenceWorkflow"]
