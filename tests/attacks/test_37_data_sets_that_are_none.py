"""What lies where a data set should: a pipe, a device, or a folder that somebody else has written."""

import os
from pathlib import Path

import pytest

from workers.taskset.dataset import load
from workers.taskset.description import DatasetError


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_never_ends_is_not_read(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / f"a.{kind}")
    with pytest.raises(DatasetError, match="is no file"):
        load(tmp_path / f"a.{kind}")


@pytest.mark.parametrize("splits", [b"{}", b"[]", b'{"splits": []}', b'{"splits": 1}', b"\xff", b"[" * 100_000])
def test_a_folder_that_nobody_can_read_is_told(tmp_path: Path, splits: bytes) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_dict.json").write_bytes(splits)
    with pytest.raises(DatasetError, match="no folder that the library datasets has saved"):
        load(folder)
