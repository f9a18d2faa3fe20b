"""What a trainer and an engine take of memory, step by step, beside what the formula says that they take.

The formula (``trinity_bus/sizing/memory.py``) chooses micro-batches, refuses what does not fit, and is what ``size``
and the console tell; here it is held against the peaks of processes on a CPU, with default settings, both engines:

* demo: the shape of the demo's model and batch, 0.3 M parameters;
* ragged: 15 M parameters, samples of 16 to 368 tokens;
* SmolLM2: 135 M parameters and a vocabulary of 49,152, 8 tasks of 8 samples of 48 to 72 tokens, other ones in each
  step; left out where ``tools/smollm2.sh`` has not made it.

Each step is published as by the service: a checkpoint is written beside the next step, and its version is staged and
read once, as an explorer would. The peak is the kernel's, of the process and with the libraries that it has mapped; it
is reset behind each step, so that what grows from step to step shows.

An engine draws as many sequences at once as it may, takes a version, draws again, and so on. Its processes share pages:
the peak is of their proportional shares, as they are found every tenth of a second.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import torch
from safetensors.torch import load_file, save_file

from benchmarks._demos import held_bytes
from benchmarks._options import parser, real_model
from benchmarks._records import announce
from benchmarks._report import Row, less, report
from benchmarks._tiny_model import write_tokenizer
from benchmarks._workload import DEMO, SMOLLM2
from benchmarks.training import WORKLOADS, make_groups, make_model
from schemas import Sampling
from trinity_bus.config import TrainerSettings
from trinity_bus.config.sections import Sections
from trinity_bus.sizing.memory import explorer_memory, trainer_need
from trinity_bus.training.families import read_shape

OFF_GOAL: Final = 0.2
"""Of the measured peak, that the formula may be off."""
PEAK_GOAL_MIB: Final = 3584
GROWTH_GOAL: Final = 0.03
"""Of the second step's peak, that the last one's may be above it."""
ENGINES: Final = ("megatron", "torch")
EXPLORER: Final = "vLLM"
_LENGTH, _DRAWN, _SEQUENCES, _GROUP = 128, 12, 128, 8
"""Tokens of what it draws and of the answers among them, sequences at once, answers of a prompt."""
_LOOK_S: Final = 0.1
STEPS: Final = 8
_THREADS: Final = 2
_MIB: Final = 1 << 20


def peak_mib() -> float:
    """Return this process's peak since the last call, and begin anew."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak


def run(engine: str, folder: Path, steps: int, load: str) -> dict[str, Any]:
    torch.set_num_threads(_THREADS)
    if engine == "torch":
        from trinity_bus.training.engines.torch_engine import TorchEngine as Engine
    else:
        from trinity_bus.training.engines.megatron_engine import MegatronEngine as Engine  # type: ignore[assignment]
    from trinity_bus.weights.pull.server import WeightServer

    workload = next(one for one in (*WORKLOADS, SMOLLM2) if one.name == load)
    settings = TrainerSettings(model_path=str(folder), learning_rate=1e-6, mini_batches=workload.updates, engine=engine)
    with ThreadPoolExecutor(1) as thread, tempfile.TemporaryDirectory() as kept:
        trainer, server = thread.submit(Engine, settings).result(), WeightServer(bucket_bytes=16 << 20)
        peak_mib()
        peaks = []
        for step in range(steps):
            groups = make_groups(workload, step if workload is SMOLLM2 else 0)
            thread.submit(trainer.train_step, groups).result()
            version = trainer.progress.version
            written = thread.submit(trainer.save_checkpoint, Path(kept), trainer.progress).result()
            to = Path(kept) / f"step-{version:08d}"
            checksum = thread.submit(server.stage, version, trainer.hf_tensors(), to).result()
            written.result()
            server.durable(version)
            with server.staging.lease(version, checksum) as staged:
                for bucket in staged.buffers:
                    bucket[:]
            peaks.append(peak_mib())
        trainer.leave()
        server.close()
    # No micro-batch has more tokens than an update.
    most = sum(len(group.tokens) for group in groups) // settings.mini_batches
    budget = trainer.settings.micro_batch_tokens
    assert budget != "auto"
    told = settings.model_copy(update={"micro_batch_tokens": min(budget, most)})
    need = trainer_need(trainer.shape, told, None, 1)
    return {"peaks": peaks, "formula": need.total / _MIB}


