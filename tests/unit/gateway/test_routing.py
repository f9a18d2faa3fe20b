import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import ExplorerHeartbeat, ExplorerLeft, RunningAttempt
from tests.support.narrowing import some
from trinity_bus.gateway import fleet as routing
from trinity_bus.gateway.fleet import (
    BLOCK,
    FACTOR,
    SLACK,
    Presence,
    Router,
    ServingExplorer,
    ServingFleet,
    digests_of,
    with_proof,
)

KEY = "of the explorers"


def explorer(name: str, *, version: int = 0, elsewhere: int = 0) -> ServingExplorer:
    return ServingExplorer(Presence(name, "life", None, f"{name}:1"), version, elsewhere)


NAMES = [f"e{number}" for number in range(4)]
loads = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), loads), max_size=30), st.integers(1, 4))
def test_nobody_with_too_much_to_do_is_asked_and_of_the_others_who_knows_most(
    history: list[tuple[int, int, dict[str, int]]], count: int
) -> None:
    router, explorers = Router(), [explorer(name) for name in NAMES[:count]]
    asked: dict[str, set[bytes]] = {one.name: set() for one in explorers}
    for conversation, length, requests in history:
        prompt = [conversation] * length
        chosen = router.choose(prompt, explorers, requests)
        assert chosen in explorers
        load = {one.name: requests.get(one.name, 0) for one in explorers}
        most = max(min(load.values()) + SLACK, min(load.values()) * FACTOR)
        assert load[chosen.name] <= most
        digests = list(digests_of(prompt))
        known = {name: sum(digest in asked[name] for digest in digests) for name in load if load[name] <= most}
        assert known[chosen.name] == max(known.values())
        assert load[chosen.name] == min(load[name] for name in known if known[name] == known[chosen.name])
        asked[chosen.name].update(digests)


def test_a_conversation_stays_with_its_explorer_until_its_weights_are_new() -> None:
    router, explorers = Router(), [explorer(name) for name in NAMES]
    prompt = list(range(BLOCK))
    first = some(router.choose(prompt, explorers, {}))
    for turn in range(2, 20):
        assert router.choose(list(range(BLOCK * turn)), explorers, {}) is first
    renewed = [explorer(one.name, version=1) for one in explorers]
    asked = {router.choose([number] * BLOCK, renewed, {}) for number in range(20)}
    assert asked == set(renewed)


def test_what_nobody_knows_goes_to_the_least_busy_in_turn() -> None:
    router, explorers = Router(), [explorer(name) for name in NAMES]
    asked = [router.choose([number] * BLOCK, explorers, {"e0": 3}) for number in range(30)]
    assert {one.name for one in asked if one} == {"e1", "e2", "e3"}
    busy = [explorer("e0"), explorer("e1", elsewhere=5)]
    assert {router.choose([number] * BLOCK, busy, {}) for number in range(100, 110)} == {busy[0]}
    assert router.choose([1], [], {}) is None


def beat(name: str, **said: object) -> ExplorerHeartbeat:
    fields = {"incarnation": "life", "state": "ready", "slots": 1, "address": f"{name}:1", **said}
    return with_proof(ExplorerHeartbeat.model_validate({"explorer": name, **fields}), KEY)


def test_who_is_heard_of_at_an_address_can_be_asked_until_it_is_silent() -> None:
    fleet = ServingFleet("policy", model="policy", key=KEY, silence_s=10)
    fleet.heard(beat("a", model_version=3), 0)
    fleet.heard(beat("b", pool="policy"), 5)
    fleet.heard(beat("judge", pool="judge"), 5)
    fleet.heard(beat("no-http", address=""), 5)
    assert [(one.name, one.version) for one in fleet.usable(5)] == [("a", 3), ("b", -1)]
    fleet.doubt("b")
    assert [one.name for one in fleet.usable(5)] == ["a"]
    fleet.heard(beat("b", state="syncing"), 6)
    assert [one.name for one in fleet.usable(11)] == ["b"]
    fleet.left(ExplorerLeft(explorer="b", incarnation="former"))
    assert [one.name for one in fleet.usable(11)] == ["b"]
    fleet.left(ExplorerLeft(explorer="b", incarnation="life"))
    fleet.heard(beat("a"), 11)
    fleet.heard(beat("a", state="draining"), 12)
    assert fleet.usable(12) == []


def test_what_others_have_an_explorer_do_is_its_load_and_what_one_has_asked_oneself_is_not_counted_twice() -> None:
    fleet = ServingFleet("policy", model="policy", key=KEY, silence_s=10)
    running = [RunningAttempt(task_id="task", attempt=1)]
    fleet.heard(beat("a", running=running, http_requests=5), 0, own=3)
    fleet.heard(beat("b", http_requests=1), 0, own=2)
    assert [(one.name, one.elsewhere) for one in fleet.usable(0)] == [("a", 3), ("b", 0)]
    # Another gateway's requests keep this one's away, too.
    fleet.heard(beat("b", http_requests=2 * SLACK), 1)
    fleet.heard(beat("a"), 1)
    asked = [Router().choose([1] * BLOCK, fleet.usable(1), {"a": count}) for count in range(SLACK)]
    assert {one.name for one in asked if one} == {"a"}


def test_who_comes_again_has_a_new_arrival_and_who_stays_keeps_theirs() -> None:
    fleet = ServingFleet("policy", model="policy", key=KEY, silence_s=10)

    def arrival(now: float, **said: object) -> int:
        fleet.heard(beat("a", **said), now)
        return fleet.usable(now)[0].arrival

    arrivals = [arrival(0)]
    assert arrival(9, model_version=4) == arrivals[0]
    fleet.doubt("a")
    assert arrival(10) == arrivals[0]
    fleet.left(ExplorerLeft(explorer="a", incarnation="life"))
    arrivals.append(arrival(11))
    fleet.heard(beat("a", state="draining"), 12)
    arrivals.append(arrival(13))
    # It was silent, and nobody has looked meanwhile.
    arrivals += [arrival(24), arrival(25, address="elsewhere:1"), arrival(26, incarnation="next")]
    assert sorted(set(arrivals)) == arrivals


def test_what_is_noted_is_bounded_and_beginnings_are_kept_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOST_BLOCKS", 10)
    router, one = Router(), explorer("e0")
    prompt = list(range(BLOCK * 20))
    router.choose(prompt, [one], {})
    assert list(reversed(router._prefixes["e0"])) == list(digests_of(prompt))[:10]


def test_who_was_told_to_send_fewer_heartbeats_is_waited_for() -> None:
    fleet = ServingFleet("policy", model="policy", key=KEY, silence_s=2.0)
    beat = ExplorerHeartbeat(explorer="e0", incarnation="life", state="ready", slots=1, address="e0:1", pace_s=4.0)
    fleet.heard(with_proof(beat, KEY), 0.0)
    assert [one.name for one in fleet.usable(12.0)] == ["e0"]
    assert fleet.usable(12.1) == []
