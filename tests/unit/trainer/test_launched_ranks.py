"""How ranks of a launcher come to rank 0: real connections, with ranks that are threads of this process."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mesh.waiting import wait_until
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks import rank as program
from trinity_bus.training.ranks import rank_protocol as protocol
from trinity_bus.training.ranks.followers import Followers
from trinity_bus.training.ranks.launch import Launch
from trinity_bus.training.ranks.rank import Outcome
from trinity_bus.training.ranks.rank_protocol import Done, Gather, Join, Leave
from trinity_bus.weights.channel import OPENING_BYTES, Channel, meet
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.transport import Source
from workers.preconditions import refusals
from workers.trainer import launched_ranks
from workers.trainer.launched_ranks import LaunchedRanks, follow

KEY = "a key of some characters"
HOST = "127.0.0.1"
VANISHES = Path(__file__).with_name("rank_that_vanishes.py")


type Connect = Callable[..., launched_ranks._PeerLine]


def launch(rank: int = 0, world_size: int = 3) -> Launch:
    return Launch(rank=rank, world_size=world_size, local_rank=0, local_world_size=1, restarts=0)


@pytest.fixture
def ranks() -> Iterator[LaunchedRanks]:
    made = LaunchedRanks(launch(), HOST, (0,), KEY)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def connect(ranks: LaunchedRanks) -> Iterator[Connect]:
    """Connects a rank; the lines that a test leaves open are closed after it."""
    with contextlib.ExitStack() as stack:

        def connecting(rank: int, key: str = KEY) -> launched_ranks._PeerLine:
            line = launched_ranks._connect(*ranks.address, rank, key)
            stack.callback(line.close)
            return line

        yield connecting


def answering(line: launched_ranks._PeerLine) -> threading.Thread:
    """A rank that makes calls by saying so."""

    def body() -> None:
        while line.receive(protocol.CALLS.limit) is not None:
            line.send([protocol.ANSWERS.encode(Done(0))])
        line.close()

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@contextlib.contextmanager
def following(ranks: LaunchedRanks) -> Iterator[Followers]:
    followers = Followers(3, ranks)
    try:
        yield followers
    finally:
        followers.end()
        followers.disarm()


def join(followers: Followers) -> None:
    followers.begin(Join("1.0"))
    followers.settle(0)


def test_ranks_that_connect_make_calls_and_wait_for_the_next_training(ranks: LaunchedRanks, connect: Connect) -> None:
    threads = [answering(connect(rank)) for rank in (2, 1)]
    for _ in range(2):
        ranks.wait(3)
        with following(ranks) as followers:
            join(followers)
            followers.begin(Leave())
            followers.settle(None)
    ranks.close()
    for thread in threads:
        thread.join()


def test_a_stranger_costs_no_rank_and_learns_nothing(
    ranks: LaunchedRanks, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(ranks.address) as stranger:
        assert len(stranger.recv(1000)) == OPENING_BYTES, "the number of the protocol, and a random one"
        stranger.sendall(protocol.ANSWERS.frame(Done(0)))
        assert stranger.recv(1000) == b""
    with pytest.raises(LinkError, match="did not prove itself"):
        connect(1, "another key of characters")
    wait_until(lambda: "a connection for ranks from 127.0.0.1 came to nothing" in caplog.text, "it is said", 10)
    threads = [answering(connect(rank)) for rank in (1, 2)]
    ranks.wait(3)
    with following(ranks) as followers:
        join(followers)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("rank", [3, 0])
def test_a_rank_that_there_is_not_is_let_go(connect: Connect, rank: int) -> None:
    assert connect(rank).receive(100) is None


def test_a_rank_that_is_cut_among_many_comes_again(ranks: LaunchedRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([LinkError("cut"), LinkError("cut")])

    def cut_twice(source: Source, cancelled: threading.Event) -> Channel:
        if (error := next(tries, None)) is not None:
            raise error
        return meet(source, cancelled)

    monkeypatch.setattr(launched_ranks, "meet", cut_twice)
    monkeypatch.setattr(launched_ranks, "_PAUSE_S", 0.001)
    line = launched_ranks._come(*ranks.address, 1, KEY, 60)
    wait_until(lambda: 1 not in ranks._missing(), "it is let in", 10)
    line.close()


@pytest.mark.parametrize(("in_order", "outcome"), [(True, Outcome.DISMISSED), (False, Outcome.ORPHANED)])
def test_who_waits_for_rank_0_is_told_whether_it_ends_in_order(
    ranks: LaunchedRanks, connect: Connect, *, in_order: bool, outcome: Outcome
) -> None:
    line = connect(1)
    wait_until(lambda: 1 not in ranks._missing(), "it is known", 10)
    ranks.close(in_order=in_order)
    assert program.follow(line, 1, 0) is outcome


def test_a_key_that_is_another_is_told_with_its_setting(ranks: LaunchedRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched_ranks, "_where_rank_0_is", lambda: ranks.address)
    monkeypatch.setattr(launched_ranks, "_COMING_S", 0.0)
    monkeypatch.setenv("TRINITY_BUS_TRAINER__RANKS_KEY", "another key of characters")
    with pytest.raises(RankError, match=r"trainer\.ranks_key must be the same on all machines"):
        follow(Settings(), launch(1), 20)


def test_a_machine_that_is_not_where_rank_0_was_to_be_says_so() -> None:
    # Of a documentation network: no machine's.
    with pytest.raises(RankError, match=r"203\.0\.113\.9.*trainer\.ranks_host must be an address of the machine"):
        LaunchedRanks(Launch(0, 2, 0, 1, 0), "203.0.113.9", [0], "a key of some characters")


def test_ranks_that_do_not_come_are_named(
    ranks: LaunchedRanks, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_limit_s", 0.01)
    first = connect(1)
    wait_until(lambda: 1 not in ranks._missing(), "it is known", 10)
    with pytest.raises(RankError, match=r"rank 2 of 3 did not connect to 127\.0\.0\.1:\d+ within 0\.01 s"):
        ranks.wait(3)
    with pytest.raises(RankError, match="3 ranks were launched, and 4 are to train"):
        ranks.wait(4)
    ranks.close()
    assert first.receive(100) is None, "the end of rank 0 is the end of who waits for it"


def test_one_that_has_connected_twice_is_taken_once(ranks: LaunchedRanks, connect: Connect) -> None:
    before = connect(1)
    wait_until(lambda: 1 not in ranks._missing(), "it is known", 10)
    answering(connect(1))
    answering(connect(2))
    ranks.wait(3)
    assert before.receive(100) is None
    assert len(ranks._listener._members["rank-1"]) == 1, "its listener has let go of the first one, too"
    with following(ranks) as followers:
        join(followers)


def test_a_message_over_the_limit_is_refused_on_both_sides(
    ranks: LaunchedRanks, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = connect(1), connect(2)
    ranks.wait(3)
    with contextlib.ExitStack() as stack:
        for started in ranks.start(3):
            stack.callback(started.line.close)
            started.line.send([protocol.CALLS.encode(Gather())])
        with pytest.raises(ProtocolError, match="over the limit of 2"):
            first.receive(2)
        monkeypatch.setattr(launched_ranks, "SAMPLE_BYTES", 10)
        with pytest.raises(ProtocolError, match="a message of 11 bytes, at most 10 are allowed"):
            started.line.send([bytes(11)])


def test_a_machine_that_is_gone_without_a_word_is_noticed_on_both_sides() -> None:
    ended = subprocess.run(
        [sys.executable, str(VANISHES)], capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ)
    )
    if ended.returncode == 77:
        pytest.skip(f"a network of its own cannot be had: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    assert "rank 1 of 2 (at 127.0.0.1) is gone: the other side is not reached any more" in ended.stdout
    assert "rank 0 is gone: the other side is not reached any more" in ended.stdout


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environment", "settings", "said"),
    [
        ({"WORLD_SIZE": "4"}, {}, r"WORLD_SIZE=4.* ask for 2"),
        ({"TORCHELASTIC_MAX_RESTARTS": "3"}, {}, "--max-restarts 0"),
        ({}, {"ranks_host": "127.0.0.1"}, r"trainer\.ranks_host is 127\.0\.0\.1, and 1 of 2 ranks are on other"),
        ({}, {"ranks_key": None}, r"trainer\.ranks_key"),
        ({}, {"ranks_key": "short"}, r"trainer\.ranks_key has 5 characters, and needs 16 or more"),
        ({"RANK": "two"}, {}, "RANK='two': expected a number"),
        ({}, {}, None),
    ],
)
def test_what_cannot_be_launched_so_is_refused_early(
    environment: dict[str, str], settings: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TORCHRUN, **environment}.items():
        monkeypatch.setenv(name, value)
    sound = {"data_parallel": 2, "ranks_host": "10.0.0.1", "ranks_key": KEY}
    with pytest.raises(TrinityError, match=said) if said else contextlib.nullcontext():
        found = refusals("trainer", Settings(trainer=TrainerSettings(**{**sound, **settings})))
        if of_launch := [one for one in found if re.search("WORLD_SIZE|TORCHELASTIC|ranks_", one)]:
            raise ConfigError("; ".join(of_launch))
