"""What a trainer takes of memory, step by step, beside what the formula says that it takes.

The formula (``trinity_bus/sizing/memory.py``) chooses micro-batches, refuses what does not fit, and is what ``size``
and the console tell; here it is held against the peaks of processes on a CPU, with default settings, both engines:

* demo: the shape of the demo's model and batch, 0.3 M parameters;
* ragged: 15 M parameters, samples of 16 to 368 tokens;
* SmolLM2: 135 M parameters and a vocabulary of 49,152, 8 tasks of 8 samples of 48 to 72 tokens, other ones in each
  step; left out where ``tools/smollm2.sh`` has not made it.

Each step is published as by the service: a checkpoint is written beside the next step, and its version is staged and
read once, as an explorer would. The peak is the kernel's, of the process and with the libraries that it has mapped; it
is reset behind each step, so that what grows from step to step shows.

``--allocators`` compares what the C library may do with freed memory: glibc's own ways, all kept, blocks from a size
on given back at once, and what is free given back behind each step. Peaks, page faults and processor seconds decide.
"""

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks._options import parser, real_model
from benchmarks._report import Row, report
from benchmarks._workload import DEMO, SMOLLM2
from benchmarks.training import WORKLOADS, make_groups, make_model
from trinity_bus.config import TrainerSettings
from trinity_bus.sizing.memory import trainer_need

OFF_GOAL: Final = 0.2
"""Of the measured peak, that the formula may be off."""
PEAK_GOAL_MIB: Final = 3584
"""Of SmolLM2's trainer."""
GROWTH_GOAL: Final = 0.03
"""Of the second step's peak, that the last one's may be above it."""
ENGINES: Final = ("megatron", "torch")
ALLOCATORS: Final = ("as the module has it", "glibc's own", "all kept", "1 MiB")
_THREADS: Final = 2
_MIB: Final = 1 << 20


def peak_mib() -> float:
    """Return this process's peak since the last call, and begin anew."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak


def allocate(way: str) -> None:
    """Have the C library handle freed memory in one of ``ALLOCATORS``, whatever the engine asks of it."""
    from trinity_bus.training import rank_engine

    if way == ALLOCATORS[0]:
        return
    libc = ctypes.CDLL(None)
    limits = {"all kept": (2**31 - 1, 2**31 - 1), "1 MiB": (1 << 20, 64 << 20)}
    if way in limits:
        for name, value in zip((-3, -1), limits[way], strict=True):
            libc.mallopt(name, value)
    vars(rank_engine)["give_back_memory"] = lambda: None


def run(engine: str, folder: Path, steps: int, allocator: str, load: str) -> dict[str, Any]:
    """Train in this process, in a thread as the service does; what was measured."""
    allocate(allocator)
    torch.set_num_threads(_THREADS)
    if engine == "torch":
        from trinity_bus.training.torch_engine import TorchEngine as Engine
    else:
        from trinity_bus.training.megatron_engine import MegatronEngine as Engine  # type: ignore[assignment]
    from trinity_bus.weights.pull.server import WeightServer

    workload = next(one for one in (*WORKLOADS, SMOLLM2) if one.name == load)
    settings = TrainerSettings(
        model_path=str(folder),
        learning_rate=1e-6,
        mini_batches=workload.updates,
        engine=engine,
    )
    with ThreadPoolExecutor(1) as thread, tempfile.TemporaryDirectory() as kept:
        trainer, server = thread.submit(Engine, settings).result(), WeightServer(bucket_bytes=16 << 20)
        peak_mib()
        peaks, faults, seconds = [], [], []
        for step in range(steps):
            groups = make_groups(workload, step if workload is SMOLLM2 else 0)
            began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            thread.submit(trainer.train_step, groups).result()
            seconds.append(time.process_time() - began)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
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
    return {
        "peaks": peaks,
        "faults": sum(faults[1:]) / max(1, len(faults) - 1),
        "seconds": sum(seconds[1:]) / max(1, len(seconds) - 1),
        "formula": need.total / _MIB,
        "weights": need.items[1].size / _MIB,
    }


def measured(*arguments: object) -> dict[str, Any]:
    """Return what :func:`run` tells, of a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--of", *map(str, arguments)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # this very program
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def rows_of(load: str, folder: Path, steps: int) -> list[Row]:
    """Measure both engines."""
    rows = []
    for engine in ENGINES:
        told, what = measured(engine, folder, steps, ALLOCATORS[0], load), f"{load}, {engine}"
        peak, second = max(told["peaks"]), told["peaks"][min(1, steps - 1)]
        goal = PEAK_GOAL_MIB if load == SMOLLM2.name and engine == "megatron" else None
        growth = told["peaks"][-1] / second - 1
        rows += [
            Row(f"{what}: peak", peak, "MiB", goal=goal, better="lower"),
            Row(f"{what}: the formula", told["formula"], "MiB", better="lower"),
            Row(f"{what}: the formula is off by", abs(told["formula"] / peak - 1), "", goal=OFF_GOAL, better="lower"),
            Row(f"{what}: the last step's peak above the second's", growth, "", goal=GROWTH_GOAL, better="lower"),
        ]
    return rows


def allocators(load: str, folder: Path, steps: int) -> list[Row]:
    """Compare what becomes of freed memory."""
    rows = []
    for way in ALLOCATORS:
        told = measured("megatron", folder, steps, way, load)
        rows += [
            Row(f"{load}, {way}: peak", max(told["peaks"]), "MiB", better="lower"),
            Row(f"{load}, {way}: page faults of a step", told["faults"], "", better="lower"),
            Row(f"{load}, {way}: a step", told["seconds"], "CPU s", better="lower"),
        ]
    return rows


def main() -> None:
    """Measure all models."""
    made = parser(__doc__)
    made.add_argument("--steps", type=int, default=8, help="of each")
    made.add_argument("--allocators", action="store_true", help="compare ways to handle freed memory in place of it")
    made.add_argument("--of", nargs=5, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.of:
        engine, folder, steps, allocator, load = options.of
        print(json.dumps(run(engine, Path(folder), int(steps), allocator, load)))
        return
    steps = 2 if options.short else options.steps
    loads: Sequence[Any] = [DEMO] if options.short else [DEMO, WORKLOADS[2]]
    measure = allocators if options.allocators else rows_of
    rows = []
    for load in loads:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(load.name, make_model(load, Path(folder)), steps)
    if not options.short and (model := real_model()) is not None:
        rows += measure(SMOLLM2.name, model, steps)
    name = "allocators" if options.allocators else "memory"
    report(name, "a trainer's memory on a CPU, float32", rows, options)


if __name__ == "__main__":
    main()
