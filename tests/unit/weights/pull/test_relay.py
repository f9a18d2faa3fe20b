"""Members that pass on what they take: a real server, real sockets, and a source that is killed."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from schemas.model_version import ModelVersion
from tests.support.faults.pulls import CHUNKED
from tests.support.faults.transfers import announcement, assert_takes, line_of, peer, settled
from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.weights.channel import Channel, WeightsRequest, meet
from trinity_bus.weights.errors import LinkError, VersionGoneError
from trinity_bus.weights.pull import frames, transport
from trinity_bus.weights.pull.fan_out import FanOut
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.pull.transport import Relay
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import Source, source_of

NAMES = ("a", "b", "c", "d")
WEIGHTS = CHUNKED


class PassersOn:
    """A server, and members that come one after the other while it sends nothing."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        # Members come from 127.0.0.1, as if from another machine.
        self.server = WeightServer("127.0.0.2", bucket_bytes=1 << 20, timeout_s=20)
        self.checksum = self.server.stage(0, WEIGHTS.items())
        self.announced = announcement(self.server, 0, self.checksum, "victim", *NAMES)
        self.members: dict[str, WeightReceiver] = {}
        self.sent_by_trainer = 0
        self.go = threading.Event()
        self.instead: Callable[[Channel, memoryview], None] | None = None
        """What a member does that passes something on."""
        patch.setattr(frames, "send_piece", self._send)
        self.joined = 0
        join = FanOut.join

        def counted(tree: FanOut, *arguments: Any) -> int:
            self.joined += 1
            return join(tree, *arguments)

        patch.setattr(FanOut, "join", counted)

    def _send(self, channel: Channel, piece: memoryview) -> None:
        if any(channel in channels for channels in self.server._listener._members.values()):
            assert self.go.wait(20)
            self.sent_by_trainer += len(piece)
        elif self.instead is not None:
            self.instead(channel, piece)
            return
        channel.write(piece)

    def come(self, *names: str, announced: ModelVersion | None = None) -> None:
        for name in names:
            before = self.joined
            receiver = self.members.setdefault(name, WeightReceiver())
            receiver.start(source_of(announced or self.announced, name, 20))
            wait_until(lambda before=before: self.joined > before)  # type: ignore[misc]

    def again(self, name: str, epoch: int = 2) -> None:
        """Announce the version to a member anew, which comes."""
        self.come(name, announced=announcement(self.server, 0, self.checksum, name, epoch=epoch))

    def all_have_it(self) -> None:
        for receiver in self.members.values():
            if receiver.progress.state == "idle":
                # It has had it before.
                continue
            assert settled(receiver).state == "ready", receiver.progress
            assert_takes(receiver, WEIGHTS)

    def take(self, *names: str) -> None:
        """Let these take the version, undisturbed."""
        # All have come before one of them may have it and leave.
        self.come(*names)
        self.go.set()
        self.all_have_it()

    def door(self, of: str, who: str, limit_s: float = 20) -> Source:
        """Where a member passes on what it has, as another one finds it."""
        listener = some(self.members[of]._relay._listener)
        host, port = listener.address
        return replace(source_of(self.announced, who, limit_s), host=host, port=port)

    def close(self) -> None:
        self.go.set()
        for receiver in self.members.values():
            receiver.close()
        self.server.close()


SIZE = sum(tensor.nbytes for tensor in WEIGHTS.values())


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[PassersOn]:
    made = PassersOn(monkeypatch)
    yield made
    made.close()


def test_a_version_leaves_the_trainer_once_however_many_take_it(fleet: PassersOn) -> None:
    fleet.come(*NAMES)
    fleet.take()
    assert fleet.sent_by_trainer == SIZE
    for receiver in fleet.members.values():
        receiver.close()
    wait_until(lambda: not fleet.server._trees)


def test_who_comes_late_takes_the_present_version_once_for_all_of_them(fleet: PassersOn) -> None:
    fleet.take(*NAMES)
    wait_until(lambda: not fleet.server._trees)
    fleet.go.clear()
    late = announcement(fleet.server, 0, fleet.checksum, "e", "f", epoch=2, secret="1a" * 32)
    fleet.come("e", "f", announced=late)
    fleet.go.set()
    fleet.all_have_it()
    assert fleet.sent_by_trainer == 2 * SIZE


