"""Tools that are ready: a workflow names them, and the run's sandbox is theirs."""

from typing import Final

from trinity_bus.rollout.tools import ToolError
from trinity_bus.sandbox import Sandbox, SandboxError

MAX_SHOWN: Final = 1 << 14  # Characters of what a program prints, and of what it complains of: the last of them
_PROGRAM: Final = "program.py"


async def sandboxed_python(code: str, box: Sandbox) -> str:
    """Run a Python program without a network, and return what it prints. Files that it writes stay for the next one.

    Args:
        code: All of the program.
        box: Of the run.

    Raises:
        ToolError: It took too long, or an earlier one has left the folder so that none can be run in it.
        SandboxError: This machine gives no sandbox.
    """
    try:
        await box.write_file(_PROGRAM, code)
    except SandboxError as error:
        raise ToolError(f"the program cannot be written: {error}") from error
    try:
        done = await box.exec(["python3", _PROGRAM])
    except PermissionError as error:
        raise ToolError(f"the working folder cannot be entered: {error.strerror}") from error
    if done.timed_out:
        raise ToolError("the program took too long, and was killed")
    shown = done.stdout[-MAX_SHOWN:]
    if done.returncode == 0:
        return shown
    return f"{shown}\nit ended with status {done.returncode}: {done.stderr[-MAX_SHOWN:]}".lstrip()
