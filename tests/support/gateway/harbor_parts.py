"""Classes that Harbor loads by their import path: a FAKE sandbox, and an agent that works in it.

The sandbox runs commands on this machine, in a folder that stands for the root of a container: no image, no isolation.
``fails`` says where it fails, or hangs, and ``once`` in which folder a file says that it has done so already.
"""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult

ROOTS = ("/logs", "/tests", "/app")
# Asks the model once, with what its environment says of it, and writes the answer down.
PROGRAM = """
import json, os, pathlib, urllib.request
body = {"model": "policy", "messages": [{"role": "user", "content": os.environ["INSTRUCTION"]}]}
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
said = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
pathlib.Path("/app/answer").write_text(said)
"""


class FakeSandbox(BaseEnvironment):
    def __init__(self, *args: Any, fails: str = "", once: str = "", **kwargs: Any) -> None:
        self._fails = "" if once and Path(once, "failed").exists() else fails
        self._once = once
        super().__init__(*args, **kwargs)
        self._root = self.trial_paths.trial_dir / "root"

    @staticmethod
    def type() -> str:
        return "fake"

    def _validate_definition(self) -> None:
        pass

    def _inside(self, text: str) -> str:
        for root in ROOTS:
            text = text.replace(root, f"{self._root.resolve()}{root}")
        return text

    async def start(self, force_build: bool) -> None:
        del force_build
        if self._once:
            Path(self._once, "failed").touch()
        if self._fails == "start":
            raise RuntimeError("there is no sandbox today")
        for folder in ("logs/agent", "logs/verifier", "logs/artifacts", "tests", "app"):
            (self._root / folder).mkdir(parents=True)

    async def stop(self, delete: bool) -> None:
        del delete
        shutil.rmtree(self._root, ignore_errors=True)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        shutil.copy(source_path, self._inside(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        copied = Path(shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True))
        for script in copied.glob("*.sh"):
            script.write_text(self._inside(script.read_text()))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        del cwd, timeout_sec, user
        if self._fails == "agent" and "OPENAI" in command:
            await asyncio.sleep(3600)
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            self._inside(command),
            cwd=self._root / "app",
            env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", **(self._merge_env(env) or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)


class AskingAgent(BaseAgent):
    """Runs a program in the sandbox that asks the model with the instruction; ``silent``: not; ``breaks``: fails.

    Its trajectory is ``fifo``: a FIFO; ``sparse``: more than fits into memory.
    """

    def __init__(self, *args: Any, how: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._how = how

    @staticmethod
    def name() -> str:
        return "asking"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: Any) -> None:
        del context
        trajectory = self.logs_dir / "trajectory.json"
        if self._how == "fifo":
            os.mkfifo(trajectory)
        elif self._how == "sparse":
            trajectory.touch()
            os.truncate(trajectory, (4 << 30) - 1)
        if trajectory.exists():
            # As Harbor and its agents do.
            trajectory.read_text()
        if self._how != "silent":
            done = await environment.exec(f"python3 - <<'END'\n{PROGRAM}\nEND", env={"INSTRUCTION": instruction})
            if done.return_code != 0 or self._how == "breaks":
                raise RuntimeError(f"the program has ended with {done.return_code}: {done.stderr}")