def test_who_takes_from_a_member_that_is_killed_goes_on_with_another(fleet: PassersOn) -> None:
    fleet.go.set()
    with peer("take", *fleet.server.address, fleet.checksum, "memory") as victim:
        # It has one bucket, passes that on, and takes no more.
        assert line_of(victim) == b"first\n"
        fleet.go.clear()
        fleet.come("a", "b")
        wait_until(lambda: all(proven(receiver) for receiver in fleet.members.values()))
        fleet.sent_by_trainer = 0
        victim.send_signal(signal.SIGKILL)
    fleet.take()
    # The trainer sends what is missing, to one of them.
    assert 0 < fleet.sent_by_trainer < SIZE


def proven(receiver: WeightReceiver) -> int:
    holding = receiver._relay._holding
    return 0 if holding is None else holding.proven


MIB = 1 << 20


def begin(fleet: PassersOn, name: str = "a") -> WeightReceiver:
    """Let a member take three MiB, and wait for more."""
    write, amid = frames.send_piece, threading.Event()

    def three(channel: Channel, piece: memoryview) -> None:
        if fleet.sent_by_trainer == 3 * MIB:
            amid.set()
            fleet.go.clear()
        write(channel, piece)

    fleet.go.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "send_piece", three)
        fleet.come(name)
        assert amid.wait(20)
        receiver = fleet.members[name]
        wait_until(lambda: proven(receiver) == 12)
    fleet.sent_by_trainer = 0
    return receiver


def test_who_is_named_again_amid_a_version_goes_on_from_the_chunks_that_it_has(fleet: PassersOn) -> None:
    receiver = begin(fleet)
    former = some(receiver._transfer)
    receiver.cancel()
    # What the trainer is about to send is for the former try.
    wait_until(lambda: former.over)
    fleet.go.set()
    fleet.again("a")
    assert settled(receiver).state == "ready", receiver.progress
    assert_takes(receiver, WEIGHTS)
    # And what it has sent of that, it has sent for nothing.
    assert SIZE - 3 * MIB <= fleet.sent_by_trainer <= SIZE - 2 * MIB


def test_who_goes_on_passes_on_what_it_has_at_once_and_others_take_it_there(fleet: PassersOn) -> None:
    receiver = begin(fleet)
    receiver.cancel()
    again = announcement(fleet.server, 0, fleet.checksum, "a", "b", epoch=2)
    fleet.come("a", "b", announced=again)
    wait_until(lambda: proven(fleet.members["b"]) == 12)
    fleet.take()
    assert fleet.sent_by_trainer <= SIZE - 2 * MIB


def test_the_next_life_of_a_trainer_that_is_killed_sends_the_rest_alone(fleet: PassersOn) -> None:
    receiver = fleet.members["a"] = WeightReceiver()
    with peer("serve", "127.0.0.2") as trainer:
        port, checksum = line_of(trainer).split()
        assert checksum.decode() == fleet.checksum
        former = fleet.announced.model_copy(update={"master_port": int(port)})
        receiver.start(source_of(former, "a", 20))
        assert line_of(trainer) == b"amid\n"
        wait_until(lambda: proven(receiver) == 12)
        trainer.send_signal(signal.SIGKILL)
        assert settled(receiver).state == "failed"
    receiver.cancel()
    fleet.take("a")
    assert fleet.sent_by_trainer == SIZE - 3 * MIB


def test_who_has_the_whole_version_is_sent_nothing_of_it(fleet: PassersOn) -> None:
    fleet.take("a")
    fleet.sent_by_trainer = 0
    fleet.go.clear()
    fleet.again("a")
    fleet.all_have_it()
    assert fleet.sent_by_trainer == 0


def test_chunks_that_have_changed_meanwhile_fail_the_whole_and_are_received_anew(fleet: PassersOn) -> None:
    receiver = begin(fleet)
    former = some(receiver._transfer)
    receiver.cancel()
    wait_until(lambda: former.over)
    former.resources.buffers[0][5] += 1
    fleet.go.set()
    fleet.again("a")
    assert "announced was" in settled(receiver).error
    receiver.cancel()
    fleet.sent_by_trainer = 0
    fleet.again("a", 3)
    fleet.all_have_it()
    assert fleet.sent_by_trainer == SIZE


