"""The operators' kinds, as an API server is told of them: from the schemas that the chart's other tests have."""

import json
from pathlib import Path
from typing import Any, Final

from tests.support.chart import ROOT

SCHEMAS: Final = ROOT / "tests" / "chart" / "crds"
PLURALS: Final = {
    "Certificate": ("cert-manager.io", "certificates"),
    "Kafka": ("kafka.strimzi.io", "kafkas"),
    "KafkaNodePool": ("kafka.strimzi.io", "kafkanodepools"),
    "KafkaTopic": ("kafka.strimzi.io", "kafkatopics"),
    "KafkaUser": ("kafka.strimzi.io", "kafkausers"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    "ScaledObject": ("keda.sh", "scaledobjects"),
}
"""Kind to its group, and to the name of its list."""


def definitions() -> list[dict[str, Any]]:
    """Return a CustomResourceDefinition for each schema."""
    return [_definition(path) for path in sorted(SCHEMAS.glob("*.json"))]


def _definition(path: Path) -> dict[str, Any]:
    kind, _, version = path.stem.rpartition("-")
    group, plural = PLURALS[kind]
    schema = _structural(json.loads(path.read_text(encoding="utf-8")))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Else nobody but Kubernetes may define kinds in its own groups.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _structural(schema: Any) -> Any:
    """Return the schema as it was defined: what is not defined in it the server itself refuses."""
    if isinstance(schema, list):
        return [_structural(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _structural(value) for key, value in schema.items() if (key, value) != ("additionalProperties", False)}
