"""Versions on an object store that trainer and members reach, where neither need reach the other.

::

    synchronizer.object_url/
        <run>/                           of one training: its name is in the checkpoint folder; nobody else writes here
            pieces/<SHA-256>             4 MiB of a bucket, or what is left of it
            versions/00000011-<checksum> a transfer manifest, a line feed, and the SHA-256 of every piece in order

    trainer: stage: pack and hash --durable: write the pieces that are not there, then the version--> announced
    member:  CLOSED --open: read the version, prove it--> OPEN --fill: read pieces, prove each--> (done) --> CLOSED
                        |                                  |
                        +--gone, elsewhere, other content--+--gone, other bytes: nothing is loaded

The digests of the pieces are what the content's digest is made of (``layout``), so they are proven by the checksum in
the announcement before a piece is read, and each piece by its digest. Whoever may write to the store can withhold
bytes, and has none believed. A member reads below its own ``synchronizer.object_url`` alone, whatever is announced.

A piece's name is what it holds, so one that stays as it was is written once, and a member that has it in its buffers
does not read it. No version needs another one: each names all of its pieces. The newest ``keep`` versions stay, and the
one that is served; a piece goes when none of them names it.

Failures: a trainer that is killed amid writing leaves pieces that no version names. The next life removes what it did
not write, and relies on none of it: it writes each piece of its first version again, which mends one that was damaged.
One that was removed is written again with the next version that has it. A store that is gone for longer than the time
limit, and for as long as its library tries by itself, ends the trainer, which goes on from its checkpoint. A member
that cannot read keeps what it serves, and has the pieces that came when it is invited again. Two lives that write under
one name can remove pieces that the other one relies on; the folder's lock keeps them apart, unless it was copied.
"""

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemas.model_version import ModelVersion
from trinity_bus.runtime.object_store import AT_ONCE, PIECE, ObjectStore, PatientStore
from trinity_bus.weights.errors import LinkError, ManifestError, TensorFileError, WeightTransferError
from trinity_bus.weights.layout import MAX_MANIFEST_BYTES, MAX_TENSORS, MAX_TOTAL_BYTES, Span, TransferManifest, pieces
from trinity_bus.weights.staging import DEFAULT_BUCKET_BYTES, Staged, Staging
from trinity_bus.weights.transport import Method, Source

if TYPE_CHECKING:
    import torch

