"""The sync styles by themselves: timelines, bounds, and settings that starve the mesh."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import SyncPolicy
from trinity_bus.errors import ConfigError

intervals = st.integers(1, 6)
offsets = st.integers(0, 6)
BATCHES = 60


def fixed(interval: int, offset: int, trainer_interval: int | None = None) -> SyncPolicy:
    return SyncPolicy("fixed", interval, trainer_interval or interval, offset, None)


def explorers_timeline(policy: SyncPolicy, batches: int) -> list[int | str]:
    """Batches as the explorers' side draws them; a sync stands where the next one needs another version."""
    timeline: list[int | str] = []
    for sequence in range(1, batches + 1):
        if policy.version_needed(sequence) != policy.version_needed(max(1, sequence - 1)):
            timeline.append("sync")
        timeline.append(sequence)
    return timeline


def trainers_timeline(policy: SyncPolicy, steps: int) -> list[int | str]:
    timeline: list[int | str] = []
    for step in range(1, steps + 1):
        timeline.append(step)
        if policy.publishes(step):
            timeline.append("sync")
    return timeline


@pytest.mark.parametrize(
    ("interval", "offset", "explorers", "trainer"),
    [
        (2, 1, [1, 2, 3, "sync", 4, 5, "sync", 6], [1, 2, "sync", 3, 4, "sync", 5]),
        (1, 0, [1, "sync", 2, "sync", 3, "sync", 4], [1, "sync", 2, "sync", 3, "sync"]),
        (1, 1, [1, 2, "sync", 3, "sync", 4], [1, "sync", 2, "sync", 3, "sync"]),
        (3, 2, [1, 2, 3, 4, 5, "sync", 6, 7, 8, "sync", 9], [1, 2, 3, "sync", 4, 5, 6, "sync"]),
        (4, 0, [1, 2, 3, 4, "sync", 5], [1, 2, 3, 4, "sync", 5]),
    ],
)
def test_the_timelines_of_fixed(interval: int, offset: int, explorers: list[object], trainer: list[object]) -> None:
    policy = fixed(interval, offset)
    batches, steps = (max(n for n in line if isinstance(n, int)) for line in (explorers, trainer))
    assert explorers_timeline(policy, batches) == explorers
    assert trainers_timeline(policy, steps) == trainer


@given(intervals, intervals, offsets)
def test_a_fixed_batch_needs_versions_that_are_published_none_that_it_makes_and_of_bounded_staleness(
    e: int, t: int, o: int
) -> None:
    policy = fixed(e, o, t)
    needs = [policy.version_needed(sequence) for sequence in range(1, BATCHES + 40)]
    needed, published = set(needs[: BATCHES - 1]) - {0}, {step for step in range(1, BATCHES) if policy.publishes(step)}
    assert needed <= published
    # What is published near the end is needed by batches beyond it.
    assert {step for step in published if step < BATCHES - o - e} <= needed
    ages = [sequence - 1 - version for sequence, version in enumerate(needs, start=1)]
    assert min(ages) >= 0
    assert max(ages) == policy.staleness_bound
    assert all(earlier <= later for earlier, later in itertools.pairwise(needs))


@given(intervals, offsets, st.integers(0, 12), st.integers(1, 4))
def test_with_explorer_driven_what_is_asked_for_lasts_until_the_next_time(e: int, o: int, s: int, rush: int) -> None:
    """The trainer may lag behind the explorers' side by ``rush`` batches: still no batch waits for ever."""
    try:
        policy = SyncPolicy("explorer_driven", e, 1, o, s)
    except ConfigError:
        assert o + e > s + 1
        return
    asked_after = published = wanted = finalized = trained = 0
    for _ in range(300):
        # As many batches end as may begin with what is published.
        while finalized < trained + rush and policy.version_needed(finalized + 1) <= published:
            finalized += 1
            want = policy.want(finalized, asked_after)
            if want is not None:
                asked_after, wanted = want[0], max(want[1], published + 1)
        if trained < finalized:
            trained += 1
            if policy.publishes(trained, published=published, wanted=wanted):
                published = trained
        elif policy.publishes(trained, published=published, wanted=wanted):
            published = trained
    assert trained > 100