def test_chunks_of_another_version_are_of_no_use(fleet: PassersOn) -> None:
    receiver = begin(fleet)
    receiver.cancel()
    fleet.go.set()
    other = {name: tensor + 1 for name, tensor in WEIGHTS.items()}
    checksum = fleet.server.stage(1, other.items())
    fleet.come("a", announced=announcement(fleet.server, 1, checksum, "a", epoch=2))
    assert settled(receiver).state == "ready", receiver.progress
    assert fleet.sent_by_trainer >= SIZE
    assert_takes(receiver, other)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_source_that_is_silent_is_left_and_what_is_passed_on_wrong_goes_no_further(
    fleet: PassersOn, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    monkeypatch.setattr(transport, "SILENCE_S", 2.0 if is_silent else 20.0)
    over = threading.Event()

    def instead(channel: Channel, piece: memoryview) -> None:
        if is_silent:
            over.wait(20)
        else:
            channel.write(b"x" * len(piece))

    fleet.instead = instead
    fleet.come(*NAMES[:2])
    fleet.take()
    over.set()
    assert fleet.sent_by_trainer == 2 * SIZE


def test_who_cannot_reach_its_source_takes_from_the_trainer(fleet: PassersOn, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(Relay, "open", lambda *_: port)
    fleet.come(*NAMES[:3])
    fleet.take()
    assert fleet.sent_by_trainer == 3 * SIZE


def test_one_dead_source_does_not_make_a_member_alone(fleet: PassersOn, monkeypatch: pytest.MonkeyPatch) -> None:
    real, met = transport.PullTransport._meet, []

    def meet_but_the_first(self: transport.PullTransport, *arguments: Any) -> Channel:
        met.append(arguments)
        if len(met) == 1:
            raise LinkError("it has died")
        return real(self, *arguments)

    monkeypatch.setattr(transport.PullTransport, "_meet", meet_but_the_first)
    fleet.come("a", "b")
    # It has another holder by now: the trainer, whose only other member counts as dead.
    wait_until(lambda: len(met) == 1)
    fleet.come("c")
    fleet.take()
    assert fleet.sent_by_trainer == 2 * SIZE
    assert len(met) == 2


@pytest.mark.parametrize(
    ("host", "fans_out", "passes_on"),
    [("127.0.0.2", False, True), ("127.0.0.1", True, True), ("127.0.0.2", True, False)],
)
def test_a_trainer_sends_to_each_itself_where_nobody_passes_on(host: str, *, fans_out: bool, passes_on: bool) -> None:
    server, receivers = WeightServer(host, fan_out=fans_out), [WeightReceiver() for _ in range(2)]
    checksum = server.stage(0, WEIGHTS.items())
    announced = announcement(server, 0, checksum, "a", "b")
    source = FanOut.source
    told = []

    def noted(tree: FanOut, number: int) -> tuple[str, int] | None:
        told.append(source(tree, number))
        return told[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FanOut, "source", noted)
        for name, receiver in zip("ab", receivers, strict=True):
            receiver.start(replace(source_of(announced, name, 20), fan_out=passes_on))
        for receiver in receivers:
            assert settled(receiver).state == "ready", receiver.progress
            assert_takes(receiver, WEIGHTS)
            assert (receiver._relay._listener is not None) == passes_on
            receiver.close()
    assert told == [None, None]
    server.close()


def test_nobody_is_let_in_who_does_not_know_the_secret_of_the_announcement(fleet: PassersOn) -> None:
    fleet.take("a")
    door = fleet.door("a", "b", 0.5)
    assert door.host == "127.0.0.1"
    for stranger in (
        replace(door, secret="00" * 32),
        replace(door, prefix=door.prefix.replace("/1/", "/2/")),
        replace(door, prefix="b"),
    ):
        with pytest.raises(LinkError, match="did not prove itself"):
            meet(stranger, threading.Event())
    friend = meet(replace(door, timeout_s=20), threading.Event())
    with pytest.raises(VersionGoneError, match="not held here"):
        transport._ask(friend, WeightsRequest(1, "0" * 64))
    friend.close()


def test_the_next_version_waits_for_nobody_who_still_takes_the_former(fleet: PassersOn) -> None:
    fleet.take("a")
    deaf = meet(fleet.door("a", "b"), threading.Event())
    transport._ask(deaf, WeightsRequest(0, fleet.checksum))
    holding = some(fleet.members["a"]._relay._holding)
    wait_until(lambda: holding._readers == 1)
    fleet.take("a")
    assert holding._readers == 0
    deaf.close()
