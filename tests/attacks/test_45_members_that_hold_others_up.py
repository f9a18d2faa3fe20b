"""A member that has proven itself, and then is none: it costs others a moment, and each machine a bounded number."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.mesh.waiting import wait_until
from tests.unit.weights.pull.test_relay import NAMES, SIZE, PassersOn
from trinity_bus.weights.channel import Channel, meet
from trinity_bus.weights.listener import PER_MEMBER
from trinity_bus.weights.pull import transport
from trinity_bus.weights.pull.fan_out import MOST_CLAIMS, TRAINER, FanOut
from trinity_bus.weights.transport import source_of


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[PassersOn]:
    made = PassersOn(monkeypatch)
    yield made
    made.close()


def test_a_source_that_is_never_silent_and_sends_next_to_nothing_is_left(
    fleet: PassersOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CHUNK_S", 2.0)
    over = threading.Event()

    def drip(channel: Channel, piece: memoryview) -> None:
        while not over.wait(0.05):
            channel.write(piece[:1])

    fleet.instead = drip
    for name in NAMES[:2]:
        fleet.come(name)
    fleet.go.set()
    fleet.all_have_it()
    over.set()
    assert fleet.sent_by_trainer == 2 * SIZE


def test_who_comes_to_a_member_under_a_thousand_names_has_a_few_connections(fleet: PassersOn) -> None:
    fleet.go.set()
    fleet.come("a")
    fleet.all_have_it()
    listener = fleet.members["a"]._relay._listener
    assert listener is not None
    host, port = listener.address
    door = replace(source_of(fleet.announced, "b", 20), host=host, port=port)
    channels = [
        meet(replace(door, prefix=door.prefix + str(number)), threading.Event()) for number in range(PER_MEMBER + 9)
    ]
    wait_until(lambda: sum(channel.is_open() for channel in channels) == PER_MEMBER)
    for channel in channels:
        channel.close()


def test_a_machine_that_says_of_everybody_that_they_have_failed_is_believed_a_few_times() -> None:
    tree = FanOut("trainer")
    others = [tree.join(f"host-{number}", 1) for number in range(40)]
    for _ in range(10):
        liar = tree.join("liar", 1)
        for _ in range(40):
            tree.move(liar, alone=False)
        assert tree._places[liar].source == TRAINER
        tree.leave(liar)
    assert sum(tree._places[number].failed for number in others) == MOST_CLAIMS
