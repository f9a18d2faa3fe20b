"""Held versions, the history of versions, and going back to one: one scenario each."""

from typing import Any, Self

from schemas import Dispatch, PublishedVersion, PublishVersion, RollBack, SkippedBatch, VersionWanted
from tests.support.effects import written
from tests.support.simulation import harness as machine_harness
from tests.support.simulation.harness import announced as announced_in
from tests.support.simulation.harness import errors, replies
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import CoordinatorMachine, Effect, Fact, Observe


class Story(machine_harness.Harness):
    """One in which explorers stay, and versions are chosen."""

    def __init__(self, **settings: Any) -> None:
        patient = {"batch_size": 2, "explorer_timeout_s": 1000, "sync_timeout_s": 40, "max_attempts": 3}
        super().__init__(**{**patient, **settings})

    def again(self, version: int, incarnation: str = "t1") -> list[Effect]:
        return self.trained(version, incarnation, again=True)

    def choose(self, version: int | None, command_id: str = "c1", **fields: Any) -> list[Effect]:
        values = {"client": "me", "command_id": command_id, "model": "policy", "version": version, **fields}
        return self.command(PublishVersion(**values))

    def begin(self, versions: int) -> Self:
        self.beat(model_version=-1)
        for version in range(versions + 1):
            announced = announced_in(self.trained(version))[-1]
            self.synced(version, announced.epoch)
            self.beat(model_version=version)
        return self

    def pinned(self, version: int, held: int) -> Self:
        self.begin(held).choose(version)
        self.synced(version, announced_in(self.again(version))[-1].epoch)
        self.beat(model_version=version)
        return self


def asked(effects: list[Effect]) -> list[int | None]:
    return [command.version for command in written(effects, VersionWanted)]


def dispatched(effects: list[Effect]) -> list[str]:
    return [order.batch_id for order in written(effects, Dispatch)]


def test_each_version_is_remembered_once_with_what_made_it() -> None:
    harness, skipped = Story(), [SkippedBatch(batch_id="a", step=1, reason="poison")]
    effects = harness.trained(3, batch_id="train-000003", metrics={"loss": 0.5}, skipped=skipped)
    (remembered,) = written(effects, PublishedVersion)
    assert (remembered.version, remembered.batch_id, remembered.metrics) == (3, "train-000003", {"loss": 0.5})
    assert remembered.skipped == skipped
    # A restarted trainer publishes what the former incarnation has made, and knows nothing of the step.
    assert not written(harness.trained(3, incarnation="t2"), PublishedVersion)


def test_the_choice_of_the_version_that_is_served_pins_it_and_may_be_taken_back() -> None:
    harness = Story().begin(2)
    effects = harness.choose(2, asked_by="ada")
    assert not asked(effects)
    assert errors(effects) == [None]
    (told,) = announced_in(effects)
    assert (told.version, told.pinned, told.asked_by, told.members) == (2, True, "ada", []), "nobody moves"
    (told,) = announced_in(harness.choose(None, "c2", asked_by="bob"))
    assert (told.version, told.pinned, told.asked_by) == (2, False, "bob")
    harness.choose(2, "c3")
    assert not announced_in(harness.trained(3))


def test_announcements_say_who_chose_until_the_next_version_comes_by_itself() -> None:
    harness = Story().begin(3)
    assert not announced_in(harness.choose(1, "c1", asked_by="ada"))
    harness.restart()
    (told,) = announced_in(harness.again(1))
    assert (told.version, told.pinned, told.asked_by) == (1, True, "ada")
    harness.synced(1, told.epoch)
    (late,) = announced_in(harness.beat("e9", model_version=-1))
    assert (late.pinned, late.asked_by) == (True, "ada"), "who comes late hears it too"
    harness.synced(1, late.epoch, "e9")
    (told,) = announced_in(harness.choose(None, "c2", asked_by="bob"))
    assert (told.version, told.pinned, told.asked_by) == (3, False, "bob")
    for name in ("e0", "e9"):
        harness.synced(3, told.epoch, name)
    (told,) = announced_in(harness.trained(4))
    assert (told.version, told.pinned, told.asked_by) == (4, False, None)


def test_choices_that_cannot_be_carried_out_say_why() -> None:
    harness = Story()
    assert errors(harness.choose(1)) == ["unknown_version"]
    assert errors(harness.choose(1, "c2", model="other")) == ["unknown_model"]
    command = RollBack(client="c", command_id="c3", model="policy", version=1, reason="it diverged")
    (reply,) = replies(harness.command(command))
    assert (reply.error, reply.detail) == ("unknown_version", "no trainer has published a version yet")


