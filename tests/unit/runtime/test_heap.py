import gc
import weakref
from collections.abc import Iterator

import pytest

from trinity_bus.runtime.memory import FullCollections, collect_young_only, freeze_gc, unfreeze_gc


class Ring:
    """Only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def heap() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_what_is_there_is_passed_over_until_everything_can_be_collected_again() -> None:
    garbage, kept = weakref.ref(Ring()), Ring()
    freeze_gc()
    assert garbage() is None
    seen, later = weakref.ref(kept), weakref.ref(Ring())
    del kept
    gc.collect()
    assert seen() is not None
    assert later() is None
    unfreeze_gc()
    assert seen() is None


def test_circles_are_collected_now_and_then_while_little_is_held() -> None:
    collect_young_only()
    collections = FullCollections(now=0.0)
    ring = Ring()
    gc.collect()
    seen = weakref.ref(ring)
    del ring
    assert not collections.look(599.0, held=0)
    assert not collections.look(600.0, held=100_000)
    assert seen() is not None
    assert collections.look(900.0, held=10)
    assert seen() is None
    assert not collections.look(901.0, held=10)
