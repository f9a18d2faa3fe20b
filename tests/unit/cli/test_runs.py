import os
from pathlib import Path

import pytest

from workers.runs import NoRunError, newest_run


def test_the_newest_run_that_has_it(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        (tmp_path / name / "model").mkdir(parents=True)
        os.utime(tmp_path / name / "model", (1000 - age, 1000 - age))
    (tmp_path / "newest-but-without").mkdir()
    assert newest_run("model", tmp_path) == tmp_path / "new"


def test_no_run_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NoRunError, match="run the demo first"):
            newest_run("model", folder)
