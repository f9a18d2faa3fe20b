"""An API server takes what the chart makes, for each size, from somebody who has rights in one namespace alone."""

import pytest

from tests.support.chart import CASES, EXTERNAL
from tests.support.cluster.site import LARGE, Site

pytestmark = pytest.mark.cluster

PODS = {
    "one-node": {"coordinator": 2, "explorer": 1, "trainer": 1, "taskset": 1},
    "8-gpus": {"coordinator": 2, "explorer": 4, "trainer": 1, "gateway": 2, "console": 1},
    # Nobody has scaled the explorers yet, or makes pods of a LeaderWorkerSet here.
    "64-gpus": {"coordinator": 2, "explorer": 1, "trainer": 0, "gateway": 3, "console": 1},
}
PODS[EXTERNAL] = PODS["8-gpus"]
KEPT = ("kafkatopics/trinity.", "persistentvolumeclaims/mesh-checkpoints")


@pytest.mark.parametrize("case", CASES)
def test_it_is_installed_and_removed_and_what_cannot_be_made_again_stays(case: str, training: Site) -> None:
    training.kubelets.add("node", LARGE)
    before = training.everything()
    training.done("install", *CASES[case])
    # Pods are let in one by one, by the namespace's level of security and its quota.
    training.until_ready(**PODS[case])
    made = training.everything() - before
    training.done("uninstall", "--wait")
    kept = training.everything() - before
    assert kept == {one for one in made if one.startswith(KEPT)}
    training.api.wait(lambda: not training.pods(), "end of the pods")
    # The next release goes on with it.
    training.done("install", *CASES[case])
    assert training.everything() - before == made


def test_pods_of_a_trainer_of_several_nodes_are_let_in(training: Site) -> None:
    """LeaderWorkerSet makes them of these two templates."""
    training.done("install", *CASES["64-gpus"])
    trainer = training.api.get(training.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "mesh-trainer"))
    for role in ("leaderTemplate", "workerTemplate"):
        template = trainer["spec"]["leaderWorkerTemplate"][role]
        pod = {"metadata": {"name": role.lower(), "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
        training.api.create(training.path("v1", "pods"), pod)


def test_a_pod_that_is_not_confined_is_refused_here(training: Site) -> None:
    """Else the tests above would say nothing."""
    bounds = {"cpu": "1", "memory": "1Gi"}
    container = {"name": "any", "image": "any:1.0.0", "resources": {"limits": bounds, "requests": bounds}}
    pod = {"metadata": {"name": "any"}, "spec": {"containers": [container]}}
    answer = training.api.answer("POST", training.path("v1", "pods"), pod)
    assert answer.status_code == 403
    assert "violates PodSecurity" in answer.text
