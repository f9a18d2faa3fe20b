"""What a demo asks of each service: settings of one mesh on one small machine, as a file in the run's folder.

The file holds what the user has set, from wherever it came, and above that what the demo decides; services are told no
other settings but secrets, which stay in the environment, and explorers their names and cores.

The figures of training were chosen by trying: docs/objectives.md, "Why runs once kept nine of ten digits", has what
each is for. With 8 samples a task instead of 16 it takes half as many steps again.
"""

import math
import os
import re
import secrets
import shlex
from collections.abc import Sequence
from typing import Final

from pydantic import SecretStr

from trinity_bus.config import KafkaSettings, Origins, Settings, setting_fields
from trinity_bus.config.sections import is_secret
from trinity_bus.config.template import rendered
from trinity_bus.runtime.device import has_bfloat16, is_installed_for_cpu
from trinity_bus.runtime.plain_files import write_plain
from workers.demo.model import MAX_LENGTH
from workers.demo.subjects import DemoOptions
from workers.runs import program

GROUP_SIZE: Final = 16  # Samples a task
LEARNING_RATE: Final = 7e-4
_ENGINES_SHARE: Final = 0.6  # Of a GPU's memory, all engines together


def mesh_settings(options: DemoOptions, kafka: KafkaSettings) -> dict[str, object]:
    # Their share and no more: on-policy, whoever has the new weights first would else take the whole batch.
    subject = options.subject
    slots = math.ceil(subject.batch_size / options.explorers)
    # On one GPU for all: NCCL refuses two ranks there, and each engine would take nine tenths of its memory.
    shared_gpu = {
        "synchronizer.sync_method": "memory",
        "explorer.gpu_memory_utilization": round(_ENGINES_SHARE / options.explorers, 3),
        "explorer.compilation": "off",
    }
    return {
        **({} if is_installed_for_cpu() else shared_gpu),
        "mesh.namespace": kafka.namespace,
        "mesh.model_path": options.model_dir.resolve(),
        # Weights of 20 words are too small for bfloat16.
        "mesh.dtype": "bfloat16" if subject.language is None and has_bfloat16() else "float32",
        "mesh.max_model_len": MAX_LENGTH,
        "mesh.max_tokens": subject.max_tokens,
        "kafka.bootstrap_servers": kafka.bootstrap_servers,
        "coordinator.batch_size": subject.batch_size,
        "coordinator.group_size": GROUP_SIZE,
        "coordinator.max_staleness": options.max_staleness,
        # The same for all of them: what a task draws does not hang on who runs it.
        "explorer.seed": options.seed,
        "explorer.slots": slots,
        "explorer.max_num_seqs": slots * GROUP_SIZE,
        "explorer.cpu_kvcache_gib": 0.5,
        "trainer.checkpoint_dir": options.checkpoint_dir.resolve(),
        "trainer.total_steps": options.steps,
        "trainer.learning_rate": LEARNING_RATE,
        "trainer.entropy_coef": subject.entropy_coef,
        "trainer.warmup_steps": 3,
        "trainer.decay_steps": max(subject.steps, options.steps),
        "trainer.mini_batches": 8,
        "trainer.adam_beta2": 0.99,
        "trainer.seed": options.seed,
        "trainer.threads": 1,
        "trainer.bucket_mib": 8,
        # Beside those of other runs, to be compared with them.
        "console.folder": options.run_dir.parent.resolve() / "console",
        "telemetry.run_dir": options.run_dir.resolve(),
        **({} if subject.module is None else {"explorer.workflow_modules": subject.module}),
        **subject.settings,
    }


def given_settings() -> dict[str, object]:
    """Return what the user has set, from wherever it came, by the places of the settings; secrets are left out."""
    settings, origins = Settings(), Origins(Settings)
    return {
        path: getattr(getattr(settings, section), name)
        for path, field in setting_fields().items()
        for section, _, name in [path.partition(".")]
        if origins.of(path) is not None and not is_secret(field)
    }


def write_mesh_file(options: DemoOptions, kafka: KafkaSettings) -> None:
    """Write the settings of this run: those that the user has given, where the demo does not decide."""
    head = (
        "The settings of this run, as the demo has written them. Each explorer has been given a name, and each of "
        "several a core: `trinity-bus --config mesh.toml --set explorer.name=explorer-0 --set explorer.cpu_cores=0 run "
        "explorer`. `trinity-bus --config mesh.toml config show` tells what they are together with the defaults."
    )
    options.run_dir.mkdir(parents=True, exist_ok=True)
    write_plain(options.mesh_file, rendered(head, given_settings() | mesh_settings(options, kafka)))


def explorer_options(options: DemoOptions, index: int, cores: Sequence[int]) -> list[str]:
    """Return what one explorer is told: its name and, where several are on CPUs, a core while there are enough."""
    name, core = options.explorer_names[index], cores[index % len(cores)]
    bound = (f"explorer.cpu_cores={core}",) if is_installed_for_cpu() and options.explorers > 1 else ()
    own = (f"explorer.name={name}", *bound)
    return [word for setting in own for word in ("--set", setting)]


def with_http_key(settings: Settings) -> Settings:
    """Return settings with a key that a gateway of this run shows to its explorers, where the user has named none."""
    if settings.explorer.http_key is not None:
        return settings
    key = SecretStr(secrets.token_hex(24))
    return settings.model_copy(update={"explorer": settings.explorer.model_copy(update={"http_key": key})})


def available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def demo_namespace(configured: KafkaSettings, run_id: str) -> KafkaSettings:
    """On a cluster that others use too, or an earlier demo did, topics of its own.

    Folders may have names of which Kafka takes no topics.
    """
    namespace = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{configured.namespace}.{run_id}")[:100]
    return configured.model_copy(update={"namespace": namespace})


def hint(options: DemoOptions) -> str:
    """Return the beginning of a ``trinity-bus`` command that talks to this mesh."""
    return f"{program()} --config {shlex.quote(str(options.mesh_file))}"
