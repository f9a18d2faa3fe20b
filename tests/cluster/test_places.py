"""Where the scheduler puts pods, on the nodes that each size is for."""

from collections import Counter
from typing import Any

import pytest

from tests.support.chart import CASES
from tests.support.cluster.site import Site

pytestmark = pytest.mark.cluster

ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"
WITH_GPUS = {"cpu": "192", "memory": "2Ti", GPU: "8"}
WITHOUT = {"cpu": "16", "memory": "64Gi"}
DEPLOYMENTS = ("apps/v1", "deployments")


def places(site: Site, component: str) -> Counter[str]:
    return Counter(pod["spec"]["nodeName"] for pod in site.pods(component) if "nodeName" in pod["spec"])


def trainer_pods(site: Site) -> list[dict[str, Any]]:
    """Return what LeaderWorkerSet makes of the trainer: the first pod, and those that follow."""
    trainer = site.api.get(site.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "mesh-trainer"))["spec"]
    templates = trainer["leaderWorkerTemplate"]
    pods = []
    for number in range(templates["size"]):
        template = templates["workerTemplate" if number else "leaderTemplate"]
        name = f"mesh-trainer-0-{number}" if number else "mesh-trainer-0"
        meta = {"name": name, "labels": template["metadata"]["labels"]}
        pods.append({"metadata": meta, "spec": template["spec"]})
    return pods


def start_trainer(site: Site) -> None:
    for pod in trainer_pods(site):
        site.api.create(site.path("v1", "pods"), pod)


def stop_trainer(site: Site) -> None:
    paths = [site.path("v1", "pods", pod["metadata"]["name"]) for pod in site.pods("trainer")]
    for path in paths:
        site.api.delete(path)
    # One that is told to end has its name until it has ended.
    site.api.wait(lambda: all(site.api.answer("GET", path).status_code == 404 for path in paths), "end of the trainer")


def eight_nodes(site: Site) -> None:
    for number in range(8):
        site.kubelets.add(f"gpu-{number}", WITH_GPUS, {ZONE: f"zone-{number % 2}"})
    for number in range(3):
        site.kubelets.add(f"cpu-{number}", WITHOUT, {ZONE: f"zone-{number % 2}"})


def test_one_node_of_eight_gpus_bears_all_and_no_more(training: Site) -> None:
    training.kubelets.add("node", WITH_GPUS)
    training.done("install", *CASES["8-gpus"])
    training.until_ready(coordinator=2, explorer=4, trainer=1, gateway=2, console=1)
    training.api.patch(training.path(*DEPLOYMENTS, "mesh-explorer/scale"), {"spec": {"replicas": 5}})
    training.api.wait(lambda: any("Insufficient nvidia.com/gpu" in one for one in training.troubles()), "a full node")
    assert places(training, "explorer").total() == 4


def test_eight_nodes_bear_the_trainer_and_all_explorers(training: Site) -> None:
    eight_nodes(training)
    training.done("install", *CASES["64-gpus"])
    start_trainer(training)
    training.until_ready(trainer=2, coordinator=2, gateway=3, console=1)
    training.api.patch(training.path(*DEPLOYMENTS, "mesh-explorer/scale"), {"spec": {"replicas": 24}})
    training.until_ready(explorer=24)
    trainers = places(training, "trainer")
    assert sorted(trainers.values()) == [1, 1]
    explorers = places(training, "explorer")
    assert (len(explorers), set(explorers.values())) == (6, {4})
    assert not trainers.keys() & explorers.keys()
    # What is there several times is on several nodes.
    assert len(places(training, "coordinator")) == 2
    assert len(places(training, "gateway")) == 3


def test_a_trainer_that_comes_back_finds_room_again(training: Site) -> None:
    """Explorers have taken a few GPUs of every node meanwhile, and it wants two whole ones."""
    eight_nodes(training)
    training.done("install", *CASES["64-gpus"])
    training.api.patch(training.path(*DEPLOYMENTS, "mesh-explorer/scale"), {"spec": {"replicas": 24}})
    training.until_ready(explorer=24)
    start_trainer(training)
    training.until_ready(trainer=2, explorer=24)
    assert set(places(training, "explorer").values()) == {4}
    stop_trainer(training)
    start_trainer(training)
    training.until_ready(trainer=2, explorer=24)
