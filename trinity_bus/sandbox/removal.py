"""Removing what strangers' programs have left: however deep it is nested, and whatever they have forbidden.

``shutil.rmtree`` calls itself for each folder within a folder, so a thousand of them are a ``RecursionError``, which is
no ``OSError`` and not among what it ignores; and a folder that its owner may not write to keeps what is in it. Here
folders are taken out of each other, so that none lies deeper than another::

    root/a/b/c/...  -->  root/a, root/1 (was b: c/...)  -->  root/1, root/2 (was c: ...)  -->  ...  -->  gone

Failures: what another user owns stays, and all folders around it. One that is killed amid it is gone on with by the
next one.
"""

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final

_OWN: Final = 0o700


def remove_tree(root: Path) -> None:
    """Remove a folder that nobody else uses, as far as this user may. No link is followed; nothing is raised."""
    folders = [root]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):
            _allow(folder)
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        if not entry.is_dir(follow_symlinks=False):
                            Path(entry.path).unlink()
                        elif folder == root:
                            folders.append(root / entry.name)
                        else:
                            # To be taken out of another folder, it must be writable itself.
                            _allow(Path(entry.path))
                            folders.append(Path(entry.path).rename(root / uuid.uuid4().hex))
            if folder != root:
                folder.rmdir()
    with contextlib.suppress(OSError):
        root.rmdir()


def _allow(folder: Path) -> None:
    if folder.stat(follow_symlinks=False).st_mode & _OWN != _OWN:
        folder.chmod(_OWN)
