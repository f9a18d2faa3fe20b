"""What a mesh needs of the machines that it is given, from a model's shape and the settings alone. Pure."""

from trinity_bus.sizing.hardware import Hardware, spread
from trinity_bus.sizing.memory import GIB, MemoryItem, MemoryNeed, explorer_memory, trainer_memory
from trinity_bus.sizing.parameters import adapter_parameters, parameters, rank_parameters

__all__ = [
    "GIB",
    "Hardware",
    "MemoryItem",
    "MemoryNeed",
    "adapter_parameters",
    "explorer_memory",
    "parameters",
    "rank_parameters",
    "spread",
    "trainer_memory",
]
