"""Folders that a model's program, or a neighbour on the machine, leaves so that nobody can remove them."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trinity_bus.sandbox import Sandbox
from trinity_bus.sandbox.place import LeftPlaces, SandboxPlace

DEEPER = 3 * sys.getrecursionlimit()
NEST = f"""
import os
for _ in range({DEEPER}):
    os.mkdir("d")
    os.chdir("d")
open("file", "w").close()
"""
NOBODY = 65534


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sandboxes are; not within ``tmp_path``, which other users may not enter."""
    assert tmp_path.exists(), "made before the folder of temporary files is another one"
    folder = Path(tempfile.mkdtemp())
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def without_roots_rights(folder: Path) -> Iterator[None]:
    """Within it this process may do what any user may."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, NOBODY, -1)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def nested(folder: Path) -> None:
    """Make folders as a program does, which goes into each."""
    here = os.open(".", os.O_DIRECTORY)
    try:
        os.chdir(folder)
        for _ in range(DEEPER):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.fchdir(here)
        os.close(here)


async def test_a_program_that_nests_folders_without_end_leaves_nothing(places: Path) -> None:
    async with Sandbox() as sandbox:
        done = await sandbox.exec([sys.executable, "-c", NEST])
        assert done.returncode == 0, done.stderr
    assert list(places.iterdir()) == []


async def test_folders_that_a_dead_owner_has_left_so_keep_nobody_from_opening_the_next_sandbox(places: Path) -> None:
    left = places / "trinity-bus-sandbox-left"
    (left / "files").mkdir(parents=True)
    nested(left / "files")
    os.utime(left, (0, 0))
    LeftPlaces().remove()
    assert list(places.iterdir()) == []


def test_a_place_with_such_folders_is_emptied_for_the_next_attempt_and_let_go_of(places: Path) -> None:
    place = SandboxPlace.claim("run")
    nested(place.files)
    place.note_calls(["x"])
    place.clear()
    assert (list(place.files.iterdir()), place.calls()) == ([], [])
    assert [path.name for path in place.path.iterdir()] == ["files"]
    nested(place.files)
    place.remove()
    assert list(places.iterdir()) == []


def test_folders_that_their_owner_may_not_enter_are_removed_too(places: Path) -> None:
    with without_roots_rights(places):
        place = SandboxPlace.make()
        inner = place.files / "a" / "b"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        for folder in (inner, inner.parent, place.files):
            folder.chmod(0)
        place.release()
        assert list(places.iterdir()) == []


def test_no_link_is_followed(places: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    place = SandboxPlace.make()
    (place.files / "link").symlink_to(tmp_path)
    (place.files / "deeper").mkdir()
    (place.files / "deeper" / "link").symlink_to(tmp_path)
    place.release()
    assert (tmp_path / "precious").exists()
    assert list(places.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders that are others'")
def test_places_that_another_user_makes_push_none_of_this_users_out(places: Path) -> None:
    mine = SandboxPlace.claim("mine")
    mine.release()
    os.utime(mine.path, (time.time() - 100,) * 2)
    for number in range(70):
        theirs = places / f"trinity-bus-sandbox-kept-{number}"
        theirs.mkdir()
        os.chown(theirs, NOBODY, -1)
    LeftPlaces().remove()
    assert mine.path.exists()
