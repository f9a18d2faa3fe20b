"""One command, run to its end or its limit, with what it has printed, as far as that is kept.

::

    execute --> RUNNING --ended----------------------------------------> its pipes are read to their ends --> Executed
                   '----too late, or the caller is cancelled--> stop --'

What is run brings its own means to end all that it has started; the signal ``stop`` sets them off.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trinity_bus import awake
from trinity_bus.runtime import guard

type Process = asyncio.subprocess.Process

# Has a guard kill its command, and all that this has started, in whatever sessions.
STOP_FAMILY: Final = signal.SIGUSR2
_PIECE: Final = 1 << 16
_STOP_S: Final = 10.0  # how long what was stopped may take to be gone, before its first process is killed


@dataclass(frozen=True, slots=True)
class Executed:
    returncode: int  # 128 and the signal's number where one has killed it; -1 where it took too long
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool  # whether it has printed more than is kept


def kill(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


@contextlib.asynccontextmanager
async def guarded(command: Sequence[str]) -> AsyncIterator[tuple[list[str], tuple[int, ...]]]:
    """Provide a command line that runs this one under a guard (``runtime.guard``), and descriptors that it keeps."""
    # So nothing of it outlives it, or this process; ``STOP_FAMILY`` stops it.
    # It would tell the command's process id, which nobody needs.
    report = os.open(os.devnull, os.O_WRONLY)
    try:
        yield [sys.executable, "-I", "-S", str(guard.__file__), str(os.getpid()), str(report), *command], (report,)
    finally:
        os.close(report)


async def execute(
    command: Sequence[str],
    *,
    stdin: bytes,
    wall_s: float,
    output_bytes: int,
    env: Mapping[str, str],
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    stop: signal.Signals = signal.SIGKILL,
    running: set[Process] | None = None,
) -> Executed:
    """Run a command, and wait for its end; OSError where it cannot be started. No shell is involved.

    ``stdin`` is what it reads, and ``env`` its whole environment. It may take ``wall_s`` seconds; ``output_bytes`` are
    kept of its standard output, and of its standard error. While it runs it is noted in ``running``.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    running = set() if running is None else running
    running.add(process)
    assert process.stdout is not None  # noqa: S101 - for types
    assert process.stderr is not None  # noqa: S101 - likewise
    timed_out = False
    output, errors = bytearray(), bytearray()
    talk = asyncio.gather(
        _tell(process, stdin),
        _keep(process.stdout, output, output_bytes),
        _keep(process.stderr, errors, output_bytes),
    )
    try:
        async with awake.timeout(wall_s):
            await asyncio.shield(talk)
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        code = await ended(process, stop)
        running.discard(process)
        try:
            # Its processes are dead, and so its pipes are at their ends; unless one has got away.
            async with awake.timeout(_STOP_S):
                _, more_output, more_errors = await talk
        except TimeoutError:
            more_output = more_errors = True
    return Executed(
        -1 if timed_out else code if code >= 0 else 128 - code,
        output.decode(errors="replace"),
        errors.decode(errors="replace"),
        timed_out,
        more_output or more_errors,
    )


async def ended(process: Process, stop: signal.Signals) -> int:
    """Stop a command where it still runs, and return how it ended, as ``asyncio`` tells it."""
    if process.returncode is None:
        kill(process, stop)
        try:
            async with awake.timeout(_STOP_S):
                return await process.wait()
        except TimeoutError:
            kill(process)
    return await process.wait()


async def _tell(process: Process, data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - for types
    # A command need not read what it is given.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _keep(stream: asyncio.StreamReader, kept: bytearray, limit: int) -> bool:
    # The beginning of what a stream says, which is read to its end; whether there was more.
    more = False
    while piece := await stream.read(_PIECE):
        more = more or len(kept) + len(piece) > limit
        kept += piece[: limit - len(kept)]
    return more
