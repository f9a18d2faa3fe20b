"""A folder and processes for what a model has written: limits that the kernel keeps, and no network.

::

    OPEN --exec, read_file, write_file, any number, several at once--> OPEN
      '---terminate(), or leaving its block--> ENDED: its processes killed, its folder gone, or kept for the next owner

Each command has user, process, mount, network and IPC namespaces of its own and a filter of system calls (``jail``), an
environment of four variables, and the sandbox's folder as working folder, home and place of temporary files: it writes
nowhere else. What it is not kept from: files that its user may read, and named pipes. So run runners as a user of their
own (``explorer.runner_user``). It lives as long as its block, and so through scoring; its files are in a
``SandboxPlace``, which outlives its owner where that is a run to be gone on with.

Failures: a command that takes too long, or with all that it has started more than its limits, is killed with them, and
says so; a folder that is too full already ends each next command likewise; what it prints beyond the
limit is dropped, and it says so; a machine that gives no namespaces is a ``SandboxError``, and nothing is run. One that
is killed from outside takes its processes along.
"""

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Self

from trinity_bus.errors import TrinityError
from trinity_bus.runtime.execution import Executed, Process, execute, kill
from trinity_bus.sandbox import jail
from trinity_bus.sandbox.place import LeftPlaces, SandboxPlace

_JAIL: Final = str(jail.__file__)
_LEFT: Final = LeftPlaces()


class SandboxError(TrinityError, RuntimeError):
    """A sandbox cannot be had, is over, or is asked for a file outside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What each command of a sandbox may use."""

    wall_s: float = 10.0
    cpu_s: int = 10  # of each process
    memory_bytes: int = 1 << 30  # address space of each process, and memory of all of them together
    file_bytes: int = 64 << 20  # of each file, and of all in ``/dev/shm`` together
    # Of all files in the folder together, and of those that were removed and are open.
    folder_bytes: int = 256 << 20
    folder_files: int = 20_000  # and folders
    open_files: int = 256
    processes: int = 64  # and threads, of all of it together
    output_bytes: int = 1 << 20  # of standard output and of standard error


class Sandbox:
    """A folder and what runs in it. An async context manager."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self._limits = limits or SandboxLimits()
        self._running: set[Process] = set()
        self._place: SandboxPlace | None = None
        self._over = False

    def take(self, place: SandboxPlace) -> None:
        """Have one's files in this place, which is released at the end. Before anything else."""
        self._place = place

    @property
    def folder(self) -> Path:
        """Where its files are; SandboxError where it is over."""
        if self._over:
            raise SandboxError("the sandbox is over")
        if self._place is None:
            self._place = SandboxPlace.make()
        return self._place.files

    async def exec(self, command: Sequence[str], *, stdin: str | bytes = b"", wall_s: float | None = None) -> Executed:
        """Run a command, and wait for its end; no shell is involved. ``wall_s``: less than the sandbox's limit.

        SandboxError: it is over, or this machine gives no namespaces.
        """
        folder = self.folder
        done = await execute(
            [sys.executable, "-I", "-S", _JAIL, json.dumps(asdict(self._limits)), *command],
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            wall_s=min(wall_s or self._limits.wall_s, self._limits.wall_s),
            output_bytes=self._limits.output_bytes,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "LANG": "C.UTF-8",
            },
            cwd=folder,
            running=self._running,
        )
        if done.returncode == jail.REFUSED and done.stderr.startswith("no namespaces"):
            raise SandboxError(
                f"{done.stderr.strip()}; a sandbox needs user namespaces (a machine: sysctl user.max_user_namespaces, "
                "kernel.apparmor_restrict_unprivileged_userns; a container: its seccomp profile, docs/security.md)"
            )
        return done

    async def write_file(self, path: str, data: str | bytes) -> None:
        """Write a file, and the folders that it lies in.

        SandboxError: the path leads out of the folder, or over a link, or there is something that is no file.
        """
        raw = data.encode() if isinstance(data, str) else data
        with self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            await asyncio.to_thread(_write_all, file, raw)

    async def read_file(self, path: str, *, limit_bytes: int = 1 << 20) -> bytes:
        """Return at most so much of the beginning of a file; raises as ``write_file``, or where there is none."""
        with self._opened(path, os.O_RDONLY) as file:
            return await asyncio.to_thread(os.read, file, limit_bytes)

    async def terminate(self) -> None:
        """Kill what runs, and let go of the folder. Safe to call twice."""
        place, self._place, self._over = self._place, None, True
        try:
            for process in tuple(self._running):
                kill(process)
        finally:
            if place is not None:
                # Whoever is cancelled here does not wait for it; let go of it is in any case.
                await asyncio.shield(asyncio.to_thread(place.release))

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(_LEFT.remove)
        except BaseException:
            # Its block is never left, because it is not entered.
            await self.terminate()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.terminate()

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        """Open a file without following a link: what runs in the sandbox may change its folder meanwhile."""
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise SandboxError(f"{path!r} is no path below the sandbox's folder")
        with contextlib.ExitStack() as stack:
            try:
                at = os.open(self.folder, os.O_DIRECTORY)
                stack.callback(os.close, at)
                for part in parts[:-1]:
                    if flags & os.O_CREAT:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o755, dir_fd=at)
                    at = os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                    stack.callback(os.close, at)
                file = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=at)
                stack.callback(os.close, file)
            except OSError as error:
                raise SandboxError(f"{path!r} cannot be opened: {error.strerror}") from error
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise SandboxError(f"{path!r} is no file")
            yield file


async def why_no_sandbox() -> str | None:
    """Return why this machine gives no sandbox, in one line; None where it does."""
    try:
        async with Sandbox() as box:
            await box.exec(["true"])
    except (SandboxError, OSError) as error:
        return str(error)
    return None


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
