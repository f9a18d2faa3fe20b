"""Topics, users and settings of the chart are those of the code."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.topics import TOPICS
from tests.support.chart import of_kind, refused, with_values
from trinity_bus.bus.administration.access import CLUSTER, USERS, Kind, Operation, Right, rights
from trinity_bus.bus.topics import config_of, copies_for, durability
from trinity_bus.config import KafkaSettings, Settings
from workers.preconditions import problems

pytestmark = pytest.mark.chart

SECRETS: Final = "/run/secrets/trinity-bus/"
_KINDS: Final = {
    "topic": Kind.TOPIC,
    "group": Kind.GROUP,
    "cluster": Kind.CLUSTER,
    "transactionalId": Kind.TRANSACTIONAL_ID,
}


def brokers(resources: list[dict[str, Any]]) -> int:
    pools = of_kind(resources, "KafkaNodePool").values()
    return sum(pool["replicas"] for pool in pools if "broker" in pool["roles"])


def test_topics_are_made_as_the_command_makes_them(resources: list[dict[str, Any]]) -> None:
    found = of_kind(resources, "KafkaTopic")
    if not found:
        pytest.skip("the cluster is somebody else's")
    copies = copies_for(None, brokers(resources))
    settings = KafkaSettings()
    assert found == {
        topic.full_name("trinity"): {
            "partitions": topic.partitions,
            "replicas": copies,
            "config": config_of(topic, settings) | durability(copies),
        }
        for topic in TOPICS
    }


def test_topics_that_can_grow_have_as_many_partitions_as_they_are_told() -> None:
    topics = of_kind(with_values("8-gpus", "kafka.partitions.experiences=16"), "KafkaTopic")
    assert [name for name, spec in topics.items() if spec["partitions"] == 16] == [
        "trinity.rollouts",
        "trinity.experiences",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("tasks=9", "trinity.tasks has 8 partitions, and cannot have"),
        ("experiences=4", "trinity.experiences has 8 partitions, and cannot have"),
        ("experience=16", "kafka.partitions: there is no topic experience"),
    ],
)
def test_partitions_that_cannot_be_are_refused(wrong: str, said: str) -> None:
    assert said in refused("8-gpus", f"kafka.partitions.{wrong}")


def test_users_have_the_rights_that_the_command_gives(resources: list[dict[str, Any]]) -> None:
    found = of_kind(resources, "KafkaUser")
    if not found:
        pytest.skip("the cluster is somebody else's")
    given = {
        name: frozenset(right for acl in user["authorization"]["acls"] for right in granted(acl))
        for name, user in found.items()
    }
    assert given == {f"trinity.{user}": rights("trinity", user) for user in USERS}


def granted(acl: dict[str, Any]) -> list[Right]:
    """Return what Strimzi gives by one entry."""
    thing = acl["resource"]
    name, prefix = thing.get("name", CLUSTER), thing.get("patternType") == "prefix"
    words = [re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper() for operation in acl["operations"]]
    return [Right(_KINDS[thing["type"]], name, Operation[word], prefix) for word in words]


def test_every_service_starts_with_what_its_pod_has(
    workloads: dict[str, dict[str, Any]],
    resources: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (config,) = [one["data"]["mesh.toml"] for one in resources if one["kind"] == "ConfigMap"]
    # What is in the image alone.
    (tmp_path / "mesh.toml").write_text(re.sub(r'path = "/usr/local/lib.*"', f'path = "{__file__}"', config))
    for variable in [variable for variable in os.environ if variable.upper().startswith("TRINITY_BUS_")]:
        monkeypatch.delenv(variable)
    for name, template in workloads.items():
        folder = tmp_path / name
        secrets_of(template, folder)
        with monkeypatch.context() as pod:
            for entry in template["spec"]["containers"][0]["env"]:
                if entry["name"].startswith("TRINITY_BUS_"):
                    pod.setenv(
                        entry["name"], entry["value"].replace(SECRETS, f"{folder}/").replace("$(POD_IP)", "10.0.0.7")
                    )
            pod.setenv("TRINITY_BUS_CONFIG", str(tmp_path / "mesh.toml"))
            settings = Settings()
            assert problems(name, settings) == []
            assert settings.kafka.sasl_username == f"trinity.{'operator' if name == 'console' else name}"
            assert settings.health.host == "0.0.0.0"  # noqa: S104 - the kubelet asks
        shutil.rmtree(folder)


def secrets_of(template: dict[str, Any], folder: Path) -> None:
    """Write what is mounted as a pod's secrets."""
    folder.mkdir()
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=trainer"
    pair = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    subprocess.run([*shlex.split(command), *pair], check=True, capture_output=True)
    keys = {"ca.crt": "certificate", "tls.crt": "certificate", "tls.key": "key"}
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "secrets"]
    for item in (item for source in volume["projected"]["sources"] for item in source["secret"]["items"]):
        if item["key"] in keys:
            shutil.copy(folder / keys[item["key"]], folder / item["path"])
        else:
            (folder / item["path"]).write_text("longer-than-sixteen-characters\n")


def test_explorers_find_the_trainer_where_it_listens(
    workloads: dict[str, dict[str, Any]], resources: list[dict[str, Any]]
) -> None:
    environment = {entry["name"]: entry.get("value") for entry in workloads["trainer"]["spec"]["containers"][0]["env"]}
    assert environment["TRINITY_BUS_TRAINER__HOST"] == "mesh-trainer-0.mesh-trainer.training.svc.cluster.local"
    # A LeaderWorkerSet makes a service of its own name itself.
    for trainer in of_kind(resources, "StatefulSet").values():
        service = of_kind(resources, "Service")[trainer["serviceName"]]
        assert trainer["serviceName"] == "mesh-trainer"
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert service["selector"].items() <= workloads["trainer"]["metadata"]["labels"].items()
    for certificate in of_kind(resources, "Certificate").values():
        assert certificate["dnsNames"] == [environment["TRINITY_BUS_TRAINER__HOST"]]
