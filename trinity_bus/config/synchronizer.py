"""The section ``synchronizer``: how, and when, versions are published and taken."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.model_version import MAX_MEMBERS
from trinity_bus.config.section import Section, conflict
from trinity_bus.config.values import Count, ExistingFile, Seconds


class SynchronizerSettings(Section):
    """How, and when, versions are published and taken. The same for all services of a mesh; see docs/versions.md."""

    sync_method: Literal["nccl", "memory", "checkpoint"] = "nccl"
    """How weights come to explorers. ``nccl``: over private links; on CPUs, gloo carries them. ``memory``: over TCP,
    from the trainer's memory, each explorer at its own pace. ``checkpoint``: each reads them from
    ``trainer.checkpoint_dir``, which all must see under the same path."""
    sync_dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """As what weights travel; give what the engines hold, to send no more than they can use. ``same``: as trained."""
    sync_delta: bool = False
    """With ``memory`` and ``checkpoint``: send only what has changed to explorers that hold an earlier version, where
    that is smaller; worth it across slow links, with 16-bit weights. With ``checkpoint`` it costs the trainer one more
    copy of the weights in memory; explorers keep a copy in any case."""
    sync_fan_out: bool = True
    """With ``nccl`` and ``memory``: explorers that take a version pass it on to each other, so that it leaves each
    machine once. Each listens on a port that the operating system chooses, on the address that it reaches the trainer
    from; where others cannot reach that, the trainer sends to them itself. Not with TLS."""
    sync_style: Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"] = "fully_async"
    """Who says when. ``fixed``: the number of the batch. ``explorer_driven``: the explorers' side asks the trainer.
    ``trainer_driven``: the trainer publishes, and later batches wait for it. ``fully_async``: nobody waits, within
    ``coordinator.max_staleness`` (0 is strictly on-policy) and ``coordinator.max_inflight_batches``."""
    sync_interval: Count = 1
    """Batches, and steps, from one version in use to the next."""
    explorer_sync_interval: Count | None = None
    """Batches after which the explorers' side takes (``fixed``) or asks for (``explorer_driven``) another version; the
    other styles do not use it. Unset: ``sync_interval``."""
    trainer_sync_interval: Count | None = None
    """Steps after which the trainer publishes; ``explorer_driven`` does not use it. Unset: ``sync_interval``."""
    sync_offset: Annotated[int, Field(ge=0)] = 0
    """Batches that the explorers are ahead of the trainer, with ``fixed`` and ``explorer_driven``: 0 is on-policy, 1 is
    one step off."""
    sync_members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = MAX_MEMBERS
    """Explorers that one announcement of a version names at most; the others are named in the next one. Fewer make
    several shorter rounds of one long one, and the trainer serves fewer at a time."""
    sync_timeout_s: Seconds = 30.0
    """How long an explorer may take from the announcement of a version until it says that it serves it; then it is
    named anew. No wait within a transfer, at either end, is longer. Raise it for large models and slow links."""
    tls_certfile: ExistingFile | None = None
    """The trainer's certificate for pulls (``memory``), with those that lead to its authority, PEM. It holds for
    ``trainer.host``. Unset: pulls are not encrypted."""
    tls_keyfile: ExistingFile | None = None
    """The private key of ``tls_certfile``, PEM, without a password."""
    tls_cafile: ExistingFile | None = None
    """Certificates that explorers trust for pulls, PEM. Set where the trainer has a certificate."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            lacking, there = ("keyfile", "certfile") if self.tls_keyfile is None else ("certfile", "keyfile")
            raise conflict(f"synchronizer.tls_{lacking} is not set: it goes together with synchronizer.tls_{there}")
        given = [name for name in ("tls_certfile", "tls_cafile") if getattr(self, name) is not None]
        if given and self.sync_method != "memory":
            raise conflict(
                f"synchronizer.{given[0]} is set, and synchronizer.sync_method is {self.sync_method}, which cannot be "
                "encrypted: only memory can"
            )
        return self
