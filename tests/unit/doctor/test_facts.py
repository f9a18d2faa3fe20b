from pathlib import Path

from workers.doctor.facts import free_mib


def test_a_folder_that_there_cannot_be_is_none_that_can_be_written(tmp_path: Path) -> None:
    assert free_mib(tmp_path / ("x" * 300)) is None
    assert free_mib(tmp_path / "to" / "be" / "made") is not None
