"""Attack 20: one client's work holds up nobody else's, and nobody ends what belongs to others.

An evaluation batch of 4,090 tasks took 40 of 40 freed slots, and stopped the reading of tasks for everybody.
"""

import random
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import CommandReply, Dispatch, Task
from schemas.codec import decode, encode
from schemas.topics import OPERATOR_COMMANDS, TOPICS
from tests.support.simulation.harness import Harness, batches, dispatches, errors, refusals, replies, statuses
from trinity_bus.client import producer_name
from trinity_bus.client.connection import check_reply
from trinity_bus.config import KafkaSettings
from trinity_bus.coordination import Effect
from trinity_bus.coordination.batches.accounts import Counters, Shares, Unfilled
from trinity_bus.coordination.batches.batch import Batch


def busy_story(**settings: Any) -> tuple[Harness, list[Dispatch]]:
    """Forty slots, all taken by a training batch of one producer, in this order; the others find them full."""
    harness = Harness(**{"batch_size": 40, "max_staleness": 10**6, "explorer_timeout_s": 10**6, **settings})
    for name in ("e0", "e1"):
        harness.beat(name, slots=20)
    running = [dispatch for n in range(40) for dispatch in dispatches(harness.task(f"first-{n}", producer="trainset"))]
    assert len(running) == 40
    return harness, running


def evaluate(harness: Harness, count: int = 4090, producer: str | None = "greedy", **fields: Any) -> list[Effect]:
    """A large evaluation, whose name begins with a number before all others."""
    commands: list[Effect] = []
    for number in range(count):
        arrived = harness.arrived(
            f"exam-{number}", batch_id="0/exam", batch_type="eval", batch_size=count, producer=producer, **fields
        )
        commands += harness.machine.handle(arrived, harness.now)
    harness.store.update(harness.machine.changes())
    return commands


def answer(harness: Harness, order: Dispatch) -> list[Dispatch]:
    fields: dict[str, Any] = {"batch_id": order.batch_id, "batch_type": order.batch_type}
    return dispatches(
        harness.finished(
            order.task.task_id, name=order.explorer, attempt=order.attempt, **{**fields, "completed_runs": 8}
        )
    )


@pytest.mark.parametrize("producer", ["greedy", None])
def test_an_evaluation_of_4090_tasks_takes_its_share_of_the_freed_slots_and_no_more(producer: str | None) -> None:
    harness, running = busy_story()
    evaluate(harness, producer=producer)
    for number in range(40):
        harness.task(f"second-{number}", producer="trainset")
    taken: Counter[str] = Counter()
    for order in running:
        for new in answer(harness, order):
            taken[new.batch_type] += 1
    assert taken == {"eval": 20, "train": 20}


def test_a_client_with_one_task_is_served_before_the_second_thousand_of_another() -> None:
    harness, running = busy_story()
    evaluate(harness)
    harness.task("mine", batch_id="9/mine", batch_type="eval", batch_size=1, producer="modest")
    handed_out = [new.task.task_id for order in running[:2] for new in answer(harness, order)]
    assert "mine" in handed_out


def test_with_a_cap_reading_goes_on_for_others_and_what_is_too_much_is_refused() -> None:
    harness, _ = busy_story(max_open_tasks=4096, producer_max_open_tasks=1000)
    refused = refusals(evaluate(harness))
    assert refused == ["over_quota"] * 3090
    assert harness.machine.wants_tasks()
    assert refusals(harness.task("theirs", producer="modest")) == []
    harness.restart()
    assert refusals(harness.task("more", batch_id="0/exam", batch_type="eval", producer="greedy")) == ["over_quota"]
    assert refusals(harness.task("theirs-too", producer="modest")) == []
    # What has ended makes room again.
    harness.abort("0/exam")
    assert refusals(harness.task("again", producer="greedy")) == []


def test_without_a_cap_one_may_take_all_and_the_others_wait_without_loss() -> None:
    harness, _ = busy_story(max_open_tasks=1000)
    assert refusals(evaluate(harness, 1000)) == []
    assert not harness.machine.wants_tasks()
    harness.abort("0/exam")
    assert harness.machine.wants_tasks()


def test_bytes_of_a_producer_are_capped_too() -> None:
    harness = Harness(batch_size=1000, producer_max_open_bytes=10_000)
    sent = [refusals(harness.task(f"t{n}", prompt="x" * 1000, producer="greedy")) for n in range(20)]
    assert ["over_quota"] in sent
    open_bytes = harness.machine.ledger.usage.of("greedy").size
    assert 10_000 <= open_bytes < 10_000 + 1200
    assert refusals(harness.task("theirs", prompt="x" * 1000, producer="modest")) == []


