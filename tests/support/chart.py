"""The Helm chart: its values, and what Helm makes of them where `make chart-test` has brought it."""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

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


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: _merged(below.get(key), value) for key, value in above.items()}
    return above


def helm(command: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Helm on the chart."""
    return subprocess.run([str(HELM), command, *arguments], capture_output=True, text=True, timeout=120, check=False)


@cache
def rendered(case: str) -> str:
    """Return what Helm sends to the cluster, as text."""
    done = helm("template", [*RELEASE, *CASES[case]])
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def resources_of(case: str) -> list[dict[str, Any]]:
    """Return the same as what it says."""
    return [document for document in yaml.safe_load_all(rendered(case)) if document]
