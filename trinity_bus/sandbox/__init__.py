"""Sandboxes: run a model's code with limits and without a network.

``sandbox``    a folder, and commands that run in it
``place``      where that folder is: of one owner at a time, kept for the next attempt at a run
``jail``       what stands before each command: namespaces and limits; a program of its own
``container``  the same folder, and a container for each command, where Docker is
"""

from trinity_bus.runtime.execution import Executed
from trinity_bus.sandbox.container import ContainerSandbox
from trinity_bus.sandbox.place import KeptPlaces, SandboxPlace
from trinity_bus.sandbox.sandbox import Sandbox, SandboxError, SandboxLimits, why_no_sandbox

__all__ = [
    "ContainerSandbox",
    "Executed",
    "KeptPlaces",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxPlace",
    "why_no_sandbox",
]
