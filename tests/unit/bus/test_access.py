import hashlib
import re
from pathlib import Path

import pytest

from schemas.topics import BATCHES, EXPERIENCES, MODEL_VERSIONS, TASKS, TOPICS
from trinity_bus.bus.administration.access import ADMIN, ROLES, USERS, Kind, Operation, Right, rights, user_name
from trinity_bus.bus.administration.requests import ITERATIONS, set_passwords
from trinity_bus.config import AccessSettings

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


def writes(user: str) -> set[str]:
    return {
        r.name.partition(".")[2] for r in rights("ns", user) if r.kind is Kind.TOPIC and r.operation is Operation.WRITE
    }


def test_nobody_but_the_coordinator_decides_what_is_trained_on_and_served() -> None:
    for topic in (BATCHES, MODEL_VERSIONS):
        assert [role for role in ROLES if topic.name in writes(role)] == ["coordinator"]
    assert "experiences" not in writes("trainer")
    assert TASKS.name not in writes("explorer")
    assert EXPERIENCES.name not in writes("taskset")


def test_only_the_admin_creates_and_nobody_touches_another_namespace() -> None:
    for user in USERS:
        creates = {r.name for r in rights("ns", user) if r.operation is Operation.CREATE}
        assert bool(creates) == (user == ADMIN)
        deletes = {r.name for r in rights("ns", user) if r.operation is Operation.DELETE and r.kind is Kind.TOPIC}
        if user == "coordinator":
            assert deletes == {f"ns.{topic.name}" for topic in TOPICS if topic.keep_ms is not None}
        else:
            assert bool(deletes) == (user == ADMIN)
        of_others = {right for right in rights("ns", user) if not right.name.startswith("ns.")}
        # The coordinator sees sizes and disks, which only the cluster as a whole tells.
        sees = {Right(Kind.CLUSTER, "kafka-cluster", Operation.DESCRIBE)}
        assert of_others == (sees if user == "coordinator" else set())
        # What is given by its beginning begins with no other namespace.
        prefixes = {(right.kind, right.name) for right in rights("ns", user) if right.prefix}
        assert prefixes <= {(Kind.TRANSACTIONAL_ID, "ns.taskset.")}


def test_every_role_sees_every_topic_and_every_user_has_a_setting() -> None:
    for role in ROLES:
        for topic in TOPICS:
            assert Right(Kind.TOPIC, f"ns.{topic.name}", Operation.DESCRIBE) in rights("ns", role)
    assert {name for name in AccessSettings.model_fields if name.endswith("_password")} == {
        f"{user}_password" for user in USERS
    }
    assert user_name("ns", "coordinator") == "ns.coordinator"


def test_a_credential_is_the_salted_password_of_the_standard() -> None:
    # RFC 5802, section 3: Hi() is PBKDF2 with HMAC as its function and the length of its output.
    ((user, mechanism, iterations, salt, found, _),) = set_passwords({"alice": "pencil"})._values[1]
    assert (user, mechanism, iterations) == ("alice", 2, ITERATIONS)
    assert found == hashlib.pbkdf2_hmac("sha512", b"pencil", salt, ITERATIONS)
    assert set_passwords({"alice": "pencil"})._values[1][0][3] != salt


@pytest.mark.parametrize("role", ROLES)
def test_the_page_says_what_each_role_reads_and_writes(role: str) -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{role}` |")]
    reads, written = (set(re.findall(r"`([a-z-]+)`", cell)) for cell in row.split("|")[2:4])
    assert reads == {topic.name for topic in TOPICS if role in topic.readers}
    assert written == {topic.name for topic in TOPICS if role in topic.writers}