@given(st.sampled_from(["trainer_driven", "fully_async"]), intervals, st.integers(0, 12))
def test_what_a_bounded_batch_needs_is_published_before_it_is_trained(style: str, t: int, s: int) -> None:
    try:
        policy = SyncPolicy(style, 1, t, 0, s)  # type: ignore[arg-type]  # sampled
    except ConfigError:
        assert t > s + 1
        return
    for sequence in range(1, BATCHES):
        oldest = policy.version_needed(sequence)
        assert sequence - 1 - oldest <= s
        assert oldest == 0 or any(policy.publishes(step) for step in range(oldest, sequence))


def test_with_trainer_driven_a_batch_needs_what_is_out_when_it_is_handed_out() -> None:
    policy = SyncPolicy("trainer_driven", 1, 2, 0, 3)
    assert policy.version_needed(4, announced=2) == 2
    assert policy.version_needed(8, announced=2) == 4
    assert SyncPolicy("fully_async", 1, 2, 0, 3).version_needed(4, announced=2) == 0


@given(st.sampled_from(["fixed", "explorer_driven", "fully_async", "trainer_driven"]), st.integers(2, 40))
def test_a_batch_that_moves_down_never_needs_more(style: str, sequence: int) -> None:
    policy = SyncPolicy(style, 2, 2, 1, 5)  # type: ignore[arg-type]  # sampled
    needed = policy.version_needed(sequence, announced=sequence - 2)
    assert policy.moved_down(sequence - 1, needed) <= needed
    assert policy.moved_down(sequence - 1, needed) >= policy.version_needed(sequence - 1)


def test_a_version_is_held_for_batches_that_are_handed_out() -> None:
    assert fixed(2, 1).holds(2, served=0, oldest_needed=0)
    assert not fixed(2, 1).holds(2, served=0, oldest_needed=2)
    assert not fixed(2, 1).holds(2, served=0, oldest_needed=None)
    assert not fixed(2, 1).holds(6, served=2, oldest_needed=4), "what is served is too old for the batch"


def test_explorer_driven_publishes_only_what_was_asked_for() -> None:
    policy = SyncPolicy("explorer_driven", 1, 1, 0, 3)
    assert not policy.publishes(4)
    assert not policy.publishes(4, published=2, wanted=5)
    assert policy.publishes(5, published=2, wanted=5)
    assert not policy.publishes(6, published=5, wanted=5)


@pytest.mark.parametrize(
    ("values", "max_staleness", "advice"),
    [
        ({"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1}, 1, "max_staleness to 2 or more"),
        ({"sync_style": "trainer_driven", "sync_interval": 4}, 2, "max_staleness to 3 or more"),
        ({"sync_style": "fully_async", "trainer_sync_interval": 2}, 0, "trainer_sync_interval to 1 or less"),
        ({"sync_style": "explorer_driven", "sync_interval": 2, "sync_offset": 1}, 1, "max_staleness to 2 or more"),
    ],
)
def test_settings_that_starve_the_mesh_are_refused_with_what_would_be_right(
    values: dict[str, object], max_staleness: int, advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice) as refused:
        SyncPolicy.of(SynchronizerSettings.model_validate(values), CoordinatorSettings(max_staleness=max_staleness))
    assert "\n" not in str(refused.value)


def test_fixed_without_a_bound_is_as_stale_as_its_intervals_make_it() -> None:
    settings = SynchronizerSettings(sync_style="fixed", sync_interval=2, sync_offset=1)
    assert SyncPolicy.of(settings, CoordinatorSettings()).staleness_bound == 2
    split = SynchronizerSettings(sync_style="fixed", explorer_sync_interval=4, trainer_sync_interval=1)
    assert SyncPolicy.of(split, CoordinatorSettings()).staleness_bound == 3


def test_the_defaults_are_strictly_on_policy() -> None:
    policy = SyncPolicy.of(SynchronizerSettings(), CoordinatorSettings())
    assert [policy.version_needed(sequence) for sequence in range(1, 5)] == [0, 1, 2, 3]
    assert all(policy.publishes(step) for step in range(1, 5))
