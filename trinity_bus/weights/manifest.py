"""What a trainer says about one version before the first byte of it moves: JSON, never code.

It is the same however the version travels: before the bytes of a pull, in a file beside the checkpoints. Everything in
it is checked before memory is taken: the size of the text, the number of tensors, names, dtypes, shapes, and the sum of
bytes.

The *checksum* of a version, which is announced over the log, covers its layout and its bytes::

    checksum = SHA-256( domain, SHA-256(names, dtypes, shapes, bucket size: canonical JSON), SHA-256 of the content )

A manifest carries the digest of the content, not the checksum: whoever reads one computes the checksum from it, so a
manifest with another layout than the announced one is refused before memory is taken for it, and the bytes are compared
with the content's digest as they have come. The number of the version is no part of it: the same model has the same
checksum whenever it is staged, and what is announced is the pair of both.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from trinity_bus.weights.buckets import ITEM_SIZES, MAX_TOTAL_BYTES, Bucket, TensorMeta, plan
from trinity_bus.weights.errors import ManifestError

MAX_MANIFEST_BYTES = 16 << 20
MAX_TENSORS = 200_000
_DOMAIN = b"trinity-bus weights 1\n"


class _Fields(msgspec.Struct):
    version: Annotated[int, Meta(ge=0, le=MAX_TOTAL_BYTES)]
    content: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
    bucket_bytes: Annotated[int, Meta(ge=1, le=MAX_TOTAL_BYTES)]
    tensors: Annotated[tuple[TensorMeta, ...], Meta(min_length=1, max_length=MAX_TENSORS)]


_DECODER = msgspec.json.Decoder(_Fields)


@dataclass(frozen=True, slots=True)
class TransferManifest:
    version: int
    content: str  # of the buckets' bytes, hex; see ``hashing``
    bucket_bytes: int
    tensors: tuple[TensorMeta, ...]
    checksum: str = field(init=False)  # of layout and content, hex: what is announced

    def __post_init__(self) -> None:
        layout = msgspec.json.encode([self.bucket_bytes, self.tensors])
        digest = hashlib.sha256(_DOMAIN + hashlib.sha256(layout).digest() + bytes.fromhex(self.content))
        object.__setattr__(self, "checksum", digest.hexdigest())

    def buckets(self) -> list[Bucket]:
        return plan(self.tensors, self.bucket_bytes)

    def to_json(self) -> bytes:
        text = msgspec.json.encode(_Fields(self.version, self.content, self.bucket_bytes, self.tensors))
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"a manifest of {len(text)} bytes is over the limit of {MAX_MANIFEST_BYTES}")
        return text

    @classmethod
    def from_json(cls, text: bytes) -> "TransferManifest":
        """Parse and check; ManifestError where it is malformed or over a limit."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"a manifest of {len(text)} bytes is over the limit of {MAX_MANIFEST_BYTES}")
        try:
            fields = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ManifestError(f"the manifest cannot be read: {error}") from error
        tensors = fields.tensors
        if unknown := {meta.dtype for meta in tensors} - ITEM_SIZES.keys():
            raise ManifestError(f"the manifest has dtype {min(unknown)[:100]!r}; known: {', '.join(ITEM_SIZES)}")
        if len({meta.name for meta in tensors}) != len(tensors):
            raise ManifestError("the manifest names a tensor twice")
        if sum(meta.nbytes for meta in tensors) > MAX_TOTAL_BYTES:
            raise ManifestError(f"the tensors are over the limit of {MAX_TOTAL_BYTES} bytes")
        return cls(fields.version, fields.content, fields.bucket_bytes, tensors)
