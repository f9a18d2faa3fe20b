"""What changes while a release is there: sizes, settings, versions, and the way back."""

import pytest

from tests.support.chart import CASES
from tests.support.cluster.api import MERGE
from tests.support.cluster.site import LARGE, Site

pytestmark = pytest.mark.cluster

TOPICS = ("kafka.strimzi.io/v1", "kafkatopics")
DEPLOYMENTS = ("apps/v1", "deployments")
SCALING = "scaling.enabled=true,scaling.prometheus=http://prometheus:9090,scaling.max=8"


def names(site: Site, component: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in site.ready(component)}


def images(site: Site, component: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in site.ready(component)}


def test_it_is_changed_and_changed_back(training: Site) -> None:
    training.kubelets.add("node", LARGE)
    training.done("install", *CASES["8-gpus"])
    training.until_ready(coordinator=2, explorer=4, trainer=1, gateway=2, console=1)
    first = names(training, "explorer")
    # More explorers and partitions: nobody is started anew for it.
    more = ["--set", "explorer.replicas=6,kafka.partitions.experiences=16,kafka.partitions.rollouts=32"]
    training.done("upgrade", *CASES["8-gpus"], *more)
    training.until_ready(explorer=6)
    assert first < names(training, "explorer")
    partitions = {
        one["metadata"]["name"]: one["spec"]["partitions"] for one in training.api.items(training.path(*TOPICS))
    }
    assert (partitions["trinity.experiences"], partitions["trinity.rollouts"]) == (16, 32)
    # Another version, and other settings: every pod is another one in the end.
    before = {name: names(training, name) for name in ("coordinator", "explorer", "trainer", "gateway", "console")}
    training.done("upgrade", *CASES["8-gpus"], *more, "--set", "image.tag=0.2.0,settings.coordinator.batch_size=64")
    for name, old in before.items():
        wanted = len(old)
        training.api.wait(lambda name=name: images(training, name) in ({"0.2.0"}, {"0.2.0-gpu"}), f"new {name}")  # type: ignore[misc]
        training.until_ready(**{name: wanted})
        # A StatefulSet's keep their names.
        assert name == "trainer" or not old & names(training, name)
    training.done("rollback", "2")
    for name, old in before.items():
        training.api.wait(lambda name=name: images(training, name) in ({"0.1.0"}, {"0.1.0-gpu"}), f"old {name}")  # type: ignore[misc]
        training.until_ready(**{name: len(old)})


@pytest.mark.parametrize("way", ["upgrade", "install"])
def test_partitions_that_are_there_are_not_taken_away(way: str, training: Site) -> None:
    """Kafka takes none away, so the topic would never again be what its resource says."""
    training.done("install", *CASES["one-node"], "--set", "kafka.partitions.experiences=16")
    if way == "install":
        training.done("uninstall")
    done = training.helm(way, *CASES["one-node"])
    assert done.returncode != 0
    assert "trinity.experiences has 16 partitions, and cannot have 8" in done.stderr
    training.done(way, *CASES["one-node"], "--set", "kafka.partitions.experiences=24")


def test_explorers_stay_when_their_number_is_given_to_keda(training: Site) -> None:
    """And what KEDA has made of it stays at each upgrade, and when it is taken from KEDA again."""
    training.kubelets.add("node", LARGE)
    training.done("install", *CASES["8-gpus"])
    training.until_ready(explorer=4)
    first = names(training, "explorer")
    training.done("upgrade", *CASES["8-gpus"], "--set", SCALING)
    explorer = training.path(*DEPLOYMENTS, "mesh-explorer")
    assert training.api.get(explorer)["spec"]["replicas"] == 4
    # As a HorizontalPodAutoscaler does.
    training.api.patch(f"{explorer}/scale", {"spec": {"replicas": 7}}, MERGE)
    training.done("upgrade", *CASES["8-gpus"], "--set", f"{SCALING},scaling.calmSeconds=300")
    assert training.api.get(explorer)["spec"]["replicas"] == 7
    training.until_ready(explorer=7)
    assert first < names(training, "explorer")
    training.done("upgrade", *CASES["8-gpus"], "--set", "explorer.replicas=5")
    training.until_ready(explorer=5)


def test_what_keda_makes_of_the_scaled_object_is_taken(training: Site) -> None:
    """Its operator writes this HorizontalPodAutoscaler."""
    training.done("install", *CASES["64-gpus"])
    scaled = training.api.get(training.path("keda.sh/v1alpha1", "scaledobjects", "mesh-explorer"))["spec"]
    target = {"averageValue": scaled["triggers"][0]["metadata"]["threshold"], "type": "AverageValue"}
    scaler = {
        "metadata": {"name": "keda-hpa-mesh-explorer"},
        "spec": {
            "minReplicas": scaled["minReplicaCount"],
            "maxReplicas": scaled["maxReplicaCount"],
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **scaled["scaleTargetRef"]},
            "metrics": [{"type": "External", "external": {"metric": {"name": "s0-prometheus"}, "target": target}}],
            **scaled["advanced"]["horizontalPodAutoscalerConfig"],
        },
    }
    training.api.create(training.path("autoscaling/v2", "horizontalpodautoscalers"), scaler)


def test_a_trainer_of_one_node_becomes_one_of_several(training: Site) -> None:
    training.kubelets.add("node", LARGE)
    several = [*CASES["8-gpus"], "--set", "checkpoints.accessMode=ReadWriteMany"]
    training.done("install", *several)
    training.until_ready(trainer=1)
    training.done("upgrade", *several, "--set", "trainer.nodes=2")
    training.until_ready(trainer=0)
    found = training.api.items(training.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets"))
    assert [one["metadata"]["name"] for one in found] == ["mesh-trainer"]
    training.done("upgrade", *several)
    training.until_ready(trainer=1)


def test_an_upgrade_mends_a_trainer_that_never_became_ready(training: Site) -> None:
    """As one does whose settings, or whose image, were wrong: nobody has to delete its pod by hand."""
    training.kubelets.add("node", LARGE)
    training.kubelets.slow.add("trainer")
    training.done("install", *CASES["one-node"])
    training.api.wait(lambda: [pod for pod in training.pods("trainer") if "nodeName" in pod["spec"]], "trainer")
    training.done("upgrade", *CASES["one-node"], "--set", "image.tag=0.2.0")

    def mended() -> bool:
        pods = training.pods("trainer")
        return [pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods] == ["0.2.0"]

    training.api.wait(mended, "trainer of the next version")
    training.kubelets.slow.discard("trainer")
    training.until_ready(trainer=1)


def test_what_cannot_change_is_said_and_stays(training: Site) -> None:
    """The claim of the checkpoints. Helm changes all else, calls the release failed, and goes on from there."""
    training.kubelets.add("node", LARGE)
    training.done("install", *CASES["one-node"])
    training.until_ready(coordinator=2, explorer=1, trainer=1)
    claim = training.path("v1", "persistentvolumeclaims", "mesh-checkpoints")
    before = training.api.get(claim)["spec"]
    for changed in ("accessMode=ReadWriteMany", "size=1Gi"):
        done = training.helm("upgrade", *CASES["one-node"], "--set", f"checkpoints.{changed},explorer.replicas=2")
        assert done.returncode != 0
        assert '"mesh-checkpoints"' in done.stderr, done.stderr
    assert training.api.get(claim)["spec"] == before
    training.done("upgrade", *CASES["one-node"])
    training.until_ready(coordinator=2, explorer=1, trainer=1)
