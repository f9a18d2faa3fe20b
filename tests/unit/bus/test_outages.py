"""How long a producer waits is told once, and is a reason not to be ready."""

from trinity_bus.bus.write.outages import TOLD_S, WriteWait

LOOKS = round(TOLD_S)


def test_the_same_thing_that_waits_for_long_is_told_once_and_so_is_its_end() -> None:
    wait, batch = WriteWait("explorer-0", 60.0), object()
    assert [wait.look(batch) for _ in range(LOOKS)] == [None] * LOOKS
    assert wait.reason is None
    line = wait.look(batch)
    assert line is not None
    assert line.startswith("producer explorer-0: a record has waited for 10 s; do as many brokers run as must have it")
    assert "up to 60 s" in line
    assert [wait.look(batch) for _ in range(5)] == [None] * 5
    assert "15 s" in (wait.reason or "")
    assert not wait.is_over
    assert wait.look(None) == "producer explorer-0: what waited is durable, after 15 s"
    assert wait.reason is None
    assert wait.look(None) is None


def test_a_producer_that_writes_one_thing_after_the_other_does_not_wait() -> None:
    wait = WriteWait("explorer-0", 60.0)
    things = [object() for _ in range(100)]
    assert {wait.look(thing) for thing in things} == {None}
    assert wait.seconds == 0


def test_what_waits_for_as_long_as_it_may_is_over() -> None:
    wait, batch = WriteWait("explorer-0", 3.0), object()
    for _ in range(3):
        wait.look(batch)
        assert not wait.is_over
    wait.look(batch)
    assert wait.is_over