def test_timeouts_and_repeats_are_capped() -> None:
    harness = Harness(max_task_timeout_s=60, max_repeat_times=16)
    assert refusals(harness.task("slow", timeout_s=61)) == ["over_limit"]
    assert refusals(harness.task("many", repeat_times=17)) == ["over_limit"]
    assert refusals(harness.task("good", repeat_times=16, timeout_s=60)) == []


def test_train_batches_of_producers_take_turns() -> None:
    harness = Harness(batch_size=1, max_inflight_batches=1, max_staleness=10**6)
    harness.beat(slots=1)
    running: deque[Dispatch] = deque()
    for name, producer in [*((f"greedy-{n}", "greedy") for n in range(20)), ("modest", "modest")]:
        running += dispatches(harness.task(name, batch_id=name, batch_size=1, producer=producer))
    order = []
    while running:
        first = running.popleft()
        order.append(first.task.task_id)
        running.extend(answer(harness, first))
    assert order.index("modest") <= 2
    assert len(order) == 21


# -- whose batch it is -----------------------------------------------------------------------------------------------


def others(harness: Harness, **fields: Any) -> list[Effect]:
    harness.submit("theirs", producer="owner")
    return harness.task("t", batch_id="theirs", producer="owner", **fields)


def test_only_its_owner_or_an_operator_ends_a_batch() -> None:
    harness = Harness()
    others(harness)
    for request in (
        harness.request("abort", "theirs", producer="thief"),
        harness.request("cancel", "theirs", producer="thief"),
    ):
        refused = harness.command(request, operator=False)
        assert errors(refused) == ["not_yours"]
        assert "'owner'" in replies(refused)[0].detail
        assert not statuses(refused)
    harness.restart()
    assert errors(harness.command(harness.request("abort", "theirs", number=2), operator=False)) == ["not_yours"]
    assert errors(harness.command(harness.request("abort", "theirs", number=3, producer="owner"), operator=False)) == [
        None
    ]
    others_again = Harness()
    others(others_again)
    assert errors(others_again.command(others_again.request("abort", "theirs", producer="op"), operator=True)) == [None]


def test_waiting_without_patience_does_not_end_anothers_batch() -> None:
    harness = Harness()
    harness.beat()
    harness.submit("1/theirs", 2, batch_type="eval", producer="owner")
    harness.task("t", batch_id="1/theirs", batch_type="eval", producer="owner")
    hasty = harness.finalize("1/theirs", 0.0, batch_type="eval", producer="thief")
    assert errors(hasty) == ["timeout"]
    assert not batches(hasty)
    ended = harness.finalize("1/theirs", 0.0, batch_type="eval", producer="owner", command_id="mine")
    assert errors(ended) == [None]


def test_batches_that_are_filled_by_everybody_are_ended_by_operators_alone() -> None:
    harness = Harness()
    harness.task("t")
    assert errors(harness.command(harness.request("abort", "train-000001"), operator=False)) == ["not_yours"]
    assert errors(harness.command(harness.request("abort", "train-000001", number=2), operator=True)) == [None]


def test_only_operators_write_where_operators_ask() -> None:
    assert OPERATOR_COMMANDS.writers == ("operator",)
    assert {cls.SCHEMA for cls in OPERATOR_COMMANDS.records} == {  # type: ignore[attr-defined]
        "command.abort_batch",
        "command.cancel_tasks",
        "command.skip_batch",
        "command.publish_version",
        "command.roll_back",
        "command.finalize_upgrade",
    }
    theirs = {"PublishVersion", "RollBack", "SkipBatch", "FinalizeUpgrade"}
    assert {topic.name for topic in TOPICS for cls in topic.records if cls.__name__ in theirs} == {"operator-commands"}


# -- turns, as a structure of its own --------------------------------------------------------------------------------


class Slots:
    """So many slots, handed to whoever has the turn, and producers that always want more."""

    def __init__(self, count: int) -> None:
        self.shares = Shares(Counters(), "turns")
        self.free = count
        self.services: list[str] = []

    def hand_out(self, wanting: set[str]) -> None:
        self.shares.forget_idle(wanting)
        while self.free and wanting:
            chosen = min(wanting, key=self.shares.rank)
            least = min(self.shares.held.get(name, 0) for name in wanting)
            assert self.shares.held.get(chosen, 0) == least, "somebody who holds fewer wants one"
            if len(wanting) > 1:
                self.shares.served(chosen)
            self.shares.take(chosen)
            self.free -= 1
            self.services.append(chosen)

    def end_one(self, rng: random.Random) -> None:
        name = rng.choice([name for name, held in self.shares.held.items() for _ in range(held)])
        self.shares.release(name)
        self.free += 1


