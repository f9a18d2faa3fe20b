"""Checkpoints at a URL: what is sent, fetched, set aside and removed, and which of two trainers may."""

import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas.record import Rollback
from trinity_bus.errors import SupersededError
from trinity_bus.runtime import object_store
from trinity_bus.runtime.object_store import PIECE, ObjectStore, ObjectStoreError
from trinity_bus.runtime.plain_files import open_plain
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import TrainingProgress, WrittenBy
from trinity_bus.training.checkpoint import mirror as mirroring
from trinity_bus.training.checkpoint.listing import oldest_need
from trinity_bus.training.checkpoint.mirror import CheckpointMirror, CheckpointsThere
from trinity_bus.training.checkpoint.notes import discard, read_mirror
from trinity_bus.training.errors import CheckpointError
from workers.cli.training.checkpoints import app

US = WrittenBy(dtype="torch.float32")
KEEP = 2


class Machine:
    """A trainer's folder, and the life that it has now."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.mirror = self._new()

    def _new(self) -> CheckpointMirror:
        self.folder.mkdir(exist_ok=True)
        return CheckpointMirror(self.folder, self.url, keep=KEEP, outage_s=0.2)

    def start(self) -> "Machine":
        self.mirror = self._new()
        self.mirror.open()
        return self

    def save(self, step: int, *, content: bytes = b"", keep: int = KEEP) -> Path:
        partial = checkpoint.begin(self.folder, step)
        (partial / "model.safetensors").write_bytes(content or f"weights {step}".encode())
        (partial / "chat.jinja").write_bytes(b"")
        progress = TrainingProgress(step=step, version=step, batches_offset=step * 10)
        return checkpoint.commit(self.folder, progress, US, keep=keep)

    def send(self) -> None:
        self.mirror.finish()
        self.mirror.run()
        self.mirror._finishing.clear()

    def train(self, *steps: int) -> "Machine":
        for step in steps:
            self.save(step)
            self.send()
        return self

    def steps(self) -> list[int]:
        return checkpoint.steps(self.folder)

    def rolled_back(self, to: int, through: int) -> Rollback:
        rollback = Rollback(to=to, through=through, reason="the reward fell", asked_by="an operator")
        checkpoint.begin_rollback(self.folder, rollback)
        return rollback


class Place:
    """A URL, and the machines that know it."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self._root = url, root
        self.store = ObjectStore(url)

    def machine(self, name: str) -> Machine:
        return Machine(self._root / name, self.url)

    def steps(self) -> list[int]:
        return [found.step for found in CheckpointsThere(self.url).listed(verified=True)]

    def pieces(self) -> list[str]:
        return self.store.names("pieces/")

    def lives(self) -> list[str]:
        return self.store.names("lives/")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a bucket on moto's server."""
    pytest.importorskip("s3fs", reason="trinity-bus[objects] is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    given = {"ENDPOINT_URL_S3": f"http://{host}:{port}", "ACCESS_KEY_ID": "none", "SECRET_ACCESS_KEY": "none"}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**given, "DEFAULT_REGION": "us-east-1"}.items():
            environment.setenv(f"AWS_{name}", value)
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    server.stop()


@pytest.fixture(params=["file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(object_store, "_FIRST_PAUSE_S", 0.01)
    match request.param:
        case "file":
            url = f"file://{tmp_path}/there/run"
        case "memory":
            url = f"memory://{uuid.uuid4().hex}"
        case _:
            url = f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}"
    return Place(url, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(f"file://{tmp_path}/there", tmp_path)


def test_a_fresh_machine_goes_on_from_the_newest_checkpoint_of_the_same_run(place: Place) -> None:
    first = place.machine("a").start().train(1, 2, 3)
    assert place.steps() == [2, 3]
    checkpoint.note_told(first.folder, TrainingProgress(step=4, sequence=4))
    first.train(4)
    fresh = place.machine("b").start()
    assert fresh.steps() == [4]
    folder = fresh.folder / "step-00000004"
    checkpoint.verify(folder)
    assert checkpoint.read_progress(folder, US).batches_offset == 40
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "chat.jinja", "progress.json"}
    assert checkpoint.read_run(fresh.folder) == checkpoint.read_run(first.folder)
    assert checkpoint.read_told(fresh.folder).sequence == 4
    fresh.train(5, 6)
    assert place.steps() == [5, 6]
    assert len(place.lives()) == 1


def test_a_piece_that_stayed_as_it_was_is_not_sent_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, sent = place.machine("a").start(), list[str]()
    original = ObjectStore.write

    def noting(self: ObjectStore, objects: Mapping[str, bytes]) -> None:
        sent.extend(name for name in objects if name.startswith("pieces/"))
        original(self, objects)

    monkeypatch.setattr(ObjectStore, "write", noting)
    content = bytearray(os.urandom(2 * PIECE + 7))
    machine.save(1, content=bytes(content))
    machine.send()
    assert len(sent) == 4
    sent.clear()
    content[PIECE] ^= 1
    machine.save(2, content=bytes(content))
    machine.send()
    assert len(sent) == 2  # the one that changed, and progress.json
    assert len(place.pieces()) == 6
    fetched = place.machine("b").start().folder / "step-00000002" / "model.safetensors"
    assert fetched.read_bytes() == content


def test_the_same_machine_goes_on_from_its_folder_and_sends_what_is_newer(place: Place) -> None:
    machine = place.machine("a").start().train(1)
    machine.save(2)
    machine.start()
    assert machine.steps() == [1, 2]
    machine.send()
    assert place.steps() == [1, 2]
    assert not [path for path in machine.folder.iterdir() if path.name.startswith("discarded")]


def test_the_log_that_a_checkpoint_at_the_url_needs_is_kept(place: Place) -> None:
    machine = place.machine("a").start()
    for step in (1, 2):
        machine.save(step)
        assert oldest_need(machine.folder, mirrored=True) == 0
    machine.send()
    for step in (3, 4):
        machine.save(step)
    assert [oldest_need(machine.folder, mirrored=mirrored) for mirrored in (True, False)] == [20, 30]
    machine.start()
    assert oldest_need(machine.folder, mirrored=True) == 20
    machine.send()
    assert oldest_need(machine.folder, mirrored=True) == 20
    machine.train(5)
    assert oldest_need(machine.folder, mirrored=True) == 40


def test_a_folder_that_was_there_before_the_url_is_sent(place: Place) -> None:
    machine = place.machine("a")
    machine.save(7)
    run = checkpoint.run_name(machine.folder)
    machine.start().send()
    assert place.steps() == [7]
    assert checkpoint.read_run(machine.folder) == run


def test_a_folder_that_is_behind_is_set_aside_and_one_whose_checkpoints_were_removed_is_filled(place: Place) -> None:
    first = place.machine("a").start().train(1)
    first.save(2)  # and never sent
    place.machine("b").start().train(2, 3)
    first.start()
    assert first.steps() == [3]
    assert (first.folder / "discarded-step-00000002" / "model.safetensors").exists()
    shutil.rmtree(first.folder / "step-00000003")
    first.start()
    assert first.steps() == [3]
    first.train(4)
    assert place.steps() == [3, 4]


def test_one_that_an_operator_has_removed_goes_at_the_url_too(place: Place) -> None:
    machine = place.machine("a").start().train(1, 2)
    shutil.rmtree(machine.folder / "step-00000002")
    machine.start()
    assert place.steps() == [1]


def test_a_rollback_is_at_the_url_before_anybody_hears_of_it(place: Place) -> None:
    machine = place.machine("a").start().train(4, 5)
    rollback = machine.rolled_back(4, 5)
    machine.start()
    assert machine.steps() == [4]
    assert place.steps() == [4]
    fresh = place.machine("b").start()
    assert fresh.steps() == [4]
    assert checkpoint.finish_rollback(fresh.folder) == rollback


def test_the_notes_of_a_shadow_come_along(place: Place) -> None:
    machine = place.machine("a")
    follows = checkpoint.Follows(trainer="trainer-0", run="0" * 32)
    machine.folder.mkdir(exist_ok=True)
    checkpoint.note_follows(machine.folder, follows)
    machine.start()
    fresh = place.machine("b").start()
    assert checkpoint.read_follows(fresh.folder) == follows
    assert checkpoint.read_run(fresh.folder) == checkpoint.read_run(machine.folder)


def test_another_runs_url_is_refused(place: Place) -> None:
    place.machine("a").start().train(1)
    other = place.machine("b")
    checkpoint.run_name(other.folder)
    other.save(9)
    with pytest.raises(CheckpointError, match=r"another run.*checkpoint_dir to an empty folder"):
        other.start()
    assert other.steps() == [9]


# Two trainers


def test_a_paused_trainer_neither_overrides_nor_removes_and_ends(place: Place) -> None:
    zombie = place.machine("a").start().train(1, 2)
    fresh = place.machine("b").start().train(3)
    zombie.save(3, content=b"another history")
    there = set(place.store.names())
    with pytest.raises(SupersededError, match="TRINITY_BUS_TRAINER__CHECKPOINT_URL"):
        zombie.send()
    assert set(place.store.names()) == there
    assert place.steps() == [2, 3]
    assert place.machine("c").start().folder.joinpath("step-00000003/model.safetensors").read_bytes() == b"weights 3"
    del fresh


@pytest.mark.parametrize("before", ["pieces", "index", "removal"])
def test_one_that_is_paused_anywhere_in_a_copy_harms_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    zombie = place.machine("a").start().train(1, 2)
    original, fresh = {name: getattr(ObjectStore, name) for name in ("write", "names")}, place.machine("b")
    written = list[str]()

    def begun() -> None:
        monkeypatch.undo()
        fresh.start()

    def write(self: ObjectStore, objects: Mapping[str, bytes]) -> None:
        if any(name.startswith({"pieces": "pieces/", "index": "lives/"}.get(before, "none")) for name in objects):
            begun()
        original["write"](self, objects)
        written.extend(objects)

    def names(self: ObjectStore, *folders: str) -> list[str]:
        if before == "removal" and written and written[-1].startswith("lives/"):
            begun()
        found: list[str] = original["names"](self, *folders)
        return found

    monkeypatch.setattr(ObjectStore, "write", write)
    monkeypatch.setattr(ObjectStore, "names", names)
    zombie.save(3)
    with pytest.raises(SupersededError):
        zombie.send()
    # What it had written when the other one began is of the same history; what came later is not read.
    assert fresh.steps() == [3 if before == "removal" else 2]
    fresh.train(4)
    assert place.steps() == [3 if before == "removal" else 2, 4]
    assert {name.split("/")[1] for name in place.lives()} == {fresh.mirror._life}


def test_of_two_that_begin_at_once_one_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    original, claimed = CheckpointMirror._ensure_highest, threading.local()

    def together(self: CheckpointMirror) -> None:
        if not getattr(claimed, "is", False):
            claimed.__dict__["is"] = True
            both.wait(60)
        original(self)

    monkeypatch.setattr(CheckpointMirror, "_ensure_highest", together)
    monkeypatch.setattr(mirroring, "_lives", _first_look_sees_none(mirroring._lives))
    ended: dict[str, str] = {}

    def begin(name: str) -> None:
        try:
            place.machine(name).start()
            ended[name] = "begun"
        except SupersededError:
            ended[name] = "superseded"

    threads = [threading.Thread(target=begin, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended.values()) == ["begun", "superseded"]


def _first_look_sees_none(original: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    looked = threading.local()

    def lives(store: Any) -> list[str]:
        if not getattr(looked, "once", False):
            looked.once = True
            return []
        return original(store)

    return lives


# Failures


@pytest.mark.parametrize("objects", [1, 2, 3, 4])
def test_a_trainer_that_is_killed_amid_a_copy_leaves_what_was_there(local: Place, objects: int) -> None:
    machine = local.machine("a").start().train(1)
    machine.save(2, content=os.urandom(PIECE + 1))
    command = [sys.executable, "-m", "tests.support.faults.mirroring", local.url, str(machine.folder), str(objects)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"amid\n"
        trainer.kill()
    assert local.steps() == [1]
    shutil.copytree(machine.folder, local.machine("copy").folder, dirs_exist_ok=True)
    assert local.machine("fresh").start().steps() == [1]
    # The folder is of a life that is not the last any more: what it had not sent is set aside.
    machine.start()
    assert machine.steps() == [1]
    machine.train(2)
    assert local.steps() == [1, 2]
    assert len(local.lives()) == 1
    assert len(local.pieces()) == len({name.split("/")[2] for name in local.pieces()})


def test_killed_amid_a_copy_the_same_machine_sends_it_again(local: Place) -> None:
    machine = local.machine("a").start().train(1)
    machine.save(2, content=os.urandom(PIECE + 1))
    command = [sys.executable, "-m", "tests.support.faults.mirroring", local.url, str(machine.folder), "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"amid\n"
        trainer.kill()
    machine.start()
    assert machine.steps() == [1, 2]
    machine.send()
    assert local.steps() == [1, 2]


def test_an_outage_amid_a_copy_is_waited_for_and_the_newest_is_sent_then(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = place.machine("a").start().train(1)
    original, gone, waits = ObjectStore.write, threading.Event(), threading.Event()

    def failing(self: ObjectStore, objects: Mapping[str, bytes]) -> None:
        if gone.is_set():
            raise ObjectStoreError("it is gone")
        original(self, objects)

    monkeypatch.setattr(ObjectStore, "write", failing)
    monkeypatch.setattr(mirroring, "_POLL_S", 0.01)
    gone.set()
    machine.save(2)
    running = threading.Thread(target=machine.mirror.run)
    running.start()
    while "step-00000002 is not at" not in caplog.text:
        waits.wait(0.01)
    machine.save(3)
    gone.clear()
    while place.steps()[-1] != 3:
        waits.wait(0.01)
    machine.mirror.finish()
    running.join(60)
    there = place.steps()
    gone.set()
    machine.save(4)
    with pytest.raises(ObjectStoreError, match="it is gone"):
        machine.send()
    machine.save(5)
    machine.mirror.finish(at_once=True)
    machine.mirror.run()
    assert place.steps() == there


def test_a_store_that_is_gone_refuses_the_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ObjectStoreError("it is gone")

    monkeypatch.setattr(ObjectStore, "names", failing)
    with pytest.raises(ObjectStoreError, match="it is gone"):
        place.machine("a").start()


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_checkpoint_is_refused_and_an_older_one_can_be_gone_on_from(place: Place, damage: str) -> None:
    machine = place.machine("a").start().train(1)
    only_first = set(place.pieces())
    machine.train(2)
    (name, *_) = sorted(set(place.pieces()) - only_first)
    (data,) = place.store.read({name: PIECE}).values()
    place.store.write({name: {"changed": bytes([data[0] ^ 1]) + data[1:]}.get(damage, data[:-1])})
    if damage == "missing":
        place.store.remove([name])
    fresh = place.machine("b")
    with pytest.raises(CheckpointError, match=r"step 2 .* is damaged.*trinity-bus checkpoints fetch STEP"):
        fresh.start()
    assert fresh.steps() == []
    whole, damaged = CheckpointsThere(place.url).listed(verified=True)
    assert not whole.problem
    assert name in damaged.problem or "is missing" in damaged.problem
    target = place.machine("c")
    there = CheckpointsThere(place.url)
    there.fetch(*there.index(), 1, target.folder)
    assert target.start().steps() == [1]
    target.train(2)
    assert place.steps() == [1, 2]
    assert not any(found.problem for found in CheckpointsThere(place.url).listed(verified=True))


def test_a_checkpoint_that_has_lost_a_piece_leaves_the_index(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    machine = place.machine("a").start().train(1)
    place.store.remove(place.pieces()[:1])
    machine.train(2)
    assert place.steps() == [2]
    assert "lack pieces" in caplog.text


SHORT = {"life": f"00000001-{'0' * 32}", "written": 0, "needs": 0, "files": {"x": {"size": 9, "pieces": []}}}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"run": "../x"},
        {"notes": {".lock": ""}},
        {"checkpoints": {"1": {"life": "../../x", "written": 0, "needs": 0, "files": {}}}},
        {"checkpoints": {"1": {"life": f"00000001-{'0' * 32}", "written": 0, "needs": 0, "files": {"../x": {}}}}},
        {"checkpoints": {"-1": {"life": f"00000001-{'0' * 32}", "written": 0, "needs": 0, "files": {}}}},
        {"checkpoints": {"1": SHORT}},
        {"more": 1},
    ],
)
def test_an_index_of_something_else_is_refused_with_what_to_remove(local: Place, change: dict[str, Any]) -> None:
    local.machine("a").start().train(1)
    (name,) = local.lives()
    (content,) = local.store.read({name: 1 << 20}).values()
    local.store.write({name: json.dumps(json.loads(content) | change).encode()})
    with pytest.raises(CheckpointError, match="remove it to go on from the index before it"):
        local.machine("b").start()


def test_what_is_no_part_of_it_at_the_url_stays(place: Place) -> None:
    machine = place.machine("a")
    place.store.write({"versions/of somebody": b"else", "pieces/ab.partial": b"half"})
    machine.start().train(1)
    assert "versions/of somebody" in place.store.names()
    assert "pieces/ab.partial" not in place.store.names()


def test_an_index_that_could_not_be_written_is_not_taken_for_written(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, original = local.machine("a").start().train(1), ObjectStore.write

    def no_index(self: ObjectStore, objects: Mapping[str, bytes]) -> None:
        if any(name.startswith("lives/") for name in objects):
            raise ObjectStoreError("it is gone")
        original(self, objects)

    monkeypatch.setattr(ObjectStore, "write", no_index)
    machine.save(2)
    for _ in range(2):
        with pytest.raises(ObjectStoreError, match="it is gone"):
            machine.send()
    monkeypatch.undo()
    machine.send()
    assert local.steps() == [1, 2]


def test_an_index_larger_than_what_is_read_is_not_written(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = local.machine("a").start().train(1)
    machine.save(2)
    monkeypatch.setattr(mirroring, "_MOST_BYTES", 100)
    with pytest.raises(CheckpointError, match=r"lower trainer\.keep_checkpoints"):
        machine.send()
    monkeypatch.undo()
    assert local.steps() == [1]


def test_while_a_rollback_is_under_way_the_newest_that_it_leaves_is_fetched(place: Place) -> None:
    machine = place.machine("a").start().train(4)
    machine.save(5)
    rollback = machine.rolled_back(4, 5)
    machine.send()
    assert place.steps() == [4, 5]
    there, fetched = CheckpointsThere(place.url), place.machine("c").folder
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5, but of \[4\]"):
        there.fetch(*there.index(), 5, fetched)
    fresh = place.machine("b").start()
    assert fresh.steps() == place.steps() == [4]
    assert checkpoint.finish_rollback(fresh.folder) == rollback


def test_where_a_rollback_leaves_none_nothing_is_changed(place: Place) -> None:
    machine = place.machine("a").start()
    machine.save(4)
    machine.save(5)
    machine.rolled_back(4, 5)
    machine.send()
    fresh = place.machine("b")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="rollback to step 4 was begun"):
            fresh.start()
        assert (fresh.steps(), place.steps()) == ([], [5])
    shutil.rmtree(machine.folder / "step-00000004")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no checkpoint that the rollback which was begun leaves"):
            machine.start()
        assert machine.steps() == place.steps() == [5]


def test_a_copy_of_the_folder_of_an_earlier_time_is_behind(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    machine = place.machine("a").start().train(1, 2)
    copy = place.machine("copy")
    shutil.copytree(machine.folder, copy.folder, dirs_exist_ok=True)
    machine.train(3, 4)
    copy.save(3, content=b"another history")
    copy.start()
    assert copy.steps() == [4]
    assert place.steps() == [3, 4]
    assert (copy.folder / "discarded-step-00000003").exists()
    assert "set aside" in caplog.text


def test_killed_before_its_index_is_there_a_folder_still_goes_on(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = local.machine("a").start().train(4, 5)
    machine.rolled_back(4, 5)

    def killed(self: ObjectStore, objects: Mapping[str, bytes]) -> None:
        if any(data != b"claimed" for data in objects.values()):
            raise ObjectStoreError("killed")
        original(self, objects)

    original = ObjectStore.write
    monkeypatch.setattr(ObjectStore, "write", killed)
    with pytest.raises(ObjectStoreError, match="killed"):
        machine.start()
    monkeypatch.undo()
    machine.start()
    assert machine.steps() == local.steps() == [4]


def test_what_leaves_the_url_is_said(local: Place, caplog: pytest.LogCaptureFixture) -> None:
    machine = local.machine("a").start().train(1, 2)
    shutil.rmtree(machine.folder / "step-00000002")
    machine.start()
    assert "steps [2] are not in" in caplog.text


def test_one_that_is_superseded_amid_the_fetch_writes_no_index(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    local.machine("a").start().train(1)
    slow, original = local.machine("b"), CheckpointsThere.fetch

    def paused(self: CheckpointsThere, *given: Any) -> Path:
        monkeypatch.undo()
        local.machine("c").start().train(2)
        return original(self, *given)

    monkeypatch.setattr(CheckpointsThere, "fetch", paused)
    with pytest.raises(SupersededError):
        slow.start()
    assert local.steps() == [1, 2]
    assert slow.start().steps() == [2]


def test_a_superseded_one_does_not_say_that_the_log_is_needed_no_more(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, original = local.machine("a").start().train(1), ObjectStore.write

    def overtaken(self: ObjectStore, objects: Mapping[str, bytes]) -> None:
        if any(name.startswith("lives/") for name in objects):
            monkeypatch.undo()
            local.machine("b").start()
        original(self, objects)

    monkeypatch.setattr(ObjectStore, "write", overtaken)
    machine.mirror._keep = 1
    machine.save(2)
    with pytest.raises(SupersededError):
        machine.send()
    assert local.steps() == [1]
    assert read_mirror(machine.folder).needs == 10


def test_a_checkpoint_that_is_damaged_here_is_not_sent_and_not_read_again(
    local: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine, looked = local.machine("a").start().train(1), list[Path]()
    original, waits = checkpoint.verify, threading.Event()

    def noting(folder: Path) -> None:
        looked.append(folder)
        original(folder)

    monkeypatch.setattr(mirroring, "verify", noting)
    monkeypatch.setattr(mirroring, "_POLL_S", 0.01)
    (machine.save(2) / "model.safetensors").write_text("weights X")
    running = threading.Thread(target=machine.mirror.run)
    running.start()
    while "step-00000002 is damaged" not in caplog.text:
        waits.wait(0.01)
    waits.wait(0.5)
    assert len(looked) == 1
    machine.save(3)
    machine.mirror.finish()
    running.join(60)
    assert local.steps() == [1, 3]


def test_what_cannot_be_read_here_is_tried_again(
    local: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine, waits, original = local.machine("a").start(), threading.Event(), open_plain
    monkeypatch.setattr(mirroring, "_POLL_S", 0.01)

    def failing(path: Path) -> Any:
        raise OSError(5, "the disk does not answer", str(path))

    monkeypatch.setattr(mirroring, "open_plain", failing)
    machine.save(1)
    running = threading.Thread(target=machine.mirror.run)
    running.start()
    while "the disk does not answer" not in caplog.text:
        waits.wait(0.01)
    monkeypatch.setattr(mirroring, "open_plain", original)
    while not local.steps():
        waits.wait(0.01)
    machine.mirror.finish()
    running.join(60)
    assert local.steps() == [1]


def test_any_name_of_a_file_comes_along(place: Place) -> None:
    machine = place.machine("a").start()
    names = {"chat template (1).jinja", "...", ".x", "..y", "Größe"}
    partial = checkpoint.begin(machine.folder, 1)
    for name in names:
        (partial / name).write_text(name)
    checkpoint.commit(machine.folder, TrainingProgress(step=1), US, keep=KEEP)
    machine.send()
    folder = place.machine("b").start().folder / "step-00000001"
    assert {path.name for path in folder.iterdir()} == names | {"progress.json"}


def test_what_was_set_aside_is_never_removed(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "a", "")
    for content in (b"first", b"second", b"third"):
        machine.save(1, content=content)
        discard(machine.folder, after=0)
    found = {path.name: (path / "model.safetensors").read_bytes() for path in machine.folder.glob("discarded-*")}
    name = "discarded-step-00000001"
    assert found == {name: b"first", f"{name}-2": b"second", f"{name}-3": b"third"}


def test_a_failure_before_a_fetched_folder_is_seen_is_mended_by_the_next_start(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.machine("a").start().train(1)
    fresh = local.machine("b")

    def failing(*_: object) -> None:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(mirroring, "note_mirror", failing)
    with pytest.raises(CheckpointError, match="the disk is full"):
        fresh.start()
    assert fresh.steps() == []
    monkeypatch.undo()
    assert fresh.start().steps() == [1]
    assert not list(fresh.folder.glob("discarded-*"))


def test_a_folder_that_cannot_be_listed_is_not_empty(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    local.machine("a").start().train(1)

    def failing(path: str) -> Any:
        if "lives" in str(path):
            raise PermissionError(13, "no", str(path))
        return original(path)

    original = os.scandir
    monkeypatch.setattr(os, "scandir", failing)
    fresh = local.machine("b")
    with pytest.raises(ObjectStoreError, match="PermissionError"):
        fresh.start()
    monkeypatch.undo()
    assert local.steps() == [1]


def test_a_store_that_does_not_list_what_was_written_is_refused(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectStore, "names", lambda *_: [])
    with pytest.raises(ObjectStoreError, match="was written, and is not listed"):
        local.machine("a").start()


# Commands


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, (result.output, result.exception)
    return result.stdout


def test_commands_understand_a_url(local: Place, tmp_path: Path) -> None:
    machine = local.machine("a").start().train(1, 2)
    found = [json.loads(line) for line in run("list", "--dir", local.url, "--json").splitlines()]
    assert [one["step"] for one in found] == [1, 2]
    assert [one["progress"]["batches_offset"] for one in found] == [10, 20]
    assert found[0]["folder"] == f"{local.url} step 1"
    run("verify", "--dir", local.url)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    run("convert", "2", str(tmp_path / "converted"), "--dir", local.url, "--model", str(model))
    assert (tmp_path / "converted" / "model.safetensors").read_bytes() == b"weights 2"
    target = tmp_path / "fetched"
    run("fetch", "--from", local.url, "--dir", str(target))
    assert checkpoint.steps(target) == [2]
    local.store.remove(local.pieces()[:1])
    assert "is missing" in run("verify", "--dir", local.url, "--json", status=1)
    for arguments, why in {
        ("fetch", "9", "--from", local.url, "--dir", str(tmp_path / "none")): "no checkpoint of step 9",
        ("fetch", "--from", local.url, "--dir", str(machine.folder)): "give an empty folder",
        ("list", "--dir", f"file://{tmp_path}/nothing"): "there are no checkpoints at",
        ("convert", local.url, str(tmp_path / "no")): "give it with --dir",
        ("fetch", "--from", "s3://key:secret@bucket", "--dir", str(tmp_path / "none")): "without credentials",
        ("list", "--dir", "s3://key:secret@bucket"): "without credentials",
    }.items():
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, CheckpointError)
        assert why in str(result.exception)
        assert "secret" not in str(result.exception)