_VERSIONS: Final = "versions/"
_DIGEST_BYTES: Final = 32
# Of a version's object: every bucket has at most one piece that is not full
_MOST_BYTES: Final = MAX_MANIFEST_BYTES + 1 + _DIGEST_BYTES * (MAX_TOTAL_BYTES // PIECE + MAX_TENSORS)
_RUN: Final = "/[0-9a-f]{32}"  # below the address that is configured
_CHECKSUM: Final = re.compile("[0-9a-f]{64}")


def _version_name(version: int, checksum: str) -> str:
    return f"{_VERSIONS}{version:08d}-{checksum}"


def _piece_name(digest: bytes) -> str:
    return f"pieces/{digest.hex()}"


def _digests(joined: bytes) -> list[bytes]:
    return [joined[start : start + _DIGEST_BYTES] for start in range(0, len(joined), _DIGEST_BYTES)]


class ObjectPublisher:
    """Publishes versions at ``url``. ``stage`` and ``durable`` are each called by one thread at a time."""

    method: Method = "object"

    def __init__(
        self,
        url: str,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        keep: int = 3,
        timeout_s: float = 30.0,
        dtype: str | None = None,
    ) -> None:
        self.staging = Staging(bucket_bytes=bucket_bytes, retain=1, dtype=dtype)
        self._store = PatientStore(url, timeout_s)
        self.address = self._store.url, 0
        self._keep = keep
        self._kept = -1
        self._staged: dict[int, tuple[Staged, contextlib.ExitStack]] = {}  # and not written yet
        self._writing = threading.Lock()
        # All objects of each version, in the order in which they were published
        self._versions: dict[tuple[int, str], frozenset[str]] = {}

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Hash a version, and hold it until it is ``durable``. Return its checksum. See ``Staging.stage``."""
        checksum = self.staging.stage(version, named_tensors, folder).checksum
        held = contextlib.ExitStack()
        staged = held.enter_context(self.staging.lease(version, checksum))
        if (former := self._staged.pop(version, None)) is not None:
            former[1].close()
        self._staged[version] = staged, held
        return checksum

    def durable(self, version: int) -> None:
        """Write the version that was staged, and remove what nobody needs any more.

        ObjectStoreError: the store was gone for longer than the time limit. TensorFileError, OSError: as ``Staging``.
        """
        with self._writing:
            if (found := self._staged.pop(version, None)) is None:
                # Written meanwhile, for somebody else who has staged it.
                return
            staged, held = found
            with held:
                there = set(self._store.tried(self._store.names))
                self._store.written &= there
                self._write(staged)
                self._remove_old(there)

    def keep(self, version: int) -> None:
        """Keep a version, whatever newer ones are published, until another is named."""
        self._kept = version

    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        """Nothing: who may read is the store's affair."""
        del announced, traceparent

    def close(self) -> None:
        self._store.close()

    def _write(self, staged: Staged) -> None:
        manifest, spans = staged.manifest, pieces(map(len, staged.buffers))
        names = [_piece_name(digest) for digest in _digests(staged.piece_digests)]
        self._store.send((name, partial(_piece, staged, name, span)) for name, span in zip(names, spans, strict=True))
        name = _version_name(manifest.version, manifest.checksum)
        self._store.put({name: manifest.to_json() + b"\n" + staged.piece_digests})
        key = manifest.version, manifest.checksum
        self._versions.pop(key, None)
        self._versions[key] = frozenset([name, *names])

    def _remove_old(self, there: set[str]) -> None:
        newest = list(self._versions)[-self._keep :]
        self._versions = {key: names for key, names in self._versions.items() if key in newest or key[0] == self._kept}
        self._store.keep_only(frozenset[str]().union(*self._versions.values()), there, _VERSIONS)


def _piece(staged: Staged, name: str, span: Span) -> bytes:
    bucket, start, end = span
    piece = bytes(memoryview(staged.buffers[bucket][start:end].numpy()))
    if _piece_name(hashlib.sha256(piece).digest()) != name:
        # Under this name it would be wrong for all versions.
        raise TensorFileError(f"the files of version {staged.manifest.version} have changed since it was hashed")
    return piece


class ObjectTransport:
    """A ``WeightTransport`` from an object store."""

    proven, still_uses = 0, False

    def __init__(self) -> None:
        self._store: ObjectStore | None = None
        self._cancelled = threading.Event()
        self._pieces: list[tuple[Span, bytes]] = []
        # What was put into the buffers, and is most likely there: the digest of the piece at each place
        self._there: dict[Span, bytes] = {}

    def open(self, source: Source, cancelled: threading.Event, has: int = 0) -> TransferManifest:
        del has  # it knows by itself what it has
        self._cancelled = cancelled
        root = source.root.rstrip("/")
        # Both become parts of names there.
        is_named = re.fullmatch(re.escape(root) + _RUN, source.host) and _CHECKSUM.fullmatch(source.checksum)
        if not root or not is_named:
            raise WeightTransferError(
                f"version {source.version} is announced at {source.host[:200]!r}, and this member takes versions from "
                f"its synchronizer.object_url alone, {root or 'which is not set'}"
            )
        if self._store is None or self._store.url != source.host:
            self._store = ObjectStore(source.host)
        name = _version_name(source.version, source.checksum)
        text, _, joined = self._store.read({name: _MOST_BYTES})[name].partition(b"\n")
        manifest = TransferManifest.from_json(text)
        source.check(manifest)
        spans = pieces(bucket.nbytes for bucket in manifest.buckets())
        if len(joined) != len(spans) * _DIGEST_BYTES or hashlib.sha256(joined).hexdigest() != manifest.content:
            raise ManifestError(f"the pieces of version {source.version} are not those that were announced")
        self._pieces = list(zip(spans, _digests(joined), strict=True))
        return manifest

    def fill(self, buffers: "list[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        views = [memoryview(buffer.numpy()) for buffer in buffers]
        for window in batched(self._pieces, AT_ONCE):
            if self._cancelled.is_set():
                raise LinkError("the transfer was cancelled")
            self._fill(views, window)
            (last, _, end), _ = window[-1]
            # Also where no further one is whole: something has moved.
            arrived(last if end == len(views[last]) else last - 1)
        self._there = dict(self._pieces)

    def _fill(self, views: list[memoryview], window: Sequence[tuple[Span, bytes]]) -> None:
        assert self._store is not None  # noqa: S101 - ``open`` made it
        lacking = [(span, digest) for span, digest in window if not self._has(views, span, digest)]
        found = self._store.read({_piece_name(digest): end - start for (_, start, end), digest in lacking})
        for span, digest in lacking:
            bucket, start, end = span
            piece = found[_piece_name(digest)]
            if len(piece) != end - start or hashlib.sha256(piece).digest() != digest:
                raise WeightTransferError(
                    f"{self._store.url}/{_piece_name(digest)} has other bytes than it should have: restart the "
                    "trainer, which writes it anew"
                )
            views[bucket][start:end] = piece
            self._there[span] = digest

    def _has(self, views: list[memoryview], span: Span, digest: bytes) -> bool:
        bucket, start, end = span
        return self._there.get(span) == digest == hashlib.sha256(views[bucket][start:end]).digest()

    def close(self) -> None:
        """Nothing is open."""

    end = close
