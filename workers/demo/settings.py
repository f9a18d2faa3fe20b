"""What the demo asks of each service: settings of one mesh on one small machine, as environment variables.

The figures of training were chosen by trying. Most runs answer every held-out prompt after 22 to 31 steps.
What matters: 16 samples a task (with 8 it takes half as many steps again), 8 updates a batch, a second moment of Adam
that forgets fast (0.99), a little entropy, no haste, and the loss divided by the tokens of the whole batch
(``trainer.loss_normalizer``): divided by those of each update, one run in about ten settles on nine digits out of ten
before it has tried the tenth, since the few groups that still teach something then make updates as large as all did.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trinity_bus.config import KafkaSettings
from workers.demo.curriculum import MAX_TOKENS
from workers.demo.model import MAX_LENGTH

BATCH_SIZE: Final = 64
"""Tasks a step."""
GROUP_SIZE: Final = 16
"""Samples a task."""
MAX_STEPS: Final = 60
LEARNED: Final = 0.99
"""Share of held-out prompts that a trained model answers exactly, at least."""
LIMIT_S: Final = 300.0
"""What the whole may take, on two cores."""
LEARNING_RATE: Final = 7e-4
ENTROPY_COEF: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a user may choose."""

    run_dir: Path
    seed: int = 0
    steps: int = MAX_STEPS
    """Most steps of training."""
    explorers: int = 2
    max_staleness: int = 0
    """0: strictly on-policy; 1: one step off."""
    early_stop: bool = True
    """End when the reward has been all but perfect for some steps."""
    limit_s: float = LIMIT_S
    """Give up after this many seconds."""

    @property
    def model_dir(self) -> Path:
        """The model as it is before training."""
        return self.run_dir / "initial-model"

    @property
    def checkpoint_dir(self) -> Path:
        """The trainer's checkpoints."""
        return self.run_dir / "checkpoints"

    @property
    def explorer_names(self) -> list[str]:
        """One for each."""
        return [f"explorer-{i}" for i in range(self.explorers)]


def service_environment(options: DemoOptions, kafka: KafkaSettings) -> dict[str, str]:
    """Return the settings that all services share.

    Only what differs from the environment is named: how to log in to a cluster, say, is inherited.
    """
    return {
        "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers or "",
        "TRINITY_BUS_MESH__NAMESPACE": kafka.namespace,
        **shared_environment(options),
    }


def shared_environment(options: DemoOptions) -> dict[str, str]:
    """Return those of them that are known before there is a broker."""
    return {
        "TRINITY_BUS_MESH__MODEL_PATH": str(options.model_dir.resolve()),
        "TRINITY_BUS_MESH__DTYPE": "float32",
        "TRINITY_BUS_MESH__MAX_MODEL_LEN": str(MAX_LENGTH),
        "TRINITY_BUS_MESH__MAX_TOKENS": str(MAX_TOKENS),
        "TRINITY_BUS_TELEMETRY__RUN_DIR": str(options.run_dir.resolve()),
        "TRINITY_BUS_COORDINATOR__BATCH_SIZE": str(BATCH_SIZE),
        "TRINITY_BUS_COORDINATOR__GROUP_SIZE": str(GROUP_SIZE),
        "TRINITY_BUS_COORDINATOR__MAX_STALENESS": str(options.max_staleness),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def explorer_environment(options: DemoOptions, index: int, cores: Sequence[int]) -> dict[str, str]:
    """Return settings of one explorer; each engine computes on a core of its own as long as there are enough.

    Args:
        options: The user's.
        index: Which explorer, from 0.
        cores: The cores that this process may use.
    """
    # Their share and no more: on-policy, whoever has the new weights first would else take the whole batch.
    slots = math.ceil(BATCH_SIZE / options.explorers)
    return {
        "TRINITY_BUS_EXPLORER__NAME": options.explorer_names[index],
        # The same for all of them: what a task draws does not hang on who runs it.
        "TRINITY_BUS_EXPLORER__SEED": str(options.seed),
        "TRINITY_BUS_EXPLORER__SLOTS": str(slots),
        "TRINITY_BUS_EXPLORER__MAX_NUM_SEQS": str(slots * GROUP_SIZE),
        "TRINITY_BUS_EXPLORER__CPU_KVCACHE_GIB": "0.5",
        "TRINITY_BUS_EXPLORER__CPU_CORES": str(cores[index % len(cores)]),
    }


def trainer_environment(options: DemoOptions) -> dict[str, str]:
    """Return the settings of the trainer."""
    return {
        "TRINITY_BUS_TRAINER__CHECKPOINT_DIR": str(options.checkpoint_dir.resolve()),
        "TRINITY_BUS_TRAINER__TOTAL_STEPS": str(options.steps),
        "TRINITY_BUS_TRAINER__LEARNING_RATE": str(LEARNING_RATE),
        "TRINITY_BUS_TRAINER__ENTROPY_COEF": str(ENTROPY_COEF),
        "TRINITY_BUS_TRAINER__WARMUP_STEPS": "3",
        "TRINITY_BUS_TRAINER__MINI_BATCHES": "8",
        "TRINITY_BUS_TRAINER__ADAM_BETA2": "0.99",
        "TRINITY_BUS_TRAINER__SEED": str(options.seed),
        "TRINITY_BUS_TRAINER__THREADS": "1",
        "TRINITY_BUS_TRAINER__BUCKET_MIB": "8",
    }


def command(*arguments: str) -> list[str]:
    """Return a ``trinity-bus`` command line in this Python."""
    return [sys.executable, "-m", "workers.cli.app", *arguments]


def available_cores() -> list[int]:
    """Return the cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def demo_namespace(configured: KafkaSettings, run_id: str) -> KafkaSettings:
    """On a cluster that others use too, or an earlier demo did, topics of its own."""
    namespace = f"{configured.namespace}.{run_id}"[:100]
    return configured.model_copy(update={"namespace": namespace})


def hint(environment: Mapping[str, str]) -> str:
    """Return what to put before a ``trinity-bus`` command so that it talks to this mesh."""
    names = ("TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS", "TRINITY_BUS_MESH__NAMESPACE")
    defaults = {"TRINITY_BUS_MESH__NAMESPACE": KafkaSettings().namespace}
    return " ".join(f"{name}={environment[name]}" for name in names if environment[name] != defaults.get(name))
