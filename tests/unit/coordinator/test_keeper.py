"""How much of a budget is taken by what is needed; what checkpoints need."""

from pathlib import Path

import pytest

from trinity_bus.training.needs import oldest_need
from workers.coordinator.retention import needed_share


@pytest.mark.parametrize(
    ("begin", "needed", "end", "share"),
    [
        (0, 0, 0, 0.0),
        (0, 0, 10, 1.0),
        (0, 5, 10, 0.5),
        (5, 0, 10, 1.0),
        (0, 10, 10, 0.0),
        (0, 99, 10, 0.0),
        (7, 7, 7, 0),
    ],
)
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
