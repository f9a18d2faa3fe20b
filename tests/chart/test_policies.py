"""Every pod of the chart is pinned, bounded, confined and watched, and nothing secret is in an environment."""

import re
from typing import Any

import pytest

from tests.support.chart import CASES, SIZES, of_kind, pods_of, rendered, resources_of, values, with_values
from trinity_bus.config import ExplorerSettings, HealthSettings, secret_variables
from trinity_bus.runtime.service import GRACE_S

pytestmark = pytest.mark.chart


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def test_the_services_are_there(case: str, workloads: dict[str, dict[str, Any]]) -> None:
    more = {"taskset"} if case == "one-node" else {"gateway", "console"}
    assert set(workloads) == {"coordinator", "explorer", "trainer"} | more


def test_every_image_is_pinned_to_a_version(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        for container in containers(template):
            assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+(-gpu)?", container["image"])


def test_every_container_has_requests_and_limits(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        for container in containers(template):
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= container["resources"][kind].keys()


def test_every_pod_keeps_the_restricted_profile(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        spec = template["spec"]
        assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(spec)
        assert not any("hostPath" in volume for volume in spec["volumes"])
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        pod = spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert pod["runAsUser"] >= 10000
        for container in containers(template):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["privileged"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}


def test_what_a_read_only_root_needs_is_mounted_with_a_bound(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert all("sizeLimit" in volume["emptyDir"] for volume in volumes.values() if "emptyDir" in volume)
        for container in containers(template):
            mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert {"/tmp", "/home/trinity"} <= mounted.keys()  # noqa: S108 - a path in a container
            assert set(mounted.values()) <= volumes.keys()


def test_every_service_is_watched(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        (container,) = template["spec"]["containers"]
        asked = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
        paths = {probe: get["path"] for probe, get in asked.items()}
        assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        environment = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert str(ports["health"]) == environment["TRINITY_BUS_HEALTH__PORT"]


def test_every_service_has_time_to_end_in_order(case: str, workloads: dict[str, dict[str, Any]]) -> None:
    """A service that hangs ends itself after 30 s, an explorer so long after it has drained."""
    told = values(case if case in SIZES else "8-gpus")["settings"].get("explorer", {})
    for name, template in workloads.items():
        drain_s = told.get("drain_s", ExplorerSettings().drain_s) if name == "explorer" else 0
        assert template["spec"]["terminationGracePeriodSeconds"] > GRACE_S + drain_s + 5


def test_an_upgrade_has_the_time_that_explorers_take(
    case: str, resources: list[dict[str, Any]], workloads: dict[str, dict[str, Any]]
) -> None:
    """As many at a time as nodes may lose, and nobody calls it failed while one drains and another starts."""
    explorer = of_kind(resources, "Deployment")["mesh-explorer"]
    told = values(case if case in SIZES else "8-gpus")["explorer"]["maxUnavailable"]
    assert explorer["strategy"]["rollingUpdate"] == {"maxUnavailable": told, "maxSurge": 0}
    drains_s = workloads["explorer"]["spec"]["terminationGracePeriodSeconds"]
    assert explorer["progressDeadlineSeconds"] > drains_s + HealthSettings().start_s


def test_whoever_lets_nobody_evict_explorers_still_upgrades_them() -> None:
    found = with_values("64-gpus", "explorer.maxUnavailable=0")
    assert of_kind(found, "PodDisruptionBudget")["mesh-explorer"]["maxUnavailable"] == 0
    assert of_kind(found, "Deployment")["mesh-explorer"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1


def test_a_node_of_its_own_volumes_may_go(workloads: dict[str, dict[str, Any]]) -> None:
    """The cluster autoscaler leaves every node that has other pods than such."""
    for template in workloads.values():
        own = [volume["name"] for volume in template["spec"]["volumes"] if "emptyDir" in volume]
        told = template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]
        assert sorted(told.split(",")) == sorted(own)


def test_annotations_of_ones_own_count_more() -> None:
    given = ["--set-json", 'explorer.annotations={"trinity-bus/settings": "mine", "example.org/team": "ours"}']
    arguments = (*CASES["64-gpus"], *given)
    annotations = pods_of(resources_of(*arguments))["explorer"]["metadata"]["annotations"]
    assert annotations["trinity-bus/settings"] == "mine"
    assert annotations["example.org/team"] == "ours"
    # A key that is there twice is none that every reader takes the same of.
    counts = [rendered(*told).count("trinity-bus/settings:") for told in (arguments, CASES["64-gpus"])]
    assert counts[0] == counts[1]


def test_no_secret_is_in_an_environment(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        for container in containers(template):
            for entry in container["env"]:
                assert entry["name"] not in secret_variables()
                assert "secretKeyRef" not in entry.get("valueFrom", {})
            assert "envFrom" not in container


def test_secrets_are_read_by_the_service_alone(workloads: dict[str, dict[str, Any]]) -> None:
    for template in workloads.values():
        for volume in template["spec"]["volumes"]:
            assert "secret" not in volume
            if "projected" in volume:
                assert volume["projected"]["defaultMode"] == 0o440
                assert all("items" in source["secret"] for source in volume["projected"]["sources"])


def test_every_disruption_budget_is_of_a_service(
    resources: list[dict[str, Any]], workloads: dict[str, dict[str, Any]]
) -> None:
    budgets = of_kind(resources, "PodDisruptionBudget").values()
    of = {budget["selector"]["matchLabels"]["app.kubernetes.io/component"]: budget for budget in budgets}
    assert of.keys() == {"coordinator", "explorer", "trainer", "gateway"} & workloads.keys()
    assert of["trainer"]["maxUnavailable"] == 0


def test_explorers_are_counted_by_one_hand(case: str, resources: list[dict[str, Any]]) -> None:
    """A number of replicas in the chart would undo KEDA's at each upgrade."""
    explorer = of_kind(resources, "Deployment")["mesh-explorer"]
    scaled = [spec["scaleTargetRef"]["name"] for spec in of_kind(resources, "ScaledObject").values()]
    assert scaled == (["mesh-explorer"] if case == "64-gpus" else [])
    assert ("replicas" in explorer) != bool(scaled)


def test_a_trainer_that_wants_whole_nodes_has_explorers_make_room(
    case: str, workloads: dict[str, dict[str, Any]]
) -> None:
    """Explorers want parts of nodes, and have all that is free when it comes back."""
    classes = {name: template["spec"].get("priorityClassName") for name, template in workloads.items()}
    shared = case == "64-gpus"
    assert {name for name, one in classes.items() if one} == ({"trainer"} if shared else set())


def test_an_explorer_may_have_the_profile_that_a_sandbox_needs_and_nobody_else_does() -> None:
    profile = "trinity-bus/seccomp.json"
    of_explorer = "explorer.securityContext.seccompProfile"
    pods = pods_of(with_values("one-node", f"{of_explorer}.type=Localhost,{of_explorer}.localhostProfile={profile}"))
    found = {
        name: container["securityContext"] for name, pod in pods.items() for container in pod["spec"]["containers"]
    }
    explorer = found.pop("explorer")
    assert explorer["seccompProfile"] == {"type": "Localhost", "localhostProfile": profile}
    assert explorer["capabilities"] == {"drop": ["ALL"]}
    assert found
    assert not any("seccompProfile" in own for own in found.values())
