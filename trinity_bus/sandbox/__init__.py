"""Sandboxes: where what a model has written is run, with limits and without a network.

``sandbox``  a folder, and commands that run in it
``jail``     what stands before each command: namespaces and limits; a program of its own
"""

from trinity_bus.sandbox.sandbox import Executed, Limits, Sandbox, SandboxError

__all__ = ["Executed", "Limits", "Sandbox", "SandboxError"]
