"""The section ``synchronizer``: how, and when, versions are published and taken."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.model_version import MAX_MEMBERS
from trinity_bus.config.values import Count, ExistingFile, Seconds, Section, conflict


class SynchronizerSettings(Section):
    """How and when versions are published and loaded: use the same values for all services. See docs/versions.md."""

    sync_method: Literal["nccl", "memory", "checkpoint"] = "nccl"
    """How explorers get weights. ``nccl``: over private links (gloo on CPUs). ``memory``: over TCP, each at its own
    pace. ``checkpoint``: from ``trainer.checkpoint_dir``, under the same path for all."""
    sync_dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """Type in which weights are sent; the engines' type sends no more than they need. ``same``: the trained one."""
    sync_fan_out: bool = True
    """With ``memory``: explorers pass a version on to each other, so that it leaves each machine once, over any ports.
    The trainer sends to those that others cannot reach. Not with TLS."""
    sync_style: Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"] = "fully_async"
    """What decides when versions are published and loaded. ``fixed``: the batch's number. ``explorer_driven``: the
    explorers' side. ``trainer_driven``: the trainer, and later batches wait for it. ``fully_async``: nobody waits,
    within ``coordinator.max_staleness`` (0: on-policy) and ``coordinator.max_inflight_batches``."""
    sync_interval: Count = 1
    """Batches, and steps, from one used version to the next."""
    explorer_sync_interval: Count | None = None
    """Batches after which explorers load (``fixed``) or request a version. Unset: ``sync_interval``."""
    trainer_sync_interval: Count | None = None
    """Steps after which the trainer publishes; unused with ``explorer_driven``. Unset: ``sync_interval``."""
    sync_offset: Annotated[int, Field(ge=0)] = 0
    """Batches by which explorers are ahead of the trainer, with ``fixed`` and ``explorer_driven``; 0: on-policy."""
    sync_members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = MAX_MEMBERS
    """Maximum explorers in one announcement of a version; others follow in the next. Fewer: shorter rounds."""
    sync_timeout_s: Seconds = 30.0
    """How long an explorer may take from the announcement of a version until it serves it; then it is invited again. No
    wait within a transfer is longer. Raise it for large models and slow links."""
    tls_certfile: ExistingFile | None = None
    """The trainer's certificate chain for pulls (``memory``), PEM, for ``trainer.host``. Unset: no encryption."""
    tls_keyfile: ExistingFile | None = None
    """The private key of ``tls_certfile``, PEM, without a password."""
    tls_cafile: ExistingFile | None = None
    """Certificates that explorers trust for pulls, PEM. Required if the trainer has a certificate."""

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
