"""What can be said of NCCL links without a GPU: the meeting before one, and that torch's watchdog is left out."""

import os
import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from trinity_bus.weights.link import nccl

_NAME = "TORCH_NCCL_BLOCKING_WAIT"


def test_two_ranks_meet_in_the_store_whoever_comes_first() -> None:
    store = HashStore()
    met = threading.Event()

    def first() -> None:
        nccl.meet(store, 1, timedelta(seconds=5))
        met.set()

    threading.Thread(target=first, daemon=True).start()
    nccl.meet(store, 0, timedelta(seconds=5))
    assert met.wait(5)


def test_one_that_never_comes_is_waited_for_as_long_as_the_limit() -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        nccl.meet(HashStore(), 0, timedelta(seconds=0.2))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("before", [None, "0"])
def test_a_link_has_no_watchdog_and_others_keep_theirs(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(_NAME, before)
    with nccl.unwatched():
        assert os.environ[_NAME] == "1"
    assert os.environ.get(_NAME) == before
