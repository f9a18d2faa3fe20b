"""Attack 15: ``mesh.max_record_mib`` is lowered while a larger batch is open.

The coordinator took the batch up again, and ended when its manifest was to be written, again and again. Now it says in
one line what is too large and what to do, before it has written anything.
"""

from typing import Any, cast

import pytest

from tests.support.simulation.harness import Harness
from trinity_bus.config import CoordinatorSettings, Settings
from trinity_bus.config.mesh import MIN_RECORD_MIB
from trinity_bus.coordination.batches.task_rules import too_large
from trinity_bus.errors import ConfigError
from workers.coordinator.leader_term import LeaderTerm
from workers.coordinator.outputs import Changelog


def lowered(harness: Harness) -> str | None:
    """What a successor with smaller records finds."""
    harness.settings = CoordinatorSettings(max_record_mib=MIN_RECORD_MIB)
    harness.restart()
    return too_large(harness.machine.ledger.batches.values(), harness.settings)


async def test_a_coordinator_with_smaller_records_touches_nothing_and_says_what_to_do() -> None:
    harness = Harness()
    harness.submit("large", 8000)
    state = Changelog()
    state.entries = {key: value for key, value in harness.store.items() if value is not None}
    before = dict(state.entries)
    settings = Settings().model_copy(update={"coordinator": CoordinatorSettings(max_record_mib=MIN_RECORD_MIB)})
    # There is no log: whatever would be read or written is an error of another kind.
    nothing = cast("Any", None)
    term = LeaderTerm(settings, nothing, nothing, nothing, state, clock=lambda: 0.0)
    with pytest.raises(
        ConfigError, match=r"max_record_mib is 5, .* open batch 'large' may need 9: .* set it to 9"
    ) as told:
        await term.work()
    assert "\n" not in str(told.value)
    assert state.entries == before


def test_with_what_it_asks_for_it_goes_on() -> None:
    harness = Harness()
    harness.submit("large", 8000)
    harness.settings = CoordinatorSettings(max_record_mib=9)
    harness.restart()
    assert too_large(harness.machine.ledger.batches.values(), harness.settings) is None
    harness.abort("large")
    assert lowered(harness) is None


def test_batches_that_fit_and_open_ones_are_taken_up() -> None:
    harness = Harness()
    harness.submit("small", 4096)
    harness.submit("open", None)
    assert lowered(harness) is None


def test_many_records_of_few_tasks_are_too_large_too() -> None:
    harness = Harness(batch_size=600, group_size=16, max_repeat_times_per_runner=1)
    for number in range(600):
        harness.task(f"t{number}")
    assert "'train-000001' may need 6" in (lowered(harness) or "")
