"""What Helm renders is what Kubernetes, Strimzi, KEDA, cert-manager and LeaderWorkerSet define."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from tests.support.chart import CHART, ROOT, SIZES, helm, refused

VALIDATOR: Final = ROOT / ".cache" / "chart" / "bin" / "kubernetes-validate"
CRDS: Final = Path(__file__).parent / "crds"
CUSTOM: Final = ("kafka.strimzi.io", "keda.sh", "cert-manager.io", "leaderworkerset.x-k8s.io")

pytestmark = pytest.mark.chart


def is_custom(resource: dict[str, Any]) -> bool:
    return resource["apiVersion"].partition("/")[0] in CUSTOM


@pytest.mark.parametrize("size", SIZES)
def test_helm_finds_nothing_wrong(size: str) -> None:
    done = helm("lint", [str(CHART), "--strict", "--kube-version", "1.34.0", "--values", f"{CHART}/values-{size}.yaml"])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.30.0", "1.37.0"], ids=["oldest", "newest"])
def test_what_kubernetes_defines_is_as_it_defines_it(
    version: str, resources: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    own = [resource for resource in resources if not is_custom(resource)]
    path.write_text(yaml.safe_dump_all(own))
    done = subprocess.run(
        [str(VALIDATOR), "--strict", "--kubernetes-version", version, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == len(own)


def test_what_operators_define_is_as_they_define_it(case: str, resources: list[dict[str, Any]]) -> None:
    custom = [resource for resource in resources if is_custom(resource)]
    assert any(resource["kind"] == "Kafka" for resource in custom) == (case in SIZES)
    for resource in custom:
        version = resource["apiVersion"].partition("/")[2]
        schema = json.loads((CRDS / f"{resource['kind']}-{version}.json").read_text())
        jsonschema.validate(resource, schema, cls=jsonschema.Draft202012Validator)


def test_no_two_resources_have_one_name(resources: list[dict[str, Any]]) -> None:
    names = [(resource["apiVersion"], resource["kind"], resource["metadata"]["name"]) for resource in resources]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("kafka.install=false", "kafka.bootstrapServers"),
        ("weights.tls.enabled=true,settings.synchronizer.sync_method=memory", "weights.tls.issuerRef"),
        ("scaling.enabled=true", "scaling.prometheus"),
        ("settings.kafka.bootstrap_servers=elsewhere:9092", "'bootstrap_servers' not allowed"),
        ("settings.console.token=longer-than-sixteen-characters", "'token' not allowed"),
        ("settings.coordinator.batch_sise=64", "'batch_sise' not allowed"),
        ("settings.coordinator.batch_size=0", "batch_size"),
        ("trainer.nodes=2", "trainer.nodes is 2, which does not divide the 1 ranks"),
        ("trainer.nodes=2,settings.trainer.data_parallel=2", "must be ReadWriteMany"),
        ("explorer.replica=2", "'replica' not allowed"),
    ],
)
def test_what_lacks_or_contradicts_is_said(changed: str, said: str) -> None:
    assert said in refused("one-node", changed)
