"""A trainer on several nodes: launchers that find each other, in pods that start and end together."""

from typing import Any

import pytest

from tests.support.chart import of_kind, values, with_values

pytestmark = pytest.mark.chart

SIZE = "64-gpus"


@pytest.fixture
def group() -> dict[str, Any]:
    (found,) = of_kind(with_values(SIZE), "LeaderWorkerSet").values()
    return dict(found["leaderWorkerTemplate"])


def container(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return dict(found)


def variables(template: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container(template)["env"]}


def secrets_of(template: dict[str, Any]) -> list[str]:
    (secrets,) = [one for one in template["spec"]["volumes"] if one["name"] == "secrets"]
    return [item["key"] for source in secrets["projected"]["sources"] for item in source["secret"]["items"]]


def test_each_node_launches_its_part_of_the_ranks(group: dict[str, Any]) -> None:
    given = values(SIZE)
    trainer = given["settings"]["trainer"]
    for template in (group["leaderTemplate"], group["workerTemplate"]):
        assert container(template)["command"] == ["torchrun"]
        told = dict(one.split("=") for one in container(template)["args"] if "=" in one)
        assert told["--nnodes"] == str(group["size"]) == str(given["trainer"]["nodes"])
        ranks = int(told["--nproc-per-node"]) * group["size"]
        assert ranks == trainer["tensor_parallel"] * trainer["data_parallel"]
        assert int(told["--nproc-per-node"]) == container(template)["resources"]["limits"]["nvidia.com/gpu"]
        assert told["--node-rank"] == "$(LWS_WORKER_INDEX)", "rank 0 is where the leader is"
        assert told["--master-addr"] == "$(LWS_LEADER_ADDRESS)"
        assert told["--max-restarts"] == "0", "the group is what starts anew"
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_ranks_find_rank_0_by_its_pods_address_and_prove_themselves_by_a_file(group: dict[str, Any]) -> None:
    for template in (group["leaderTemplate"], group["workerTemplate"]):
        told = variables(template)
        assert told["TRINITY_BUS_TRAINER__HOST"] == "mesh-trainer-0.mesh-trainer.training.svc.cluster.local"
        assert told["TRINITY_BUS_TRAINER__RANKS_HOST"] == "$(POD_IP)"
        names = list(told)
        assert names.index("POD_IP") < names.index("TRINITY_BUS_TRAINER__RANKS_HOST"), "else it is not filled in"
        assert told["TRINITY_BUS_TRAINER__RANKS_KEY_FILE"] == "/run/secrets/trinity-bus/ranks-key"
        assert "ranks-key" in secrets_of(template)
    # LeaderWorkerSet makes that name's service itself, and would leave one of the chart's as it is.
    assert not [name for name in of_kind(with_values(SIZE), "Service") if "trainer" in name]


def test_the_leader_alone_knows_the_log(group: dict[str, Any]) -> None:
    leader, worker = (group[one] for one in ("leaderTemplate", "workerTemplate"))
    assert [name for name in variables(leader) if "_KAFKA__" in name]
    assert not [name for name in variables(worker) if "_KAFKA__" in name]
    assert secrets_of(worker) == ["ranks-key"]


def test_all_share_the_checkpoints_and_the_leader_alone_is_asked(group: dict[str, Any]) -> None:
    leader, worker = group["leaderTemplate"], group["workerTemplate"]
    shared = [[one for one in at["spec"]["volumes"] if one["name"] != "secrets"] for at in (leader, worker)]
    assert shared[0] == shared[1]
    (claim,) = of_kind(with_values(SIZE), "PersistentVolumeClaim").values()
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert {name for name in container(leader) if name.endswith("Probe")}
    assert not {name for name in container(worker) if name.endswith("Probe")}
    own = ("containers", "volumes")
    around = [{key: part for key, part in one["spec"].items() if key not in own} for one in (leader, worker)]
    assert around[0] == around[1]
    assert leader["metadata"] == worker["metadata"]