class SharedPeak:
    """The most that this process and its children take of memory at once, each page divided among those who have it."""

    def __init__(self) -> None:
        self._most = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        own = psutil.Process()
        while not self._over.wait(_LOOK_S):
            together = sum(map(held_bytes, [own, *own.children(recursive=True)]))
            self._most = max(self._most, together / _MIB)

    def take(self) -> float:
        most, self._most = self._most, 0.0
        return most

    def end(self) -> None:
        self._over.set()


async def draw(folder: Path, steps: int) -> dict[str, Any]:
    from trinity_bus.inference.engine import InferenceEngine
    from trinity_bus.weights.pull.server import WeightServer

    shape = read_shape(folder)
    settings = Sections(
        mesh={"model_path": str(folder), "max_model_len": _LENGTH, "max_tokens": _DRAWN},
        explorer={"cpu_kvcache_gib": 0.5, "max_num_seqs": _SEQUENCES},
    )
    peak, engine = SharedPeak(), InferenceEngine(settings.explorer)
    server, peaks = WeightServer(bucket_bytes=16 << 20), []
    how, rng = Sampling(max_tokens=_DRAWN, ignore_eos=True), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as kept:
        for version in range(steps):
            tensors = load_file(folder / "model.safetensors")
            next(iter(tensors.values())).flatten()[0] += version
            (to := Path(kept) / str(version)).mkdir()
            save_file(tensors, to / "model.safetensors")
            checksum = server.stage(version, ((name, value) for name, value in tensors.items()), to)
            server.durable(version)
            del tensors
            peak.take()
            if version == 0:
                await engine.start()
            prompts = rng.integers(0, shape.vocabulary, (_SEQUENCES // _GROUP, _LENGTH - _DRAWN)).tolist()
            await asyncio.gather(*(engine.generate(prompt, how, _GROUP) for prompt in prompts))
            announced = announce(version, checksum, server.address, "memory", "explorer-0", epoch=version)
            server.admit(announced)
            await engine.sync_weights(announced, announced.members[0])
            peaks.append(peak.take())
        await engine.stop()
    peak.end()
    server.close()
    return {"peaks": peaks, "formula": explorer_memory(shape, settings, None).total / _MIB}


def measured(*arguments: object) -> dict[str, Any]:
    """Return what :func:`run` or :func:`draw` tells, of a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--of", *map(str, arguments)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # this very program
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def rows_of(load: str, folder: Path, steps: int) -> list[Row]:
    rows = []
    for engine in (*ENGINES, EXPLORER):
        told, what = measured(engine, folder, steps, load), f"{load}, {engine}"
        peak, second = max(told["peaks"]), told["peaks"][min(1, steps - 1)]
        goal = PEAK_GOAL_MIB if load == SMOLLM2.name and engine == "megatron" else None
        growth = told["peaks"][-1] / second - 1
        rows += [
            less(f"{what}: peak", peak, "MiB", goal),
            less(f"{what}: the formula", told["formula"], "MiB"),
            less(f"{what}: the formula is off by", abs(told["formula"] / peak - 1), "", OFF_GOAL),
            less(f"{what}: the last step's peak above the second's", growth, "", GROWTH_GOAL),
        ]
    return rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--of", nargs=4, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.of:
        engine, folder, steps, load = options.of
        if engine == EXPLORER:
            told = asyncio.run(draw(Path(folder), int(steps)))
        else:
            told = run(engine, Path(folder), int(steps), load)
        print(json.dumps(told))
        return
    steps = 2 if options.short else STEPS
    rows = []
    for load in [DEMO] if options.short else [DEMO, WORKLOADS[2]]:
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(model := make_model(load, Path(folder)), load.vocabulary)
            rows += rows_of(load.name, model, steps)
    if not options.short and (real := real_model()) is not None:
        rows += rows_of(SMOLLM2.name, real, steps)
    report("memory", "a trainer's and an engine's memory on a CPU, float32", rows, options)


if __name__ == "__main__":
    main()
