"""One rank of two: trains the same batches as its sibling in each layout, through a checkpoint; see test_parallel."""

import json
import os
import sys
import warnings
from collections import deque
from pathlib import Path

from schemas import ExperienceGroup
from schemas.codec import decode
from trinity_bus.config import TrainerSettings
from trinity_bus.training import parallel
from trinity_bus.training.engine import TrainingEngine
from trinity_bus.weights.staging import Staging

BUCKET_BYTES = 1 << 12


LAYOUTS = {
    "tp2": "model",
    "dp2": "model",
    "pp2": "model",
    "pp2-tied": "tied",
    "tp2-qwen2": "qwen2",
    "pp2-llama": "llama",
}
"""How two ranks share the work, and the folder of the model."""


def run(folder: Path, name: str, port: str) -> list[dict[str, float]]:
    tensor_parallel, pipeline_parallel = (2 if name.startswith(kind) else 1 for kind in ("tp", "pp"))
    # A port of its own: one rank may still hold the store of the layout before.
    os.environ["MASTER_PORT"] = port
    settings = TrainerSettings(
        model_path=str(folder / LAYOUTS[name]),
        learning_rate=1e-2,
        mini_batches=2,
        micro_batch_tokens=40,
        old_logprobs="recompute",
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        threads=1,
    )
    batches = [
        [decode(path.read_bytes(), ExperienceGroup) for path in sorted(folder.glob(f"batch-{i}-*"))] for i in (0, 1)
    ]
    target = folder / name
    with parallel.initialized(tensor_parallel, pipeline_parallel) as layout:
        first = TrainingEngine(settings, layout)
        metrics = [first.train_step(batches[0])]
        first.save_checkpoint(target / "checkpoints", first.progress)
        second = TrainingEngine(settings, layout)
        second.load_latest(target / "checkpoints")
        metrics.append(second.train_step(batches[1]))
        second.export_hf(target / "hf")
        # Publishing gathers what is split, tensor by tensor: all ranks iterate, the first one packs.
        tensors = second.hf_tensors()
        if layout.rank == 0:
            manifest = Staging(bucket_bytes=BUCKET_BYTES, retain=1, dtype="bfloat16").stage(2, tensors)
            (target / "checksum").write_text(manifest.checksum)
        deque(tensors, maxlen=0)
    return metrics


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    root = Path(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps([run(root, *one) for one in zip(LAYOUTS, sys.argv[3:], strict=True)]))