def test_a_trainer_that_does_not_answer_costs_its_time_and_nothing_else() -> None:
    harness = Story().begin(2)
    harness.choose(1)
    harness.restart()
    (reply,) = replies(harness.wait(45))
    assert reply.error == "timeout"
    assert [c.fact for c in harness.again(1) if isinstance(c, Observe)] == [Fact.LATE_VERSION]


def test_a_second_choice_takes_the_place_of_the_first() -> None:
    harness = Story().begin(5)
    harness.choose(3)
    assert not harness.choose(3), "the same once more is no news"
    effects = harness.choose(4, "c2")
    assert [(reply.command_id, reply.error) for reply in replies(effects)] == [("c1", "invalid")]
    assert asked(effects) == [4]
    assert not announced_in(harness.again(3))
    assert announced_in(harness.again(4))


def test_attempts_that_need_newer_weights_end_first_and_no_more_of_them_begin() -> None:
    harness = Story(batch_size=2, max_inflight_batches=4).begin(0)
    harness.task("t1")
    harness.task("t2")
    harness.finished("t1")
    harness.finished("t2")
    harness.synced(1, announced_in(harness.trained(1))[-1].epoch)
    harness.beat(model_version=1, slots=1)
    harness.task("t3")
    assert dispatched(harness.task("t4")) == ["train-000002"]
    harness.choose(0)
    assert not announced_in(harness.again(0)), "t3 needs version 1 and runs"
    effects = harness.finished("t3", batch_id="train-000002", version_min=1, version_max=1)
    assert not dispatched(effects), "t4 would need version 1"
    (announced,) = announced_in(effects)
    assert announced.version == 0
    (reply,) = replies(effects)
    assert reply.detail == "1 batches wait until the newest version is served again: train-000002"
    assert [c.subject for c in effects if isinstance(c, Observe) and c.fact is Fact.STARVED] == ["train-000002"]
    harness.synced(0, announced.epoch)
    harness.beat(model_version=0, slots=1)
    (announced,) = announced_in(harness.choose(None, "c2"))
    assert dispatched(harness.synced(1, announced.epoch)) == ["train-000002"], "it goes on"


def test_an_evaluation_is_of_the_pinned_version() -> None:
    harness = Story().pinned(3, held=5)
    assert dispatched(harness.task("e1", batch_type="eval", batch_id="0/held-out", batch_size=1)) == ["0/held-out"]


def test_a_version_waits_for_an_evaluation_that_has_begun_and_no_other_waits_for_it() -> None:
    harness = Story().begin(1)
    exam = {"batch_type": "eval", "batch_size": 1}
    assert dispatched(harness.task("e1", batch_id="1/held-out", **exam)) == ["1/held-out"]
    assert not announced_in(harness.trained(2)), "its tokens are of version 1"
    harness.restart()
    harness.beat(model_version=1)
    assert not announced_in(harness.trained(3))
    assert not dispatched(harness.task("e2", batch_id="3/held-out", **exam)), "it is of the newest version"
    ended = harness.finished("e1", batch_id="1/held-out", batch_type="eval", experience=None)
    (announced,) = announced_in(ended)
    assert announced.version == 3
    assert dispatched(harness.synced(3, announced.epoch)) == ["3/held-out"]
    harness.finished("e2", batch_id="3/held-out", batch_type="eval", experience=None)
    harness.task("e3", batch_id="3/judged", pool="judge", **exam)
    assert [v.version for v in announced_in(harness.trained(4))] == [4], "nothing of it is drawn with version 3"


def test_a_trainer_that_starts_anew_is_asked_for_the_pinned_version() -> None:
    harness = Story().pinned(3, held=5)
    assert asked(harness.trained(5, incarnation="t2")) == [3]
    assert not announced_in(harness.beat("e1", model_version=-1)), "nobody could serve it"
    (announced,) = announced_in(harness.again(3, incarnation="t2"))
    assert [(m.explorer, announced.trainer_incarnation) for m in announced.members] == [("e1", "t2")]


def test_a_pin_and_a_choice_outlive_the_coordinator() -> None:
    harness = Story().begin(5)
    harness.choose(3)
    harness.restart()
    harness.beat(model_version=5)
    harness.synced(3, announced_in(harness.again(3))[-1].epoch)
    harness.restart()
    assert not announced_in(harness.trained(6))
    assert harness.machine.sync.state.pinned
    assert CoordinatorMachine(CoordinatorSettings()).sync.state.choice is None
