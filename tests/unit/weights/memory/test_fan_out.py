"""Who takes a version from whom: whatever comes, goes and fails, everybody's bytes begin at the trainer."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.weights.memory.fan_out import TRAINER, FanOut

HOSTS = st.sampled_from(["trainer", "a", "b", "c"])
CHUNKS, RATE, SLOW, TICK_S = 3000, 100.0, 1.0, 0.05
"""Of a version; chunks a second that a card takes and sends, and those of a slow one; in steps of so many seconds."""
CHUNK = 1 << 18
ALIKE = [(0, CHUNK * number, CHUNK * (number + 1)) for number in range(CHUNKS)]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "move", "alone", "leave", "report", "report"]), HOSTS, st.integers(0, 30)
    ),
    max_size=40,
)


def chain(tree: FanOut, number: int) -> list[int]:
    """From a member to the trainer, or to somebody who has all or has left."""
    found = [number]
    while found[-1] in tree._places and not tree._places[found[-1]].whole:
        found.append(tree._places[found[-1]].holder)
        assert len(found) <= len(tree) + 2, "a circle"
    return found


@given(EVENTS)
def test_nobody_depends_on_itself_nor_moves_to_who_has_failed(events: list[tuple[str, str, int]]) -> None:
    tree = FanOut("trainer", ALIKE[:1000], slow=["c"], usual=100.0 * CHUNK)
    there: list[int] = []
    for now, (event, host, pick) in enumerate(events):
        if event == "join":
            there.append(tree.join(host, 1 + len(there)))
        elif not there:
            continue
        else:
            number = there[pick % len(there)]
            former = tree._places[number].holder
            if tree._places[number].whole and event != "leave":
                continue
            if event == "leave":
                tree.leave(number)
                there.remove(number)
            elif event == "report":
                tree.report(number, tree._places[number].proven + 10 * pick, float(now))
            else:
                tree.move(number, alone=event == "alone")
                holder = tree._places[number].holder
                assert holder == TRAINER or not tree._places[holder].failed
                assert holder != former or holder == TRAINER or tree._places[number].host in tree._slow
                assert event != "alone" or tree.holder(number) == TRAINER
        for number in there:
            if tree._places[number].whole:
                continue
            chain(tree, number)
            own, other = tree._places[number].host, tree._host_of(tree.holder(number))
            assert own == other or other not in tree._slow
    assert len(tree._slow) <= 2
    assert "trainer" not in tree._slow


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
    assert tree.address(tree.holder(second)) == ("a", 1)
    tree.move(second, alone=True)
    assert tree.address(tree.holder(second)) is None
    assert tree._places[tree.join("c", 3)].holder == first


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=9), st.lists(st.sampled_from("abcdefghi"), max_size=16))
def test_who_comes_late_takes_from_who_has_it_and_sends_to_nobody_else(had: list[str], late: list[str]) -> None:
    tree = FanOut("trainer", ALIKE)
    for number in [tree.join(host, 1) for host in had]:
        tree.report(number, CHUNKS, 1.0)
    numbers = [tree.join(host, 1) for host in late]
    assert TRAINER not in {end for number in numbers for end in chain(tree, number)}
    near = [tree.holder(number) for number in numbers if tree._places[number].near]
    far = [tree.holder(number) for number in numbers if not tree._places[number].near]
    assert max(Counter(near).values(), default=0) <= 1
    assert max(Counter(map(tree._host_of, far)).values(), default=0) <= 1
    # Nobody waits behind another as long as there are machines that have it and send nothing.
    assert sum(holder in numbers for holder in far) <= max(0, len(far) - len(set(had)))


def test_the_holder_of_who_came_late_is_gone_and_the_next_one_has_it_too() -> None:
    tree = FanOut("trainer", ALIKE)
    first, second = tree.join("a", 1), tree.join("b", 1)
    for number in (first, second):
        tree.report(number, CHUNKS, 1.0)
    late = tree.join("c", 1)
    assert tree.holder(late) == first
    tree.leave(first)
    assert tree.address(tree.holder(late)) is None
    tree.move(late, alone=False)
    assert tree.holder(late) == second
    tree.leave(second)
    tree.move(late, alone=False)
    assert tree.holder(late) == TRAINER
    assert not tree.is_settled
    tree.report(late, CHUNKS, 2.0)
    assert tree.is_settled


def test_who_has_not_begun_to_take_is_not_slow() -> None:
    tree = FanOut("trainer", ALIKE)
    first, second = tree.join("a", 1), tree.join("b", 1)
    for now in range(10):
        tree.report(first, int(RATE * now), float(now))
    # A link to its holder is still being made.
    assert tree.holder(second) == first
    assert not tree._slow
    for now in range(10, 14):
        tree.report(first, int(RATE * now), float(now))
        tree.report(second, 1, float(now))
    assert tree._slow == {"a", "b"}


def test_a_slow_link_from_who_has_it_is_found() -> None:
    tree = FanOut("trainer", ALIKE)
    first, second = tree.join("a", 1), tree.join("b", 1)
    for now in (0.0, 30.0):
        for number in (first, second):
            tree.report(number, int(RATE * now), now)
    late = tree.join("c", 1)
    assert tree.holder(late) == first
    for now in range(31, 35):
        tree.report(late, now - 30, float(now))
    assert tree.holder(late) == second
    # On one machine, nothing is known of the card.
    near = tree.join("b", 2)
    tree.report(near, 0, 40.0)
    tree.report(near, CHUNKS, 40.1)
    assert tree._card(tree._places[near]) == 0.0


@given(st.lists(st.tuples(HOSTS, st.integers(0, CHUNKS)), min_size=1, max_size=30))
def test_who_goes_on_from_a_former_try_waits_for_nobody_who_has_much_less(came: list[tuple[str, int]]) -> None:
    tree = FanOut("trainer", ALIKE)
    for host, has in came:
        number = tree.join(host, 1, has)
        place, holder = tree._places[number], tree._places.get(tree.holder(number))
        assert place.whole == (has == CHUNKS)
        if place.whole:
            assert tree.address(tree.holder(number)) is None
        elif has and holder is not None:
            assert holder.proven >= place.proven - CHUNKS * CHUNK // 16
        chain(tree, number)
    assert tree.is_settled == all(has == CHUNKS for _, has in came)


def test_all_that_go_on_from_the_same_moment_make_one_chain() -> None:
    tree = FanOut("trainer", ALIKE)
    numbers = [tree.join(f"m{number}", 1, 1000 + number) for number in range(16)]
    assert [tree.holder(number) for number in numbers] == [TRAINER, *numbers[:-1]]


def test_members_that_have_come_and_gone_are_forgotten_one_day() -> None:
    tree = FanOut("trainer", ALIKE)
    for _ in range(2000):
        number = tree.join("a", 1)
        tree.report(number, CHUNKS, 1.0)
        tree.leave(number)
    assert len(tree._gone) <= 1024
    assert len(tree._takers) <= 1025


type Kind = Literal["none", "takes", "sends", "both"]


class Cards:
    """Members on machines of their own, each with a card; one of them is slow.

    Args:
        members: How many.
        victim: Which is slow.
        kind: At what.
        slow: As the rounds before have told.
    """

    def __init__(self, members: int, victim: int, kind: Kind, slow: Iterable[str] = ()) -> None:
        self.tree = FanOut("trainer", ALIKE, slow=slow, usual=RATE * CHUNK)
        self.numbers = [self.tree.join(f"m{i}", 1) for i in range(members)]
        self.sends = dict.fromkeys((TRAINER, *self.numbers), RATE)
        self.takes = dict.fromkeys(self.numbers, RATE)
        self.waited_for = set(self.numbers)
        if kind in ("sends", "both"):
            self.sends[self.numbers[victim]] = SLOW
        if kind in ("takes", "both"):
            self.takes[self.numbers[victim]] = SLOW
            self.waited_for.discard(self.numbers[victim])
        self.has = {TRAINER: float(CHUNKS)} | dict.fromkeys(self.numbers, 0.0)
        self.told = {number: self.tree.holder(number) for number in self.numbers}
        self.moves: Counter[int] = Counter()
        self.done: dict[int, float] = {}

    def send(self, seconds: float) -> None:
        """Bring chunks along all links. What one does not take of a card is left to the others, as TCP does it."""
        before = dict(self.has)
        for holder, rate in self.sends.items():
            takers = [number for number in self.numbers if number not in self.done and self.told[number] == holder]
            left = rate * seconds
            for rank, number in enumerate(sorted(takers, key=self.takes.__getitem__)):
                share = left / (len(takers) - rank)
                took = max(0.0, min(share, self.takes[number] * seconds, before[holder] - before[number]))
                self.has[number] += took
                left -= took

    def report(self, number: int, now: float) -> None:
        """Tell the trainer how far a member is, and the member of its holder."""
        self.tree.report(number, int(self.has[number] + 1e-6), now)
        if self.tree.holder(number) != self.told[number]:
            self.told[number] = self.tree.holder(number)
            self.moves[number] += 1
        if self.has[number] >= CHUNKS - 1e-6:
            self.tree.leave(number)
            self.done[number] = now

    def run(self) -> float:
        """Return when the last one has all; without the slow one, where it cannot take faster."""
        tick = 0
        while not self.waited_for <= self.done.keys():
            tick += 1
            assert tick < 10 * CHUNKS / RATE / TICK_S, "they wait for ever"
            self.send(TICK_S)
            for number in self.numbers:
                if number not in self.done and (self.has[number] >= CHUNKS - 1e-6 or (tick + 3 * number) % 10 == 0):
                    self.report(number, tick * TICK_S)
        assert max(self.moves.values(), default=0) <= 3
        return max(self.done[number] for number in self.waited_for)


ALONE_S = CHUNKS / RATE
"""For one member, undisturbed."""


@pytest.mark.parametrize("kind", ["takes", "sends", "both"])
@pytest.mark.parametrize("victim", [0, 1, 7, 14, 15])
def test_a_slow_machine_holds_up_nobody_else_for_long(victim: int, kind: Kind) -> None:
    cards = Cards(16, victim, kind)
    assert cards.run() <= ALONE_S + 5
    is_last = (victim, kind) == (15, "sends")
    assert cards.tree.culprits() == (set() if is_last else {f"m{victim}"})
    # From then on it is behind the others, and costs nothing.
    again = Cards(16, victim, kind, cards.tree.culprits())
    assert again.run() <= ALONE_S + 2
    assert not again.tree.culprits()


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("kind", ["takes", "sends", "both"])
def test_few_members_are_not_held_up_either(members: int, kind: Kind) -> None:
    assert Cards(members, 0, kind).run() <= ALONE_S + 4


@given(st.integers(1, 12))
def test_nobody_is_slow_where_all_cards_are_alike(members: int) -> None:
    cards = Cards(members, 0, "none")
    assert cards.run() <= ALONE_S + 1
    assert not cards.tree._slow


def test_who_waits_behind_a_slow_one_is_not_blamed() -> None:
    tree = FanOut("trainer", ALIKE, usual=RATE * CHUNK)
    numbers = [tree.join(host, 1) for host in "abcd"]
    for now in range(0, 6, 2):
        for number, rate in zip(numbers, (100, 1, 1, 1), strict=True):
            tree.report(number, rate * now, float(now))
    assert tree._slow == {"a", "b"}
    assert [tree.holder(number) for number in numbers] == [numbers[3], numbers[3], TRAINER, numbers[2]]


def test_who_takes_larger_chunks_than_its_holder_had_meanwhile_is_not_slow() -> None:
    # The holder is at small chunks of the end, the taker at large ones before them, at the same bytes a second.
    large, small = 4 << 20, 1 << 18
    sizes = [large] * 1000 + [small] * 16_000
    ends = [sum(sizes[:1000]) - large * (1000 - i) for i in range(1001)]
    ends += [ends[-1] + small * i for i in range(1, 16_001)]
    chunks = [(0, before, end) for before, end in pairwise(ends)]
    tree = FanOut("trainer", chunks, usual=100.0 * large)
    first, second = tree.join("a", 1), tree.join("b", 1)
    for now in range(5):
        tree.report(first, 1000 + 16 * 100 * now, 1.0 * now)
        tree.report(second, 100 + 100 * now, 1.0 * now)
    assert not tree._slow
    assert tree.holder(second) == first
