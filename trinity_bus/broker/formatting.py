"""Formatting: what Kafka wants to find in a folder before it starts there for the first time.

Kafka's own tool writes it, in a Java process that takes a core for over a second. What it writes is the same for all
nodes of these settings but for two ids, so it runs once for these jars, and is kept beside them; each new folder gets a
copy with ids of its own.
"""

import base64
import errno
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Final

from trinity_bus.broker import java
from trinity_bus.broker.jars import unwritable
from trinity_bus.broker.layout import Folder, write_configuration
from trinity_bus.errors import BrokerError
from trinity_bus.runtime.plain_files import write_plain
from trinity_bus.runtime.process import Child, tail

_TIMEOUT_S: Final = 60
_IDS: Final = ("cluster.id", "directory.id")


def format_folder(folder: Folder, classpath: list[Path], heap_mib: int) -> None:
    """Give the folder what Kafka wants to find: an id and the versions of its features.

    BrokerError: Kafka's own tool refuses. DataFolderUnusableError: the cache cannot be written.
    """
    kept = classpath[0].parent / "formatted"
    if not _is_whole(kept):
        _remove(kept)
        _make(kept, classpath, heap_mib)
    for file in kept.iterdir():
        if file.name != folder.meta.name:
            shutil.copyfile(file, folder.kafka / file.name)
    lines = (kept / folder.meta.name).read_text(encoding="utf-8").splitlines()
    own = [f"{name}={_new_id()}" if (name := line.partition("=")[0]) in _IDS else line for line in lines]
    # The last one, and at once as a whole: it says that the folder is formatted.
    write_plain(folder.meta, "\n".join(own) + "\n")


def _is_whole(kept: Path) -> bool:
    # Whoever cleans up caches, or the power, may have taken some of what was kept.
    meta = kept / Folder(kept).meta.name
    lines = meta.read_text(encoding="utf-8", errors="replace").splitlines() if meta.is_file() else []
    return {line.partition("=")[0] for line in lines}.issuperset(_IDS)


def _remove(kept: Path) -> None:
    # At once as a whole.
    try:
        with tempfile.TemporaryDirectory(prefix=".damaged-", dir=kept.parent) as away:
            kept.rename(Path(away) / kept.name)
    except FileNotFoundError:
        # There is none, or another process was faster.
        return
    except OSError as error:
        raise unwritable(kept.parent, error) from error


def _make(kept: Path, classpath: list[Path], heap_mib: int) -> None:
    # Have Kafka's tool format a folder that is never used, and keep what it has written.
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".format-", dir=kept.parent)
    except OSError as error:
        raise unwritable(kept.parent, error) from error
    with scratch as path:
        folder = Folder(Path(path))
        for part in (folder.kafka, folder.logs, folder.tmp):
            part.mkdir()
        # Its ports are in nothing that the tool writes.
        write_configuration(folder, port=1, controller_port=2, fsync=False)
        arguments = ["format", f"--cluster-id={_new_id()}", "--config", folder.properties.name]
        command = java.command("kafka.tools.StorageTool", arguments, classpath, heap_mib=heap_mib)
        with Child(command, cwd=folder.root, env=java.environment(), output=folder.jvm_log) as tool:
            code = tool.wait(_TIMEOUT_S)
        if code != 0:
            said = " ".join(tail(folder.jvm_log).split())[-400:]
            raise BrokerError(f"Kafka's tool cannot format a folder (status {code}): {said}")
        try:
            folder.kafka.rename(kept)
        except OSError as error:
            # Another process was faster; its copy is as good.
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise


def _new_id() -> str:
    # As Kafka makes them: 16 random bytes, and no leading dash, which its tools take for an option.
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made
