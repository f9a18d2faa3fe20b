"""A sandbox whose commands run in containers: of an image, with what a model's programs need, where Docker is.

Files, limits and interface are those of :class:`Sandbox`, and so is what each command finds: a container of its own
without a network, all of it read-only but the sandbox's folder, which is ``/sandbox`` there. Nothing is downloaded.

::

    docker run ... sh: a lifeline that reads standard input to its end, then kills all | the command
                                      ^
            this process, for as long as the command may take

So a container ends with its command, at its limit, and with whoever has started it. A command that stops its lifeline
is killed at its limit all the same (``docker kill``). A Docker that does not answer that within ``_KILL_S`` is not
waited for any longer: its container is named in the log, and left to whoever mends Docker.

Failures: where there is no Docker, none that answers, or not this image, it is a ``SandboxError``, and nothing is run.
"""

import asyncio
import logging
import os
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trinity_bus import awake
from trinity_bus.runtime.execution import Executed, Process, execute, kill
from trinity_bus.sandbox.sandbox import Sandbox, SandboxError, SandboxLimits

_FOLDER: Final = "/sandbox"
_INPUT: Final = "/input"
# The first process of a container cannot be killed from within: so the shell stays, and ends with its command.
_LIFELINE: Final = 'exec 3<&0; (cat <&3 >/dev/null; kill -KILL -1) & "$@" <"$0" 3<&-; exit $?'
_REFUSED: Final = 125
_KILL_S: Final = 10.0  # how long Docker may take to kill

log = logging.getLogger(__name__)


class ContainerSandbox(Sandbox):
    """A folder and what runs in it, in containers. An async context manager.

    Args:
        image: That this machine has, with a shell and ``cat``.
        limits: Of each command; Docker's own time counts, and memory and processes are of all of it together.
        docker: The program.
    """

    def __init__(self, image: str, limits: SandboxLimits | None = None, *, docker: str = "docker") -> None:
        super().__init__(limits)
        self._image = image
        self._docker = docker
        self._containers: set[str] = set()

    async def terminate(self) -> None:
        try:
            await self._kill(*self._containers)
        finally:
            await super().terminate()

    async def _run(self, command: Sequence[str], stdin: bytes, wall_s: float) -> Executed:
        folder, name = self.folder, f"sandbox-{uuid.uuid4().hex}"

        async def stop(process: Process) -> None:
            if process.stdin is not None:
                process.stdin.close()
            await self._kill(name)

        with tempfile.TemporaryDirectory(prefix=f"{name}-") as own:
            data, made = Path(own) / "input", Path(own) / "container"
            data.write_bytes(stdin)
            self._containers.add(name)
            try:
                done = await execute(
                    [
                        *(self._docker, "run", f"--name={name}", f"--cidfile={made}", *self._options()),
                        *(f"--volume={folder}:{_FOLDER}", f"--volume={data}:{_INPUT}:ro", "--entrypoint=sh"),
                        *(self._image, "-c", _LIFELINE, _INPUT, *command),
                    ],
                    stdin=None,
                    wall_s=wall_s,
                    output_bytes=self._limits.output_bytes,
                    env=os.environ,
                    stop=stop,
                    running=self._running,
                )
            except OSError as error:
                raise SandboxError(f"{self._docker} cannot be run: {error.strerror}; containers need Docker") from error
            finally:
                self._containers.discard(name)
            if done.returncode == _REFUSED and not made.exists():
                raise SandboxError(f"no container can be had here: {done.stderr.strip()}")
        return done

    def _options(self) -> list[str]:
        limits = self._limits
        return [
            *("--rm", "--interactive", "--pull=never", "--network=none", "--read-only", f"--workdir={_FOLDER}"),
            *("--cap-drop=ALL", "--security-opt=no-new-privileges", f"--user={os.getuid()}:{os.getgid()}"),
            *(f"--env=HOME={_FOLDER}", f"--env=TMPDIR={_FOLDER}", "--env=LANG=C.UTF-8"),
            *(f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}"),
            # The shell and its lifeline are two more.
            *(f"--pids-limit={limits.processes + 3}", f"--ulimit=cpu={limits.cpu_s}", "--ulimit=core=0"),
            *(f"--ulimit=fsize={limits.file_bytes}", f"--ulimit=nofile={limits.open_files}"),
        ]

    async def _kill(self, *names: str) -> None:
        if not names:
            return
        # One that has ended meanwhile is no container any more, which it says and nobody needs to know.
        nowhere = asyncio.subprocess.DEVNULL
        killing = await asyncio.create_subprocess_exec(
            self._docker, "kill", *names, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        try:
            async with awake.timeout(_KILL_S):
                await killing.wait()
        except TimeoutError:
            log.warning(
                "%s kill does not answer for %g s; it may have left %s", self._docker, _KILL_S, ", ".join(names)
            )
        finally:
            if killing.returncode is None:
                await kill(killing)
                await killing.wait()
