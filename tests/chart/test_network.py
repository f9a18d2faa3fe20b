"""Who reaches whom: NetworkPolicies, as Kubernetes adds them up."""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest

from tests.support.chart import EXTERNAL, of_kind

pytestmark = pytest.mark.chart

PORTS: Final = (53, 4318, 6999, 7000, 7009, 7010, 8000, 8001, 8080, 8900, 9093, 9094, 29500, 40000)
"""Those that services listen on, their neighbours, and some that the operating system chooses."""

type Ports = tuple[tuple[int, int], ...] | None
"""Ranges; None for every port."""


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


def ports_of(rule: dict[str, Any]) -> Ports:
    if "ports" not in rule:
        return None
    return tuple((port["port"], port.get("endPort", port["port"])) for port in rule["ports"])


def allowed(resources: list[dict[str, Any]], labels: dict[str, str], way: str, peer: dict[str, str]) -> Iterator[Ports]:
    """The ports that a pod may be reached at (``ingress``) or reach (``egress``), by and at pods of its namespace."""
    side = {"ingress": "from", "egress": "to"}[way]
    for policy in of_kind(resources, "NetworkPolicy").values():
        if not matches(policy["podSelector"], labels):
            continue
        for rule in policy.get(way, []):
            # None named are all.
            if not rule.get(side) or any(matches(one["podSelector"], peer) for one in rule[side]):
                yield ports_of(rule)


@pytest.fixture
def labels(workloads: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    return {name: template["metadata"]["labels"] for name, template in workloads.items()}


def test_every_pod_is_closed_but_for_what_is_said(
    resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    policies = of_kind(resources, "NetworkPolicy").values()
    for own in labels.values():
        assert any(
            matches(policy["podSelector"], own) and set(policy["policyTypes"]) == {"Ingress", "Egress"}
            for policy in policies
        )
    # A selector that misses matches nothing: every policy is of pods of the mesh.
    assert all("app.kubernetes.io/instance" in policy["podSelector"]["matchLabels"] for policy in policies)


def connects(resources: list[dict[str, Any]], source: dict[str, str], target: dict[str, str], port: int) -> bool:
    """Whether a pod may open a connection to another one of its namespace: both of them must be allowed to."""
    return all(
        any(ways is None or any(first <= port <= last for first, last in ways) for ways in found)
        # Whoever no policy is of may do what they like.
        or not is_closed(resources, labels, way)
        for labels, way, found in (
            (source, "egress", allowed(resources, source, "egress", target)),
            (target, "ingress", allowed(resources, target, "ingress", source)),
        )
    )


def is_closed(resources: list[dict[str, Any]], labels: dict[str, str], way: str) -> bool:
    return any(
        matches(policy["podSelector"], labels) and way.capitalize() in policy["policyTypes"]
        for policy in of_kind(resources, "NetworkPolicy").values()
    )


def wanted(case: str, source: str, target: str) -> set[int]:
    """Return those of ``PORTS`` at which a pod is to reach another: the table of docs/kubernetes.md."""
    pulled, several = case in ("64-gpus", EXTERNAL), case == "64-gpus"
    every = set(PORTS)
    if target == "stranger" and source != "stranger":
        # Whatever answers at these ports: names, a collector, brokers of somebody else.
        return {53} | ({4318} if case == "64-gpus" else set()) | ({9094} if case == EXTERNAL else set())
    table = {
        ("explorer", "trainer"): {7000, 7009} if pulled else every,
        ("trainer", "explorer"): set() if pulled else every,
        ("trainer", "trainer"): every if several else set(),
        # With ``memory``, unless encrypted, they pass versions on to each other; gateways need 8001.
        ("explorer", "explorer"): every if several else set() if case == "one-node" else {8001},
        ("gateway", "explorer"): {8001},
        ("stranger", "gateway"): {8000},
        ("stranger", "stranger"): every,
    }
    return table.get((source, target), set())


def test_pods_reach_each_other_as_the_table_says_and_not_otherwise(
    case: str, resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    everybody = labels | {"stranger": {"app": "somebody"}}
    for source, target in product(everybody, everybody):
        found = {port for port in PORTS if connects(resources, everybody[source], everybody[target], port)}
        assert found == wanted(case, source, target), (source, target)


def test_every_service_reaches_the_log_and_names(
    case: str, resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    port = 9094 if case == EXTERNAL else 9093
    broker = {"strimzi.io/cluster": "mesh-kafka", "app.kubernetes.io/instance": "mesh-kafka"}
    for own in labels.values():
        ways = list(allowed(resources, own, "egress", broker))
        assert ((53, 53), (53, 53)) in ways
        assert ((port, port),) in ways


def test_the_brokers_listener_lets_the_mesh_in(
    resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    for kafka in of_kind(resources, "Kafka").values():
        (listener,) = kafka["kafka"]["listeners"]
        assert (listener["tls"], listener["authentication"]) == (True, {"type": "scram-sha-512"})
        (peer,) = listener["networkPolicyPeers"]
        assert all(matches(peer["podSelector"], own) for own in labels.values())
        assert kafka["kafka"]["authorization"] == {"type": "simple"}
