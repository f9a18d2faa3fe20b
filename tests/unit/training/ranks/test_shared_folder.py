"""A machine that sees another folder of checkpoints is told so."""

from pathlib import Path

import pytest

from trinity_bus.training.errors import RankError
from trinity_bus.training.ranks.shared_folder import look_for, marked


def test_who_sees_the_same_folder_finds_the_mark_as_long_as_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "not yet" / "there"
    with marked(folder) as mark:
        look_for(folder, mark)
    assert list(folder.iterdir()) == []
    with pytest.raises(RankError, match=r"trainer\.checkpoint_dir must be one folder that all machines share"):
        look_for(folder, mark)


def test_a_mark_is_a_name_and_no_path(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with marked(tmp_path), pytest.raises(RankError):
        look_for(tmp_path, "/../other")
