"""Who takes a version from whom: whatever comes, goes and fails, everybody's bytes begin at the trainer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.weights.pull.fan_out import TRAINER, FanOut

HOSTS = st.sampled_from(["trainer", "a", "b", "c"])
CHUNKS = 3000
EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "join", "move", "alone", "leave"]), HOSTS, st.integers(0, 30)), max_size=40
)


def chain(tree: FanOut, number: int) -> list[int]:
    """From a member to the trainer, or to somebody who has left."""
    found = [number]
    while found[-1] in tree._places:
        found.append(tree._places[found[-1]].source)
        assert len(found) <= len(tree) + 2, "a circle"
    return found


@given(EVENTS)
def test_nobody_depends_on_itself_nor_moves_to_who_has_failed(events: list[tuple[str, str, int]]) -> None:
    tree = FanOut("trainer", CHUNKS)
    there: list[int] = []
    for event, host, pick in events:
        if event == "join":
            there.append(tree.join(host, 1 + len(there), 100 * pick))
        elif not there:
            continue
        else:
            number = there[pick % len(there)]
            former = tree._places[number].source
            has_moved = former in tree._places and tree._places[former].moves != tree._places[number].source_moves
            if event == "leave":
                tree.leave(number)
                there.remove(number)
            else:
                tree.move(number, alone=event == "alone")
                source = tree._places[number].source
                assert source in (TRAINER, former) or not tree._places[source].failed
                assert source != former or source == TRAINER or has_moved
                assert event != "alone" or source == TRAINER
        for number in there:
            chain(tree, number)


@given(st.lists(HOSTS, min_size=1, max_size=60))
def test_a_version_comes_to_each_machine_once_and_leaves_it_once(hosts: list[str]) -> None:
    tree = FanOut("trainer")
    numbers = [tree.join(host, 1) for host in hosts]
    places = {TRAINER: "trainer"} | {number: tree._places[number].host for number in numbers}
    assert all(chain(tree, number)[-1] == TRAINER for number in numbers)
    far = [(places[tree._places[n].source], places[n]) for n in numbers if places[tree._places[n].source] != places[n]]
    assert max(Counter(sender for sender, _ in far).values(), default=0) <= 1
    assert sorted(taker for _, taker in far) == sorted(set(hosts) - {"trainer"})
    near = Counter(tree._places[n].source for n in numbers if places[tree._places[n].source] == places[n])
    assert max(near.values(), default=0) <= 1


def test_those_behind_one_that_has_lost_its_source_stay_there() -> None:
    tree = FanOut("trainer")
    _, second, third, fourth = (tree.join(host, 1) for host in "abcd")
    # The first is silent, and so all are.
    for number in (second, third, fourth):
        tree.move(number, alone=False)
    assert chain(tree, fourth) == [fourth, third, second, TRAINER]
    # Whoever is silent again is not believed again.
    tree.move(third, alone=False)
    assert tree._places[second].failed
    assert chain(tree, third) == [third, TRAINER]


def test_who_comes_when_all_others_have_left_takes_from_the_trainer() -> None:
    tree = FanOut("trainer")
    first, second = tree.join("a", 1), tree.join("b", 1)
    tree.leave(first)
    # Sent by one that has all, and has left: the trainer is to send to nobody.
    late = [tree.join(host, 1) for host in "cd"]
    assert [tree._places[number].source for number in late] == [second, late[0]]
    for number in (second, *late):
        tree.leave(number)
    assert tree.source(tree.join("e", 1)) is None


@given(st.lists(st.tuples(HOSTS, st.integers(0, CHUNKS)), min_size=1, max_size=30))
def test_who_goes_on_from_a_former_try_waits_for_nobody_who_came_with_much_less(came: list[tuple[str, int]]) -> None:
    tree = FanOut("trainer", CHUNKS)
    for host, has in came:
        number = tree.join(host, 1, has)
        source = tree._places.get(tree._places[number].source)
        assert source is None or source.has >= has - CHUNKS // 16
        chain(tree, number)


def test_all_that_go_on_from_the_same_moment_make_one_chain() -> None:
    tree = FanOut("trainer", CHUNKS)
    numbers = [tree.join(f"m{number}", 1, 1000 + number) for number in range(16)]
    assert [tree._places[number].source for number in numbers] == [TRAINER, *numbers[:-1]]


def test_who_passes_nothing_on_takes_from_the_trainer_and_is_nobodys_source() -> None:
    tree = FanOut("trainer")
    numbers = [tree.join(host, port) for host, port in (("a", 0), ("b", 1), ("a", 0), ("a", 1))]
    assert [tree.source(number) for number in numbers] == [None, None, None, ("b", 1)]
