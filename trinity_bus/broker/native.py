"""Where Kafka unpacks its native libraries, zstd and snappy: a folder from which programs may be run.

The data folder may lie on a file system that is mounted ``noexec``. Kafka then starts, and fails at the first record
that is packed with one of the two, so another folder is looked for before it starts.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from trinity_bus.broker.folders import cache_dir
from trinity_bus.broker.layout import Folder
from trinity_bus.config import BrokerSettings

log = logging.getLogger(__name__)


def runs_programs(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


def native_folder(settings: BrokerSettings, folder: Folder, runs: Callable[[Path], bool] = runs_programs) -> Path:
    """Return the folder for native libraries, made: of the data folder if that will do, else one in the cache."""
    other = cache_dir(settings) / "native" / hashlib.sha256(bytes(folder.root)).hexdigest()[:16]
    for candidate in (folder.tmp, other):
        candidate.mkdir(parents=True, exist_ok=True)
        if runs(candidate):
            return candidate
    log.warning(
        "no program may be run from %s or %s: this broker will refuse records that are packed with zstd or snappy; set "
        "TRINITY_BUS_BROKER__CACHE_DIR to a folder on a disk that is not mounted noexec",
        folder.tmp,
        other,
    )
    return folder.tmp
