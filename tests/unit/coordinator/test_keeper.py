from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from schemas.topic import Topic
from schemas.topics import DEMONSTRATIONS
from trinity_bus.bus import Bus
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import CoordinatorMachine
from trinity_bus.training.checkpoint.listing import oldest_need
from workers.coordinator.retention import Commits, Keeper, needed_share


@pytest.mark.parametrize(
    ("begin", "needed", "end", "share"),
    [
        (0, 0, 0, 0.0), (0, 0, 10, 1.0), (0, 5, 10, 0.5), (5, 0, 10, 1.0), (0, 10, 10, 0.0), (0, 99, 10, 0.0),
        (7, 7, 7, 0),
    ],
)  # fmt: skip
def test_the_share_that_is_needed(begin: int, needed: int, end: int, share: float) -> None:
    assert needed_share(begin, needed, end) == share


def test_the_oldest_checkpoint_says_what_is_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert oldest_need(tmp_path / "none") == oldest_need(tmp_path) == 0
    for step, offset in ((7, 70), (8, 80)):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "progress.json").write_text(f'{{"progress": {{"batches_offset": {offset}}}, "later": 1}}')
    assert oldest_need(tmp_path) == 70
    (tmp_path / "step-00000009").mkdir()
    assert oldest_need(tmp_path) == 70, "it has gone meanwhile"
    (tmp_path / "step-00000009" / "progress.json").write_text("{")
    assert oldest_need(tmp_path) == 0
    assert "nothing is deleted from the log that it may need" in caplog.text


class Weighed:
    """FAKE: a bus that tells of two topics how much is in them, and what they may take."""

    async def sizes(self, topics: Sequence[Topic]) -> dict[tuple[str, int], int]:
        assert DEMONSTRATIONS in topics
        return {("demonstrations", 0): 6 << 30, ("preferences", 0): 6 << 30, ("tasks", 1): 4 << 30}

    async def budgets(self, topics: Sequence[Topic]) -> dict[str, int]:
        del topics
        # Somebody has made one larger, and taken the limit of another away.
        return {"demonstrations": DEMONSTRATIONS.retention_bytes, "preferences": -1, "tasks": 16 << 30}

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        return dict.fromkeys(range(topic.partitions), 0)

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        return dict.fromkeys(range(topic.partitions), 100)


async def test_what_nobody_deletes_is_weighed_too_by_the_budgets_that_topics_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, float] = {}
    monkeypatch.setattr(
        "workers.coordinator.observations.BUDGET_USED.set",
        lambda share, of: told.update({next(iter(of.values())): share}),
    )
    machine = partial(CoordinatorMachine, CoordinatorSettings())
    await Keeper(cast("Bus", Weighed()), machine, Commits({}), every_s=1.0, keep_s=None).weigh()
    assert {name: share for name, share in told.items() if share} == {"demonstrations": 0.75, "tasks": 0.25}
    assert told["preferences"] == 0.0
