"""Held versions, the history of versions, and going back to one: one story each."""

from typing import Any

from schemas import CommandReply, PublishedVersion, PublishVersion, VersionRefused
from tests.support import story as story_of_a_machine
from tests.support.story import announced as announced_in
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import Ask, Command, CoordinatorMachine, Fact, Observe, Order, Remember, Reply


class Story(story_of_a_machine.Story):
    """One in which explorers stay, and versions are chosen."""

    def __init__(self, **settings: Any) -> None:
        patient = {"batch_size": 2, "explorer_timeout_s": 1000, "sync_timeout_s": 40, "max_attempts": 3}
        super().__init__(**{**patient, **settings})

    def again(self, version: int, life: str = "t1") -> list[Command]:
        return self.trained(version, life, again=True)

    def choose(self, version: int | None, command_id: str = "c1", **fields: Any) -> list[Command]:
        values = {"client": "me", "command_id": command_id, "model": "policy", "version": version, **fields}
        return self.command(PublishVersion(**values))

    def refused(self, version: int) -> list[Command]:
        return self.event(
            VersionRefused(
                trainer="trainer",
                incarnation="t1",
                model="policy",
                version=version,
                reason="its checkpoint is gone",
                available=[4, 5],
            )
        )

    def begin(self, versions: int) -> None:
        """Serve so many versions, one after another."""
        self.beat(model_version=-1)
        for version in range(versions + 1):
            announced = announced_in(self.trained(version))[-1]
            self.synced(version, announced.epoch)
            self.beat(model_version=version)


def replies(commands: list[Command]) -> list[CommandReply]:
    return [command.record for command in commands if isinstance(command, Reply)]


def asked(commands: list[Command]) -> list[int | None]:
    return [command.record.version for command in commands if isinstance(command, Ask)]


def dispatched(commands: list[Command]) -> list[str]:
    return [command.record.batch_id for command in commands if isinstance(command, Order)]


def test_each_version_is_remembered_once_with_what_made_it() -> None:
    story = Story()
    commands = story.trained(3, batch_id="train-000003", metrics={"loss": 0.5})
    (remembered,) = [c.record for c in commands if isinstance(c, Remember)]
    assert (remembered.version, remembered.batch_id, remembered.metrics) == (3, "train-000003", {"loss": 0.5})
    assert isinstance(remembered, PublishedVersion)
    # A restarted trainer publishes what the former life has made, and knows nothing of the step.
    assert not [c for c in story.trained(3, life="t2") if isinstance(c, Remember)]


def test_a_version_goes_back_and_forth() -> None:
    story = Story()
    story.begin(5)
    assert asked(story.choose(3)) == [3]
    commands = story.again(3)
    (announced,) = announced_in(commands)
    assert (announced.version, announced.pinned, [m.explorer for m in announced.members]) == (3, True, ["e0"])
    assert [reply.error for reply in replies(commands)] == [None]
    story.synced(3, announced.epoch)
    assert not announced_in(story.trained(6)), "what is newer is held"
    assert story.machine.sync.version == 3
    commands = story.choose(None, "c2")
    (announced,) = announced_in(commands)
    assert (announced.version, announced.pinned) == (6, False)
    assert [reply.error for reply in replies(commands)] == [None]


def test_the_choice_of_the_version_that_is_served_pins_it() -> None:
    story = Story()
    story.begin(2)
    commands = story.choose(2)
    assert not asked(commands)
    assert [reply.error for reply in replies(commands)] == [None]
    assert not announced_in(story.trained(3))


def test_a_version_that_is_gone_is_refused_with_those_that_there_are() -> None:
    story = Story()
    story.begin(5)
    story.choose(1)
    (reply,) = replies(story.refused(1))
    assert reply.error == "unknown_version"
    assert reply.detail == "version 1 cannot be had: its checkpoint is gone; there are 4, 5"
    assert announced_in(story.trained(6)), "nothing has changed"


def test_choices_that_cannot_be_carried_out_say_why() -> None:
    story = Story()
    assert [reply.error for reply in replies(story.choose(1))] == ["unknown_version"]
    assert [reply.error for reply in replies(story.choose(1, "c2", model="other"))] == ["unknown_model"]


def test_a_trainer_that_does_not_answer_costs_its_time_and_nothing_else() -> None:
    story = Story()
    story.begin(2)
    story.choose(1)
    story.restart()
    (reply,) = replies(story.wait(45))
    assert reply.error == "timeout"
    assert [c.fact for c in story.again(1) if isinstance(c, Observe)] == [Fact.LATE_VERSION]


def test_a_second_choice_takes_the_place_of_the_first() -> None:
    story = Story()
    story.begin(5)
    story.choose(3)
    assert not story.choose(3), "the same once more is no news"
    commands = story.choose(4, "c2")
    assert [(reply.command_id, reply.error) for reply in replies(commands)] == [("c1", "invalid")]
    assert asked(commands) == [4]
    assert not announced_in(story.again(3))
    assert announced_in(story.again(4))


def test_attempts_that_need_newer_weights_end_first_and_no_more_of_them_begin() -> None:
    story = Story(batch_size=2, max_inflight_batches=4)
    story.begin(0)
    story.task("t1")
    story.task("t2")
    story.finished("t1")
    story.finished("t2")
    story.synced(1, announced_in(story.trained(1))[-1].epoch)
    story.beat(model_version=1, slots=1)
    story.task("t3")
    assert dispatched(story.task("t4")) == ["train-000002"]
    story.choose(0)
    assert not announced_in(story.again(0)), "t3 needs version 1 and runs"
    commands = story.finished("t3", batch_id="train-000002", version_min=1, version_max=1)
    assert not dispatched(commands), "t4 would need version 1"
    (announced,) = announced_in(commands)
    assert announced.version == 0
    (reply,) = replies(commands)
    assert reply.detail == "1 batches wait until the newest version is served again: train-000002"
    assert [c.subject for c in commands if isinstance(c, Observe) and c.fact is Fact.STARVED] == ["train-000002"]
    story.synced(0, announced.epoch)
    story.beat(model_version=0, slots=1)
    (announced,) = announced_in(story.choose(None, "c2"))
    assert dispatched(story.synced(1, announced.epoch)) == ["train-000002"], "it goes on"


def test_an_evaluation_is_of_the_pinned_version() -> None:
    story = Story()
    story.begin(5)
    story.choose(3)
    story.synced(3, announced_in(story.again(3))[-1].epoch)
    story.beat(model_version=3)
    assert dispatched(story.task("e1", batch_type="eval", batch_id="0/held-out", batch_size=1)) == ["0/held-out"]


def test_a_trainer_that_starts_anew_is_asked_for_the_pinned_version() -> None:
    story = Story()
    story.begin(5)
    story.choose(3)
    story.synced(3, announced_in(story.again(3))[-1].epoch)
    story.beat(model_version=3)
    assert asked(story.trained(5, life="t2")) == [3]
    assert not announced_in(story.beat("e1", model_version=-1)), "nobody could serve it"
    (announced,) = announced_in(story.again(3, life="t2"))
    assert [(m.explorer, announced.trainer_incarnation) for m in announced.members] == [("e1", "t2")]


def test_a_pin_and_a_choice_outlive_the_coordinator() -> None:
    story = Story()
    story.begin(5)
    story.choose(3)
    story.restart()
    story.beat(model_version=5)
    story.synced(3, announced_in(story.again(3))[-1].epoch)
    story.restart()
    assert not announced_in(story.trained(6))
    assert story.machine.sync.state.pinned
    assert CoordinatorMachine(CoordinatorSettings()).sync.state.choice is None
