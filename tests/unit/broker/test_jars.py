"""The jars: what the lock file pins, and that nothing else is ever run. The Maven repository is one of our own."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.fakes.http import Answering, served
from trinity_bus.broker.jars import LOCK_FILE, install, jar_folder, read_lock
from trinity_bus.errors import BrokerError, DataFolderUnusableError

CONTENT = b"PK a jar" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PATH = "org/example/thing/1.0/thing-1.0.jar"

quiet = Console(quiet=True)


@dataclass
class Repository:
    """Answers with what ``replies`` says, the last one again and again; None is "not found"."""

    replies: list[bytes | None] = field(default_factory=lambda: [CONTENT])
    requests: int = 0


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """The only remote repository that jgo knows of."""
    here = Repository()

    class Handler(Answering):
        def reply(self) -> None:
            reply = None
            if self.path == f"/{PATH}":
                here.requests += 1
                reply = here.replies.pop(0) if len(here.replies) > 1 else here.replies[0]
            self.answer(404 if reply is None else 200, reply or b"")

    with served(Handler) as url:
        settings = tmp_path / "jgo.conf"
        settings.write_text(f"[repositories]\nlocal = {url}\n")
        monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
        monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield here


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.lock"
    path.write_text(f"# a comment\norg.example:thing:1.0 {SHA256}\n")
    return path


def test_the_lock_file_pins_kafka() -> None:
    jars = read_lock()
    assert len(jars) == len({jar.filename for jar in jars}) > 30
    versions = {jar.artifact: jar.version for jar in jars}
    assert versions["kafka_2.13"] == versions["kafka-clients"] == versions["kafka-server"] == "4.1.1"
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)
    assert "://" not in LOCK_FILE.read_text()


@pytest.mark.parametrize("line", ["org.example:thing 00", "org.example:thing:1.0", "a:b:c:d " + "0" * 64])
def test_a_damaged_lock_file_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.lock"
    path.write_text(f"# header\n{line}\n")
    with pytest.raises(BrokerError, match=r"bad\.lock:2 is not"):
        read_lock(path)


def test_downloads_once_and_heals_what_is_cut_off(repository: Repository, tmp_path: Path, lock: Path) -> None:
    for _ in range(2):
        (path,) = install(tmp_path / "cache", console=quiet, lock=lock)
        assert path.read_bytes() == CONTENT
    assert repository.requests == 1
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "thing-1.0.jar"]
    path.write_bytes(CONTENT[:100])
    archive = path.with_name("java-0.aot")
    archive.touch()
    install(tmp_path / "cache", console=quiet, lock=lock)
    assert path.read_bytes() == CONTENT
    # It was made from the files as they were.
    assert not archive.exists()
    assert repository.requests == 2


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        pytest.param([CONTENT[:100], None, CONTENT], None, id="asked for again"),
        pytest.param(
            [b"something else"], r"cannot get org\.example:thing:1\.0: its SHA-256 is .*, the lock file", id="wrong"
        ),
        pytest.param([None], "Check the network", id="not found"),
    ],
)
def test_what_is_not_right_is_never_installed(
    repository: Repository, tmp_path: Path, lock: Path, replies: list[bytes | None], told: str | None
) -> None:
    repository.replies = replies
    if told is None:
        (path,) = install(tmp_path / "cache", console=quiet, lock=lock)
        assert path.read_bytes() == CONTENT
        return
    with pytest.raises(BrokerError, match=told) as caught:
        install(tmp_path / "cache", console=quiet, lock=lock)
    assert "\n" not in str(caught.value)
    assert [p.name for p in jar_folder(tmp_path / "cache", lock).iterdir()] == [".lock"]


@pytest.mark.usefixtures("repository")
def test_no_repository_is_one_line(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "jgo.conf").write_text("[repositories]\nnowhere = http://127.0.0.1:1\n")
    with pytest.raises(BrokerError, match="Check the network"):
        install(tmp_path / "cache", console=quiet, lock=lock)


def test_a_right_copy_on_this_machine_is_taken(repository: Repository, tmp_path: Path, lock: Path) -> None:
    place = tmp_path / "m2" / PATH
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    (path,) = install(tmp_path / "cache", console=quiet, lock=lock)
    assert path.read_bytes() == CONTENT
    assert repository.requests == 0
    # A wrong one is not.
    path.unlink()
    place.write_bytes(CONTENT[:-1])
    install(tmp_path / "cache", console=quiet, lock=lock)
    assert path.read_bytes() == CONTENT
    assert repository.requests == 1


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path, lock: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderUnusableError, match="TRINITY_BUS_BROKER__CACHE_DIR"):
        install(tmp_path / "file" / "cache", console=quiet, lock=lock)
