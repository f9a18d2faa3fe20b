"""Who reaches whom: NetworkPolicies, as Kubernetes adds them up."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chart import EXTERNAL

pytestmark = pytest.mark.chart

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
    for policy in (one["spec"] for one in resources if one["kind"] == "NetworkPolicy"):
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
    policies = [one["spec"] for one in resources if one["kind"] == "NetworkPolicy"]
    for own in labels.values():
        assert any(
            matches(policy["podSelector"], own) and set(policy["policyTypes"]) == {"Ingress", "Egress"}
            for policy in policies
        )
    # A selector that misses matches nothing: every policy is of pods of the mesh.
    assert all("app.kubernetes.io/instance" in policy["podSelector"]["matchLabels"] for policy in policies)


def test_weights_go_between_trainer_and_explorers_alone(
    case: str, resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    pulled = case in ("64-gpus", EXTERNAL)
    wanted: list[Ports] = [((7000, 7009),)] if pulled else [None]
    for name, own in labels.items():
        ways = list(allowed(resources, labels["trainer"], "ingress", own))
        ranks: list[Ports] = [None] if case == "64-gpus" else []
        assert ways == {"explorer": wanted, "trainer": ranks}.get(name, []), name
        back = None in allowed(resources, labels["explorer"], "ingress", own)
        # Links are made from both ends, and what is not encrypted is passed on.
        assert back == (name == ("explorer" if case == "64-gpus" else None if pulled else "trainer")), name
    assert wanted[0] in allowed(resources, labels["explorer"], "egress", labels["trainer"])
    assert (None in allowed(resources, labels["trainer"], "egress", labels["trainer"])) == (case == "64-gpus")
    passes_on = None in allowed(resources, labels["explorer"], "egress", labels["explorer"])
    assert passes_on == (case == "64-gpus")


def test_explorers_answer_gateways_and_each_other_alone(
    resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    for name, own in labels.items():
        ways = [way for way in allowed(resources, labels["explorer"], "ingress", own) if way is not None]
        open_to = {"gateway", "explorer"} if "gateway" in labels else set()
        assert ways == ([((8001, 8001),)] if name in open_to else []), name


def test_every_service_reaches_the_log_and_names(
    case: str, resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    port = 9094 if case == EXTERNAL else 9093
    broker = {"strimzi.io/cluster": "mesh-kafka", "app.kubernetes.io/instance": "mesh-kafka"}
    for own in labels.values():
        ways = list(allowed(resources, own, "egress", broker))
        assert ((53, 53), (53, 53)) in ways
        assert ((port, port),) in ways


def test_nobody_in_the_cluster_reaches_coordinator_taskset_or_console(
    resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    for name in {"coordinator", "taskset", "console"} & labels.keys():
        for peer in (*labels.values(), {"app": "somebody"}):
            assert list(allowed(resources, labels[name], "ingress", peer)) == []


def test_the_brokers_listener_lets_the_mesh_in(
    resources: list[dict[str, Any]], labels: dict[str, dict[str, str]]
) -> None:
    for kafka in (one for one in resources if one["kind"] == "Kafka"):
        (listener,) = kafka["spec"]["kafka"]["listeners"]
        assert (listener["tls"], listener["authentication"]) == (True, {"type": "scram-sha-512"})
        (peer,) = listener["networkPolicyPeers"]
        assert all(matches(peer["podSelector"], own) for own in labels.values())
        assert kafka["spec"]["kafka"]["authorization"] == {"type": "simple"}
