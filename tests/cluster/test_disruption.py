"""Nodes are emptied one coordinator, gateway or explorer at a time, and a trainer is not evicted at all."""

import pytest

from tests.support.chart import CASES, values
from tests.support.cluster.site import LARGE, Site
from trinity_bus.runtime.service import GRACE_S

pytestmark = pytest.mark.cluster

TOO_MANY = 429


def evict(site: Site, pod: str) -> int:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": site.name}}
    return site.api.answer("POST", site.path("v1", "pods", f"{pod}/eviction"), body).status_code


def settled(site: Site, component: str, allowed: int) -> None:
    """Return once the controller has counted."""
    path = site.path("policy/v1", "poddisruptionbudgets", f"mesh-{component}")

    def counted() -> bool:
        status = site.api.get(path).get("status", {})
        wanted = len(site.pods(component))
        return (status.get("expectedPods"), status.get("disruptionsAllowed")) == (wanted, allowed)

    site.api.wait(counted, f"budget of {component} that allows {allowed}")


def test_one_of_a_service_goes_at_a_time_and_the_trainer_stays(training: Site) -> None:
    training.kubelets.add("node", LARGE)
    training.done("install", *CASES["8-gpus"])
    training.until_ready(coordinator=2, explorer=4, trainer=1, gateway=2, console=1)
    settled(training, "trainer", 0)
    assert evict(training, "mesh-trainer-0") == TOO_MANY
    for component, many in (("coordinator", 2), ("gateway", 2), ("explorer", 4)):
        settled(training, component, 1)
        # What comes in the place of one that goes is not ready at once.
        training.kubelets.slow.add(component)
        first, second = training.names(component)[:2]
        assert evict(training, first) == 201
        training.api.wait(lambda c=component, n=first: n not in training.names(c), "end of it")  # type: ignore[misc]
        assert evict(training, second) == TOO_MANY
        training.kubelets.slow.discard(component)
        training.until_ready(**{component: many})
        settled(training, component, 1)
        assert evict(training, second) == 201


def test_a_node_is_emptied(training: Site) -> None:
    """As ``kubectl drain`` does it: no new pods, then each of the old ones is evicted until none is left."""
    for name in ("first", "second"):
        training.kubelets.add(name, LARGE)
    training.done("install", *CASES["8-gpus"], "--set", "trainer.enabled=false")
    training.until_ready(coordinator=2, explorer=4, gateway=2, console=1)
    training.api.patch("/api/v1/nodes/first", {"spec": {"unschedulable": True}})

    def emptied() -> bool:
        left = [pod["metadata"]["name"] for pod in training.pods() if pod["spec"].get("nodeName") == "first"]
        return not [name for name in left if evict(training, name) != 404]

    training.api.wait(emptied, "empty node")
    training.until_ready(coordinator=2, explorer=4, gateway=2, console=1)
    assert {pod["spec"]["nodeName"] for pod in training.pods()} == {"second"}


def test_one_that_is_not_ready_keeps_no_node_from_being_emptied(training: Site) -> None:
    training.kubelets.add("node", LARGE)
    training.kubelets.slow.add("trainer")
    training.done("install", *CASES["one-node"])
    training.api.wait(lambda: [pod for pod in training.pods("trainer") if "nodeName" in pod["spec"]], "trainer")
    training.api.wait(lambda: evict(training, "mesh-trainer-0") == 201, "eviction")


def test_an_explorer_that_goes_has_the_time_to_drain(training: Site) -> None:
    training.kubelets.add("node", LARGE)
    training.done("install", *CASES["64-gpus"])
    training.until_ready(explorer=1)
    (name,) = training.names("explorer")
    settled(training, "explorer", 1)
    assert evict(training, name) == 201
    training.api.wait(lambda: name in training.kubelets.graces, "end of it")
    drain_s = values("64-gpus")["settings"]["explorer"]["drain_s"]
    assert training.kubelets.graces[name] > drain_s + GRACE_S
