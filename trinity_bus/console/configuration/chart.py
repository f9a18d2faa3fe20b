"""What the Helm chart is given for a draft: its values, as a file on top of none of the chart's own sizes.

Settings stay under ``settings``, but for those that the chart gives itself and paths of this machine, which pods see
elsewhere; the rest follows from the hardware.
"""

import re
from collections.abc import Mapping
from itertools import count
from math import ceil
from pathlib import PurePath
from typing import Any, Final

import yaml

from trinity_bus.console.configuration.checks import Checked
from trinity_bus.console.configuration.questions import TASKS, fields
from trinity_bus.sizing.memory import GIB, MemoryNeed, limit_bytes

# Settings that its templates give, so that its schema refuses them
CHART_SAYS: Final = frozenset(
    {
        *("kafka.bootstrap_servers", "kafka.security_protocol", "kafka.sasl_mechanism", "kafka.sasl_username"),
        *("kafka.ssl_cafile", "synchronizer.tls_certfile", "synchronizer.tls_keyfile", "synchronizer.tls_cafile"),
        *("coordinator.name", "explorer.name", "explorer.http_host", "explorer.http_port", "trainer.host"),
        *(
            "trainer.ranks_host",
            "trainer.weights_port",
            "gateway.name",
            "gateway.host",
            "gateway.port",
            "console.host",
            "console.port",
        ),
        *("console.folder", "health.host", "health.port"),
    }
)
# Paths that pods do not have, and for which the chart has no place of its own
OF_THIS_MACHINE: Final = frozenset(
    {
        *("kafka.ssl_certfile", "kafka.ssl_keyfile", "broker.data_dir", "broker.cache_dir"),
        *("explorer.runner_python", "trainer.export_dir", "telemetry.run_dir"),
    }
)
_QUOTAS: Final = {
    "access.producer_write_bytes_s": "producerByteRate",
    "access.producer_read_bytes_s": "consumerByteRate",
    "access.producer_request_percent": "requestPercentage",
}
_LEFT_OUT: Final = CHART_SAYS | OF_THIS_MACHINE | _QUOTAS.keys()
_MODELS: Final = ("mesh.model_path", "explorer.model_path", "gateway.model_path", "console.model_path")
_CLAIMS: Final = {"model": "models", "tasks": "tasks"}
# Memory of a process with a GPU before it has a model: interpreter, libraries, what compiles kernels
_PROCESS_GIB: Final = 3
_SHARED_GIB: Final = 16  # Of ``/dev/shm``, which counts as memory, where there are GPUs
_GPU: Final = "nvidia.com/gpu"
_CORES: Final = {"requests": 4, "limits": 12}  # That a GPU wants beside it, and may take
_WIDTH: Final = 1 << 20  # A text is not broken
_PLAIN: Final = re.compile(r"[A-Za-z_/][\w./]*", re.ASCII)
# That YAML takes for something else than a text, however they are written
_WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def chart_values(checked: Checked) -> str:
    own, hardware = dict(checked.draft.values), checked.draft.hardware
    left = sorted(path for path in own if path in CHART_SAYS)
    has_gpus = bool(hardware.trainer_gpus or hardware.explorer_gpus)
    lines = [
        "Values of the chart, deploy/kubernetes, as the console has written them:",
        "  helm install mesh deploy/kubernetes --namespace training --values values.yaml",
        "Paths are those that pods see. Secrets are in none of it: docs/kubernetes.md says where they go, and what",
        "else a cluster needs, such as image.repository. Resources follow from estimates of memory.",
        f"To be there before: the claim {_CLAIMS['model']} with the model's folder.",
    ]
    if "taskset" in checked.services:
        lines.append(f"And the claim {_CLAIMS['tasks']} with {_task_path(checked).name!r} and the rows that it names.")
    if left:
        lines.append(f"The chart itself gives these, and was not told of them: {', '.join(left)}.")
    if left := sorted(path for path in own if path in OF_THIS_MACHINE):
        lines.append(f"These are paths of this machine, which pods do not have, and are left out: {', '.join(left)}.")
    lines += [
        f"{place!r} is the folder that {path} names."
        for path, place in _model_places(own).items()
        if place != _place_of(own[path])
    ]
    if has_gpus and "explorer" in checked.services and not hardware.explorer_gpus:
        lines.append("device: gpu is for all images, and the engine of its explorers needs a GPU: give them some.")
    return "".join(f"# {line}\n" for line in lines) + blocks(_values(checked, own, has_gpus=has_gpus))


