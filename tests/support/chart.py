"""The Helm chart: its values, and what Helm makes of them where `make chart-test` has brought it."""

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from trinity_bus.sizing.memory import MODELS
from trinity_bus.training.families import ModelShape

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "kubernetes"
SIZES: Final = ("one-node", "8-gpus", "64-gpus")
"""Each has a file of values on top of ``values.yaml``."""
HELM: Final = ROOT / ".cache" / "helm" / "helm"
RELEASE: Final = ["mesh", str(CHART), "--namespace", "training", "--kube-version", "1.34.0"]
EXTERNAL: Final = "a-cluster-of-your-own"
CASES: Final = {size: ["--values", str(CHART / f"values-{size}.yaml")] for size in SIZES} | {
    EXTERNAL: [
        *("--values", str(CHART / "values-8-gpus.yaml")),
        *("--set", "kafka.install=false,kafka.bootstrapServers=kafka.example.org:9094,kafka.caSecret=kafka-ca"),
        *("--set", "kafka.ports={9094},settings.synchronizer.sync_method=memory"),
        *("--set", "weights.tls.enabled=true,weights.tls.issuerRef.kind=Issuer,weights.tls.issuerRef.name=own"),
    ]
}
"""The sizes, and a mesh on a cluster that Strimzi does not make, whose weights are encrypted."""


def values(size: str) -> dict[str, Any]:
    """Return all values of a size, as Helm merges them."""
    own = yaml.safe_load((CHART / f"values-{size}.yaml").read_text())
    return _merged(yaml.safe_load((CHART / "values.yaml").read_text()), own)


def shape_of(model_path: str) -> ModelShape:
    """Return the shape of a Qwen3 that a file of settings names."""
    return MODELS[Path(model_path).name.removeprefix("Qwen3-")]


def write_config(model_path: str, folder: Path) -> None:
    """Write the ``config.json`` of such a model."""
    shape = shape_of(model_path)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.groups,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.tied,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: _merged(below.get(key), value) for key, value in above.items()}
    return above


def helm(command: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), command, *arguments], capture_output=True, text=True, timeout=120, check=False)


@cache
def rendered(*arguments: str) -> str:
    """Return what Helm sends to the cluster, as text."""
    done = helm("template", [*RELEASE, *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def resources_of(*arguments: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(rendered(*arguments)) if document]


def with_values(case: str, *values: str) -> list[dict[str, Any]]:
    """Return what is made of a case with such values instead of its own."""
    return resources_of(*CASES[case], *(part for value in values for part in ("--set", value)))


def refused(case: str, value: str) -> str:
    """Return what Helm says of a value that cannot be."""
    done = helm("template", [*RELEASE, *CASES[case], "--set", value])
    assert done.returncode != 0
    return done.stderr


def of_kind(resources: Sequence[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the specifications of all resources of a kind, by name."""
    return {one["metadata"]["name"]: one["spec"] for one in resources if one["kind"] == kind}


def pods_of(resources: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pods of each service: its component's name to their specification; of several of one, the first."""
    specs = [spec for kind in ("Deployment", "StatefulSet") for spec in of_kind(resources, kind).values()]
    groups = [spec["leaderWorkerTemplate"] for spec in of_kind(resources, "LeaderWorkerSet").values()]
    templates = [spec["template"] for spec in specs] + [group["leaderTemplate"] for group in groups]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in templates}
