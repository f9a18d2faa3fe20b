"""Digests of files, at the speed of memory: a byte that a disk has changed is found, an attacker is not.

XXH3 of 128 bits (https://xxhash.com). What comes over a network, or from anybody who may lie, has SHA-256 elsewhere.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from trinity_bus.runtime.plain_files import open_plain, within

# Fits into a core's own cache: what was read is hashed before it is written back
_CHUNK_BYTES = 1 << 20
# Files that are read at once; hashing lets other threads run
_THREADS = 8


def file_digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with open_plain(path).detach() as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the digests of files in a folder, by name; OSError where one leads out of the folder."""
    ordered = sorted(names)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda name: file_digest(within(folder / name, folder)), ordered)
        return dict(zip(ordered, found, strict=True))


def text_digest(text: str) -> str:
    return xxhash.xxh3_128(text.encode()).hexdigest()


def model_digest(folder: Path) -> str:
    """Return the digest of a Hugging Face model: its configuration and its weights, hex."""
    names = [path.name for path in folder.iterdir() if path.name == "config.json" or path.suffix == ".safetensors"]
    return text_digest("".join(f"{name} {digest}\n" for name, digest in digests(folder, names).items()))