def _values(checked: Checked, own: Mapping[str, object], *, has_gpus: bool) -> dict[str, Any]:
    settings, hardware = checked.settings, checked.draft.hardware
    assert settings is not None  # noqa: S101 - it is sound
    trainer_gpus, size = hardware.trainer_gpus, settings.explorer.tensor_parallel_size
    explorer_gpus = size if hardware.explorer_gpus else 0
    shared = _SHARED_GIB if has_gpus else 0
    values: dict[str, Any] = {
        "settings": _settings(checked, own),
        "device": "gpu" if has_gpus else "cpu",
        "model": {"claim": _CLAIMS["model"]},
        # One machine: one disk to lose, however many brokers share it, and nothing to be spread over.
        "checkpoints": {"accessMode": "ReadWriteOnce"},
        "kafka": {"brokers": {"replicas": 1}},
        "topologySpread": [],
        "explorer": {
            "replicas": hardware.explorers(settings) if "explorer" in checked.services else 0,
            "resources": _resources(checked.explorer, explorer_gpus or 1, gpus=explorer_gpus, more_gib=shared),
        },
        "trainer": {
            "enabled": "trainer" in checked.services,
            "resources": _resources(checked.trainer, settings.trainer.ranks, gpus=trainer_gpus, more_gib=shared),
        },
    }
    if has_gpus:
        values["sharedMemory"] = f"{shared}Gi"
        # Pods are hosts of their own to NCCL.
        for name in ("explorer", "trainer"):
            values[name]["env"] = {"NCCL_SOCKET_IFNAME": "eth0"}
    if quotas := {name: own[path] for path, name in _QUOTAS.items() if path in own}:
        values["kafka"]["producerQuotas"] = quotas
    if "taskset" in checked.services:
        place = {"name": _CLAIMS["tasks"]}
        values["taskset"] = {
            "enabled": True,
            "extraVolumes": [{**place, "persistentVolumeClaim": {"claimName": _CLAIMS["tasks"], "readOnly": True}}],
            "extraVolumeMounts": [{**place, "mountPath": str(_task_path(checked).parent), "readOnly": True}],
        }
    return values


def _settings(checked: Checked, own: Mapping[str, object]) -> dict[str, dict[str, object]]:
    placed: dict[str, object] = dict(_model_places(own))
    placed["trainer.checkpoint_dir"] = "/checkpoints"
    if "taskset" in checked.services:
        placed["taskset.path"] = str(_task_path(checked))
    found: dict[str, dict[str, object]] = {}
    for path in fields():
        if path not in _LEFT_OUT and (path in placed or path in own):
            section, _, name = path.partition(".")
            found.setdefault(section, {})[name] = placed.get(path, own.get(path))
    return found


def _model_places(own: Mapping[str, object]) -> dict[str, str]:
    # Where pods see the folder of each model: folders of the same name are numbered
    places: dict[str, PurePath] = {}
    found = {}
    for path in _MODELS:
        if path in own:
            folder = PurePath(str(own[path]))
            name = _place_of(folder)
            names = (name if number == 1 else f"{name}-{number}" for number in count(1))
            place = next(one for one in names if places.get(one, folder) == folder)
            places[place], found[path] = folder, place
    return found


def _place_of(folder: object) -> str:
    return f"/model/{PurePath(str(folder)).name or 'model'}"


def _task_path(checked: Checked) -> PurePath:
    rows, path = checked.draft.rows, checked.draft.values.get("taskset.path")
    return PurePath("/tasks") / (TASKS if rows is not None else PurePath(str(path)).name)


def _resources(need: MemoryNeed | None, processes: int, *, gpus: int, more_gib: float) -> dict[str, dict[str, object]]:
    # What a pod asks for: a model comes through as much of the machine's memory as it needs of its GPUs'
    each = _PROCESS_GIB + (0 if need is None else need.total / GIB)
    if need is not None and not gpus:
        each = limit_bytes(need) / GIB
    memory = f"{ceil(processes * each + more_gib)}Gi"
    if not gpus:
        return {name: {"memory": memory} for name in _CORES}
    return {name: {"cpu": str(cores * gpus), "memory": memory, _GPU: gpus} for name, cores in _CORES.items()}


def blocks(values: Mapping[str, Any]) -> str:
    """Return values as YAML, of which every reader says the same."""
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Readers differ in what they take for something else than a text: only what is surely one stands without quotes.
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)