@settings(max_examples=200)
@given(
    slots=st.integers(1, 30),
    producers=st.integers(2, 6),
    ends=st.integers(1, 300),
    seed=st.integers(0, 2**32),
)
def test_nothing_is_idle_and_all_come_to_hold_the_same(slots: int, producers: int, ends: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - stories, not secrets
    world = Slots(slots)
    greedy = {"p0"}
    world.hand_out(greedy)
    assert world.free == 0, "alone, it gets all"
    everybody = {f"p{n}" for n in range(producers)}
    for _ in range(ends):
        world.end_one(rng)
        world.hand_out(everybody)
        assert world.free == 0, "work-conserving"
    held = [world.shares.held.get(name, 0) for name in everybody]
    if world.shares.held.get("p0", 0) <= -(-slots // producers):
        assert max(held) - min(held) <= 1, "equal parts, once the first has given back what was more"


@settings(max_examples=100)
@given(slots=st.integers(1, 8), producers=st.integers(2, 8), seed=st.integers(0, 2**32))
def test_nobody_who_holds_nothing_waits_for_more_than_one_turn_of_each(slots: int, producers: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - stories, not secrets
    world = Slots(slots)
    everybody = {f"p{n}" for n in range(producers)}
    world.hand_out(everybody)
    waited: Counter[str] = Counter()
    for _ in range(300):
        world.end_one(rng)
        before = len(world.services)
        world.hand_out(everybody)
        for name in everybody:
            if world.shares.held.get(name, 0) or name in world.services[before:]:
                waited[name] = 0
            else:
                waited[name] += len(world.services) - before
            assert waited[name] <= producers, f"{name} starves"


def test_turns_of_those_who_are_gone_are_forgotten() -> None:
    counters = Counters()
    shares = Shares(counters, "turns")
    for name in ("a", "b"):
        shares.served(name)
    shares.take("a")
    shares.forget_idle({"c"})
    assert counters.turns == {"a": 1}


# -- room for batches that are not full ------------------------------------------------------------------------------


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_who_takes_most_room_gives_it_up(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - stories, not secrets
    unfilled = Unfilled(max_tasks=30, max_bytes=1000, max_batches=6)
    kept: dict[str, Batch] = {}
    for number in range(200):
        if kept and rng.random() < 0.7:
            batch = rng.choice(list(kept.values()))
            batch.finished += 1
            batch.size += rng.choice([0, 10, 300])
            unfilled.grew(batch)
        else:
            name = f"b{number}"
            batch = Batch(name, "train", 1000, number, owner=rng.choice("abc"))
            kept[name] = batch
            unfilled.grew(batch)
        while (given_up := unfilled.excess()) is not None:
            uses: list[Counter[str]] = [Counter(), Counter(), Counter()]
            for other in kept.values():
                for use, amount in zip(uses, (other.size, other.accepted, 1), strict=True):
                    use[other.owner] += amount
            over = next(use for use, most in zip(uses, (1000, 30, 6), strict=True) if use.total() > most)
            assert over[given_up.owner] == max(over.values()), "somebody else takes more"
            unfilled.remove(kept.pop(given_up.batch_id))
        assert sum(batch.accepted for batch in kept.values()) <= 30
        assert sum(batch.size for batch in kept.values()) <= 1000
        assert len(kept) <= 6


# -- names -----------------------------------------------------------------------------------------------------------


@given(user=st.none() | st.text(min_size=1), name=st.text(min_size=1))
def test_a_client_is_called_what_may_stand_on_the_log(user: str | None, name: str) -> None:
    made = producer_name(KafkaSettings(sasl_username=user), name)
    task = Task(task_id="t", workflow="math", prompt="1", producer=made)
    assert decode(encode(task), Task).producer == made


def test_users_keep_apart_who_has_the_same_name() -> None:
    alice, bob = (producer_name(KafkaSettings(sasl_username=f"ns.producer.{user}"), "exam") for user in ("a", "b"))
    assert (alice, bob) == ("ns.producer.a/exam", "ns.producer.b/exam")
    assert producer_name(KafkaSettings(), "exam") == "exam"


def test_a_caller_is_told_that_a_batch_is_not_its_own() -> None:
    reply = CommandReply(client="c", command_id="1", batch_id="b", error="not_yours", detail="Batch b is of 'owner'.")
    with pytest.raises(PermissionError, match="'owner'"):
        check_reply(reply, "b")
