"""What a trainer says about one version before the first byte of it moves: JSON, never code.

It is the same however the version travels: in the rendezvous store for links, before the bytes for pulls, in a file
beside the checkpoints. Everything in it is checked before memory is taken: the size of the text, the number of tensors,
names, dtypes, shapes, and the sum of bytes.

The *checksum* of a version, which is announced over the log, covers its layout and its bytes::

    checksum = SHA-256( domain, SHA-256(names, dtypes, shapes, bucket size: canonical JSON), SHA-256 of the content )

A manifest carries the digest of the content, not the checksum: whoever reads one computes the checksum from it, so a
manifest with another layout than the announced one is refused before memory is taken for it, and the bytes are compared
with the content's digest as they have come. The number of the version is no part of it: the same model has the same
checksum whenever it is staged, and what is announced is the pair of both.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from trinity_bus.weights.buckets import ITEM_SIZES, Bucket, TensorMeta, plan
from trinity_bus.weights.errors import ManifestError

MAX_MANIFEST_BYTES = 16 << 20
MAX_TENSORS = 200_000
MAX_NAME_LENGTH = 512
MAX_DIMENSIONS = 8
MAX_TOTAL_BYTES = 4 << 40
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DOMAIN = b"trinity-bus weights 1\n"


@dataclass(frozen=True, slots=True)
class TransferManifest:
    """One version as it is about to travel."""

    version: int
    content: str
    """Digest of the buckets' bytes, hex; see ``hashing``."""
    bucket_bytes: int
    tensors: tuple[TensorMeta, ...]
    checksum: str = field(init=False)
    """Of layout and content, hex: what is announced."""

    def __post_init__(self) -> None:
        layout = json.dumps([self.bucket_bytes, self._rows()], separators=(",", ":")).encode()
        digest = hashlib.sha256(_DOMAIN + hashlib.sha256(layout).digest() + bytes.fromhex(self.content))
        object.__setattr__(self, "checksum", digest.hexdigest())

    def buckets(self) -> list[Bucket]:
        """Return the layout that both sides derive."""
        return plan(self.tensors, self.bucket_bytes)

    def to_json(self) -> bytes:
        """As UTF-8 JSON.

        Raises:
            ManifestError: It is over ``MAX_MANIFEST_BYTES``.
        """
        fields = {
            "version": self.version,
            "content": self.content,
            "bucket_bytes": self.bucket_bytes,
            "tensors": self._rows(),
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"a manifest of {len(text)} bytes is over the limit of {MAX_MANIFEST_BYTES}")
        return text

    @classmethod
    def from_json(cls, text: bytes) -> "TransferManifest":
        """Parse and check.

        Raises:
            ManifestError: It is malformed or over a limit; the message says which.
        """
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"a manifest of {len(text)} bytes is over the limit of {MAX_MANIFEST_BYTES}")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"the manifest is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ManifestError("the manifest is not a JSON object")
        rows = fields.get("tensors")
        if not isinstance(rows, list) or not 0 < len(rows) <= MAX_TENSORS:
            raise ManifestError(f"the manifest needs a list of 1 to {MAX_TENSORS} tensors")
        tensors = tuple(_tensor(row) for row in rows)
        if len({meta.name for meta in tensors}) != len(tensors):
            raise ManifestError("the manifest names a tensor twice")
        if sum(meta.nbytes for meta in tensors) > MAX_TOTAL_BYTES:
            raise ManifestError(f"the tensors are over the limit of {MAX_TOTAL_BYTES} bytes")
        digest = fields.get("content")
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            raise ManifestError("the manifest's digest of the content is not 64 hex digits")
        return cls(
            version=_integer(fields, "version", least=0),
            content=digest,
            bucket_bytes=_integer(fields, "bucket_bytes", least=1),
            tensors=tensors,
        )

    def _rows(self) -> list[list[Any]]:
        return [[meta.name, meta.dtype, list(meta.shape)] for meta in self.tensors]


def _integer(fields: dict[str, Any], name: str, *, least: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_TOTAL_BYTES:
        raise ManifestError(f"the manifest's {name} is {value!r}, not an integer of at least {least}")
    return value


def _tensor(row: object) -> TensorMeta:
    match row:
        case [str(name), str(dtype), list(shape)]:
            pass
        case _:
            raise ManifestError("a tensor in the manifest is not [name, dtype, shape]")
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ManifestError(f"a tensor's name has {len(name)} characters, the limits are 1 and {MAX_NAME_LENGTH}")
    if dtype not in ITEM_SIZES:
        raise ManifestError(f"tensor {name!r} has dtype {dtype!r}; known: {', '.join(ITEM_SIZES)}")
    if len(shape) > MAX_DIMENSIONS or not all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_TOTAL_BYTES for size in shape
    ):
        raise ManifestError(f"tensor {name!r} has shape {str(shape)[:100]}")
    return TensorMeta(name, dtype, tuple(shape))
