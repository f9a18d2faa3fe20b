"""Rank 0's hold on real processes that stand in for the other ranks; see ``rank_of_another_kind``."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest

from trinity_bus.runtime.process import start_time
from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks.followers import ChildRanks, Followers
from trinity_bus.training.ranks.rank import Rank
from trinity_bus.training.ranks.rank_protocol import Done, Gather, Join, Leave, Load, Train, UpdateShard

FAKE = [sys.executable, str(Path(__file__).with_name("rank_of_another_kind.py"))]
STUCK = """
import asyncio, sys, time
from trinity_bus.training.ranks import followers as module
from trinity_bus.training.ranks.rank_protocol import Join, Load
module.ABORT_S = 0.1
followers = module.Followers(3, module.ChildRanks(sys.argv[1:]))
followers.begin(Join("1.0"))
followers.settle(0)
followers.begin(Load("die"))
try:
    asyncio.run(followers.watch())
except module.RankError:
    time.sleep(3600)  # as a collective that waits for the dead
"""
JOIN = Join("1.0")


@pytest.fixture
def followers() -> Iterator[Followers]:
    children = ChildRanks(FAKE)
    made = Followers(3, children)
    try:
        made.begin(JOIN)
        made.settle(0)
        yield made
    finally:
        made.end()
        made.disarm()
        assert [start_time(pid) for pid in children.pids] == [None, None], "none is left"


async def test_ranks_follow_until_they_are_told_to_leave(followers: Followers) -> None:
    watch = asyncio.create_task(followers.watch())
    followers.begin(lambda rank: (Train((UpdateShard(rank, 1.0, 1),), rank), [b"one", b"two"][:rank]))
    with followers.explained():
        pass
    followers.settle(1)
    assert followers.ready
    followers.begin(Leave())
    followers.settle(None)
    followers.end()
    await watch
    assert not followers.ready


async def test_a_death_is_noticed_and_named_wherever_one_looks(followers: Followers) -> None:
    watch = asyncio.create_task(followers.watch())
    followers.begin(Load("die"))
    with pytest.raises(RankError, match=r"rank 2 of 3 \(process \d+\) was ended by SIGKILL"):
        await watch
    with pytest.raises(RankError, match="rank 2 of 3"), followers.explained():
        raise RuntimeError("connection closed by peer")
    with pytest.raises(RankError, match="rank 2 of 3"):
        followers.settle(0)
    with pytest.raises(RankError, match="rank 2 of 3"):
        followers.begin(Gather())
    assert not followers.ready


def test_a_failure_is_told_in_the_words_of_the_rank(followers: Followers) -> None:
    followers.begin(Load("fail"))
    with pytest.raises(RankError, match=r"rank [12] of 3 failed in Load: no room"):
        followers.settle(0)


def test_ranks_that_drift_apart_are_noticed(followers: Followers) -> None:
    followers.begin(Load("drift"))
    with pytest.raises(RankError, match="rank 1 is at step 1, rank 0 at step 0"):
        followers.settle(0)


def test_a_rank_that_sees_another_folder_or_is_of_another_version_is_refused(tmp_path: Path) -> None:
    rank, ours = Rank(1, 1, cast("Any", None)), version("trinity-bus")
    mark = tmp_path / f".seen-by-ranks-{'0' * 16}"
    mark.touch()
    assert rank.make(Join(ours, str(tmp_path), mark.name)) == Done(0)
    # A copy of the folder lacks what rank 0 has just made; and a mark is a name, no path.
    (tmp_path / "copy").mkdir()
    for folder, name in ((tmp_path / "copy", mark.name), (tmp_path / "copy", f"../{mark.name}"), (tmp_path, "copy")):
        with pytest.raises(RankError, match=r"trainer\.checkpoint_dir must be one folder that all machines share"):
            rank.make(Join(ours, str(folder), name))
    with pytest.raises(RankError, match="install one version on all machines"):
        rank.make(Join("0.0"))


def test_ranks_that_hang_are_killed_at_the_end(followers: Followers) -> None:
    followers.begin(Load("hang"))
    assert not followers.ready
    with pytest.raises(ZeroDivisionError), followers.explained():
        # An error of this rank's own: nobody is lost, and it is raised as it is.
        raise ZeroDivisionError


def test_a_process_that_cannot_end_by_itself_after_a_loss_is_ended() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK, *FAKE], check=False, stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == 1
    assert b"rank 2 of 3" in ended.stderr
    assert b"was ended by SIGKILL: ended by force" in ended.stderr
