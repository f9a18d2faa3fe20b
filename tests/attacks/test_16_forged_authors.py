"""Attack 16: what an explorer's credential can say is no more than what explorers say.

``StepTrained`` lay on the topic that explorers write: any of them could announce a version of its own, at its own
address, and the whole fleet took it. ``test_04`` has it done to a coordinator.
"""

from typing import Any

import pytest
from aiokafka import ConsumerRecord

from benchmarks._records import step_trained
from schemas import (
    BatchRecord,
    CoordinatorHeartbeat,
    ExplorerHeartbeat,
    ExplorerLeft,
    PublishVersion,
    RunnersReport,
    RunnerState,
    StepTrained,
    Task,
    TrainerHeartbeat,
    VersionWanted,
)
from schemas.codec import encode
from schemas.topic import Role, Topic
from schemas.topics import (
    BATCHES,
    COMMANDS,
    COORDINATOR_EVENTS,
    EVENTS,
    EXPLORER_EVENTS,
    OPERATOR_COMMANDS,
    TOPICS,
    TRAINER_EVENTS,
)
from tests.support.fakes.mesh_records import coordinator_beat
from trinity_bus.bus import Undecodable
from trinity_bus.bus.read.received import receive
from workers.coordinator.input_reader import still_read

FORGED_STEP = step_trained(1000, "rogue", ("192.0.2.1", 1))


def taken(topic: Topic, key: str | None, record: Any, expect: tuple[type, ...] | None = None) -> Any:
    """What a reader makes of a record."""
    raw_key = None if key is None else key.encode()
    found = ConsumerRecord(topic.name, 0, 0, 0, 0, raw_key, encode(record), None, 0, 0, ())
    return receive(topic, found, topic.records if expect is None else expect).record


def reason(record: object) -> str:
    assert isinstance(record, Undecodable)
    return record.reason


def test_who_writes_a_topic_may_say_all_that_it_says() -> None:
    shared = {topic.name: set(topic.writers) for topic in TOPICS if len(topic.writers) > 1}
    programs = {"producer", "operator"}
    assert shared == {
        "tasks": {*programs, "taskset"},
        "commands": {*programs, "gateway"},
        "experiences": {*programs, "explorer", "gateway"},
        "turns": {"explorer", "gateway"},
        "demonstrations": programs,
        "preferences": programs,
    }
    authors: dict[type, set[Role]] = {}
    for topic in TOPICS:
        for record in topic.records:
            authors.setdefault(record, set()).update(topic.writers)
    assert authors[StepTrained] == authors[TrainerHeartbeat] == {"trainer"}
    assert authors[VersionWanted] == authors[CoordinatorHeartbeat] == authors[BatchRecord] == {"coordinator"}


@pytest.mark.parametrize("topic", [EXPLORER_EVENTS, COORDINATOR_EVENTS, BATCHES], ids=lambda topic: topic.name)
def test_a_record_of_another_author_is_forged(topic: Topic) -> None:
    assert reason(taken(topic, "trainer-0", FORGED_STEP)) == "forged_author"


def test_a_producer_that_pins_a_version_where_producers_ask_is_found_out() -> None:
    pin = PublishVersion(client="c", command_id="1", model="policy", version=3)
    assert taken(OPERATOR_COMMANDS, "policy", pin) == pin
    assert reason(taken(COMMANDS, "policy", pin)) == "forged_author"
    mistaken = Task(task_id="t", workflow="math", prompt="1")
    assert reason(taken(COMMANDS, "t", mistaken)) == "forged_author", "a gateway writes here, and may send no tasks"


def test_what_its_author_says_is_taken() -> None:
    assert taken(TRAINER_EVENTS, "trainer-0", FORGED_STEP) == FORGED_STEP
    left = ExplorerLeft(explorer="e", incarnation="i")
    assert taken(EXPLORER_EVENTS, "e", left) == left


def test_expecting_a_type_does_not_take_it_from_where_it_may_not_stand() -> None:
    beat = coordinator_beat()
    fleet = (CoordinatorHeartbeat, ExplorerHeartbeat)
    assert taken(COORDINATOR_EVENTS, "c", beat, fleet) == beat
    assert reason(taken(EXPLORER_EVENTS, "c", beat, fleet)) == "unexpected_schema"
    assert reason(taken(EXPLORER_EVENTS, "c", beat, (CoordinatorHeartbeat,))) == "unexpected_schema"


@pytest.mark.parametrize("key", ["another", "", None])
@pytest.mark.parametrize("topic", EVENTS[:2], ids=lambda topic: topic.name)
def test_a_key_that_is_not_the_sender_is_forged(topic: Topic, key: str | None) -> None:
    record = ExplorerLeft(explorer="e", incarnation="i") if topic is EXPLORER_EVENTS else FORGED_STEP
    assert reason(taken(topic, key, record)) == "forged_sender"


def test_an_explorer_tells_of_no_runners_but_its_own() -> None:
    def report(runner: str) -> RunnersReport:
        return RunnersReport(explorer="e", incarnation="i", runners=[RunnerState(runner=runner, state="idle", pid=1)])

    assert taken(EXPLORER_EVENTS, "e", report("e/0")) == report("e/0")
    for runner in ("f/0", "ee/0", "e"):
        assert reason(taken(EXPLORER_EVENTS, "e", report(runner))) == "forged_sender"


def test_positions_in_topics_that_are_gone_are_told_from_the_others() -> None:
    positions = {("tasks", 1): 5, ("events", 3): 9, ("events", 4): 1, ("explorer-events", 3): 2}
    assert still_read(positions) == ({("tasks", 1): 5, ("explorer-events", 3): 2}, ["events"])
