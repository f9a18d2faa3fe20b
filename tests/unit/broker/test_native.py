from pathlib import Path

import pytest

from trinity_bus.broker.layout import Folder
from trinity_bus.broker.node import native_folder, runs_programs
from trinity_bus.config import BrokerSettings


def test_a_data_folder_that_runs_no_programs_is_avoided(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, settings = Folder(tmp_path / "data"), BrokerSettings(cache_dir=tmp_path / "cache")
    assert native_folder(settings, folder, lambda _: True) == folder.tmp
    other = native_folder(settings, folder, lambda path: path != folder.tmp)
    assert other.is_relative_to(tmp_path / "cache")
    assert other.is_dir()
    assert other != native_folder(settings, Folder(tmp_path / "data-2"), lambda path: path.parent.name == "native")
    assert not caplog.records
    assert native_folder(settings, folder, lambda _: False) == folder.tmp
    assert "will refuse records that are packed with zstd or snappy" in caplog.text


def test_this_machine_tells_which_file_systems_run_programs(tmp_path: Path) -> None:
    assert runs_programs(tmp_path)
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, place, _, options, *_ in mounts:
        if place == "/proc":
            assert runs_programs(Path("/proc")) is ("noexec" not in options.split(","))
