"""Members that pass on over links what they take: a real server, real gloo, and holders that are killed or stopped."""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.support.faults.pulls import CHUNKED
from tests.support.faults.transfers import announcement, assert_takes, line_of, peer, settled, source
from tests.support.mesh.waiting import wait_until
from tests.support.narrowing import some
from trinity_bus.weights.carrier import HeldVersion
from trinity_bus.weights.link.carrier import LinkSender, LinkTaker
from trinity_bus.weights.link.link import Link
from trinity_bus.weights.pull import transport
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver

NAMES = ("a", "b", "c", "d")
WEIGHTS = CHUNKED
SIZE = sum(tensor.nbytes for tensor in WEIGHTS.values())


class LinkedMembers:
    """A server, and members that come from 127.0.0.1, as if from another machine."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.server = WeightServer("127.0.0.2", bucket_bytes=1 << 20, timeout_s=20, method="gloo")
        self.checksum = self.server.stage(0, WEIGHTS.items())
        self.members: dict[str, WeightReceiver] = {}
        self.sent_by_trainer = 0
        self.links = 0
        send, make = LinkSender._send, Link.__init__

        def counted(sender: LinkSender, link: Link, holding: HeldVersion, first: int, goes_on: object) -> None:
            if any(sender._channel in known for known in self.server._listener._members.values()):
                self.sent_by_trainer += sum(end - start for _, start, end in holding.chunks[first:])
            send(sender, link, holding, first, goes_on)  # type: ignore[arg-type]

        def made(link: Link, *arguments: object) -> None:
            self.links += 1
            make(link, *arguments)  # type: ignore[arg-type]

        patch.setattr(LinkSender, "_send", counted)
        patch.setattr(Link, "__init__", made)

    def joined(self) -> int:
        return sum(len(tree) for tree in self.server._trees._trees.values())

    def round(self, *names: str, version: int = 0, epoch: int = 1) -> None:
        announced = announcement(self.server, version, self.checksum, "victim", *names, epoch=epoch)
        for name in names:
            self.members.setdefault(name, WeightReceiver()).start(source(announced, name, 20))

    def all_have_it(self, weights: dict[str, torch.Tensor] = WEIGHTS) -> None:
        for receiver in self.members.values():
            if receiver.progress.state == "idle":
                continue
            assert settled(receiver, 60).state == "ready", receiver.progress
            assert_takes(receiver, weights)

    @contextmanager
    def victim(self) -> Iterator[subprocess.Popen[bytes]]:
        """Provide a process that has one bucket of it, passes that on, and takes no more."""
        announcement(self.server, 0, self.checksum, "victim")
        with peer("take", *self.server.address, self.checksum, "gloo") as process:
            assert line_of(process) == b"first\n"
            yield process
            process.kill()

    def have_begun(self) -> bool:
        return all((held := member._relay._holding) and held.proven for member in self.members.values())

    def close(self) -> None:
        for receiver in self.members.values():
            receiver.close()
        self.server.close()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[LinkedMembers]:
    made = LinkedMembers(monkeypatch)
    yield made
    made.close()


def test_versions_leave_the_trainer_once_and_its_link_is_kept(fleet: LinkedMembers) -> None:
    fleet.round(*NAMES)
    fleet.all_have_it()
    assert fleet.sent_by_trainer == SIZE
    assert fleet.links == 8
    first = fleet.members["a"]._resources.links
    newer = {name: tensor + 1 for name, tensor in WEIGHTS.items()}
    fleet.checksum = fleet.server.stage(1, newer.items())
    fleet.round(*NAMES, version=1)
    fleet.all_have_it(newer)
    assert fleet.sent_by_trainer == 2 * SIZE
    assert fleet.members["a"]._resources.links is first
    # With the next epoch, everybody comes anew.
    fleet.round("a", version=1, epoch=2)
    fleet.all_have_it(newer)


def test_who_takes_from_a_member_that_is_killed_goes_on_with_another(fleet: LinkedMembers) -> None:
    with fleet.victim() as victim:
        fleet.round("a", "b")
        wait_until(fleet.have_begun)
        fleet.sent_by_trainer = 0
        victim.send_signal(signal.SIGKILL)
        fleet.all_have_it()
    # What was proven is not sent again, and only one of them comes to the trainer.
    assert 0 < fleet.sent_by_trainer <= SIZE - (1 << 18)


def test_a_holder_that_stands_still_is_left(fleet: LinkedMembers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SILENCE_S", 0.5)
    with fleet.victim() as victim:
        fleet.round("a")
        wait_until(fleet.have_begun)
        victim.send_signal(signal.SIGSTOP)
        fleet.all_have_it()


def test_what_a_member_passes_on_wrong_goes_no_further(fleet: LinkedMembers, monkeypatch: pytest.MonkeyPatch) -> None:
    place = HeldVersion.place

    def changed(holding: HeldVersion, first: int, end: int) -> torch.Tensor:
        piece: torch.Tensor = place(holding, first, end)
        # A member has hashes, by which it has proven what it has.
        return piece + 1 if holding._hashes and first < holding.proven else piece

    monkeypatch.setattr(HeldVersion, "place", changed)
    fleet.round(*NAMES[:3])
    fleet.all_have_it()
    assert fleet.sent_by_trainer == 3 * SIZE


def test_who_joins_late_takes_it_from_a_member_that_has_it(fleet: LinkedMembers) -> None:
    fleet.round("a")
    fleet.all_have_it()
    fleet.sent_by_trainer = 0
    announced = announcement(fleet.server, 0, fleet.checksum, "late", epoch=2)
    # It reads that on the log.
    fleet.members["a"].let_in(source(announced, "nobody", 20))
    late = fleet.members["late"] = WeightReceiver()
    late.start(source(announced, "late", 20))
    fleet.all_have_it()
    assert fleet.sent_by_trainer == 0


@pytest.mark.parametrize("who", ["member", "trainer"])
def test_no_thread_is_left_in_an_operation(fleet: LinkedMembers, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """One that came back from torch when the interpreter is gone would abort the process."""
    waits = threading.Event()
    wait = Link.wait

    def waited(link: Link, *arguments: object) -> None:
        waits.set()
        wait(link, *arguments)  # type: ignore[arg-type]

    def stands_still(end: LinkSender | LinkTaker, *_: object) -> None:
        while True:
            end._there()
            time.sleep(0.01)

    monkeypatch.setattr(Link, "wait", waited)
    other, does = (LinkSender, "_send") if who == "member" else (LinkTaker, "_take")
    monkeypatch.setattr(other, does, stands_still)
    fleet.round("a")
    assert waits.wait(20)
    transfer = some(fleet.members["a"]._transfer)
    assert not transfer.over
    if who == "member":
        fleet.members["a"].close()
        assert transfer.over
    else:
        fleet.server.close()
        assert [one for one in threading.enumerate() if one.name.startswith("serve-")] == []
