"""Who takes a version from whom: whatever comes, goes and fails, everybody's bytes begin at the trainer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.weights.memory.fan_out import TRAINER, FanOut

HOSTS = st.sampled_from(["trainer", "a", "b", "c"])
EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "join", "move", "alone", "leave"]), HOSTS, st.integers(0, 30)), max_size=40
)


def chain(tree: FanOut, number: int) -> list[int]:
    """From a member to the trainer, or to somebody who has left."""
    found = [number]
    while found[-1] in tree._places:
        found.append(tree._places[found[-1]].holder)
        assert len(found) <= len(tree) + 2, "a circle"
    return found


@given(EVENTS)
def test_nobody_depends_on_itself_nor_moves_to_who_has_failed(events: list[tuple[str, str, int]]) -> None:
    tree = FanOut("trainer")
    there: list[int] = []
    for event, host, pick in events:
        if event == "join":
            there.append(tree.join(host, 1 + len(there)))
        elif not there:
            continue
        else:
            number = there[pick % len(there)]
            former = tree._places[number].holder
            if event == "leave":
                tree.leave(number)
                there.remove(number)
            else:
                tree.move(number, alone=event == "alone")
                now = tree._places[number].holder
                assert now == TRAINER or (now != former and not tree._places[now].failed)
                assert event != "alone" or tree.holder(number) is None
        for number in there:
            chain(tree, number)


@given(st.lists(HOSTS, min_size=1, max_size=60))
def test_a_version_comes_to_each_machine_once_and_leaves_it_once(hosts: list[str]) -> None:
    tree = FanOut("trainer")
    numbers = [tree.join(host, 1) for host in hosts]
    places = {TRAINER: "trainer"} | {number: tree._places[number].host for number in numbers}
    assert all(chain(tree, number)[-1] == TRAINER for number in numbers)
    far = [(places[tree._places[n].holder], places[n]) for n in numbers if places[tree._places[n].holder] != places[n]]
    assert max(Counter(sender for sender, _ in far).values(), default=0) <= 1
    assert sorted(taker for _, taker in far) == sorted(set(hosts) - {"trainer"})
    near = Counter(tree._places[n].holder for n in numbers if places[tree._places[n].holder] == places[n])
    assert max(near.values(), default=0) <= 1


@given(st.lists(HOSTS, min_size=1, max_size=30))
def test_the_same_arrivals_make_the_same_tree(hosts: list[str]) -> None:
    trees = [FanOut("trainer"), FanOut("trainer")]
    for tree in trees:
        for host in hosts:
            tree.join(host, 1)
    assert trees[0]._places == trees[1]._places


def test_who_loses_its_holder_is_sent_to_that_ones_holder() -> None:
    tree = FanOut("trainer")
    first, second, third, fourth = (tree.join(host, 1) for host in "abcd")
    # Whether the trainer knows yet that it is dead, or not.
    tree.move(third, alone=False)
    assert tree._places[third].holder == first
    tree.leave(second)
    assert tree._places[fourth].holder == third
    # One that is there, and has failed, is left to itself.
    tree.move(fourth, alone=False)
    assert tree._places[fourth].holder not in (third, fourth)


def test_who_cannot_reach_its_holder_is_sent_the_rest_by_the_trainer_and_others_keep_theirs() -> None:
    tree = FanOut("trainer")
    first, second = tree.join("a", 1), tree.join("b", 2)
    assert tree.holder(second) == ("a", 1)
    tree.move(second, alone=True)
    assert tree.holder(second) is None
    assert tree._places[tree.join("c", 3)].holder == first
