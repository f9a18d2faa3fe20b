"""The model families that can be trained; ``tensors`` knows how their weights lie in folders and in Megatron."""

from trinity_bus.training.families.family import FAMILIES, read_shape
from trinity_bus.training.families.shape import ModelShape

__all__ = ["FAMILIES", "ModelShape", "read_shape"]
