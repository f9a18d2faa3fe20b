"""Sandboxes: run a model's code with limits and without a network."""

from trinity_bus.sandbox.place import KeptPlaces, SandboxPlace
from trinity_bus.sandbox.sandbox import Sandbox, SandboxError, SandboxLimits, why_no_sandbox

__all__ = [
    "KeptPlaces",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxPlace",
    "why_no_sandbox",
]
