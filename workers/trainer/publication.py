"""Offering versions to the explorers that an announcement names, and checking what they say they got.

::

    ModelVersion for this incarnation --------> its members are let in, and take it themselves
    WeightsSynced of a version served here ----> its checksum is compared with the one that was sent

An explorer that reports other bytes than were sent does not serve the version. The coordinator, which compares as well,
counts it as failed and names it in the next round; here it is an error in the log, a counter, and a metric of the next
step, because a wire or a memory that changes bytes wants an operator.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from opentelemetry import metrics

from schemas import ModelVersion, WeightsSynced
from trinity_bus.bus import Reader
from trinity_bus.config import SynchronizerSettings, TrainerSettings
from workers.preconditions import pull_certificate

if TYPE_CHECKING:
    import torch

    from trinity_bus.weights.transport import Method

log = logging.getLogger(__name__)

_MISMATCHES = metrics.get_meter("workers.trainer").create_counter(
    "rl.weight_sync.mismatches", unit="{version}", description="Versions that an explorer received with other bytes."
)
_POLL_S = 1.0
# Versions whose checksums are kept: answers to older ones say nothing about what is served now.
_REMEMBERED = 16


class Server(Protocol):
    def admit(self, announced: ModelVersion, traceparent: str | None = None) -> None:
        """Members of an announcement may take what it announces, if they prove that they have read it."""
        ...

    def keep(self, version: int) -> None:
        """Explorers are told to serve this version: it can be had until another is named, whatever is newer."""
        ...


class Publisher(Server, Protocol):
    """One way on which versions leave the trainer."""

    @property
    def method(self) -> "Method": ...

    @property
    def address(self) -> tuple[str, int]: ...

    def stage(
        self, version: int, named_tensors: "Iterable[tuple[str, torch.Tensor]]", folder: Path | None = None
    ) -> str:
        """Make a version one that can be had from now on; return its checksum.

        ``folder`` has the same tensors in its files once it is announced, so that no copy need be kept.
        """
        ...

    def durable(self, version: int) -> None:
        """Note that a staged version's files are there, before it is announced; WeightTransferError, OSError if not."""
        ...

    def close(self) -> None: ...


def make_publisher(settings: TrainerSettings, sync: SynchronizerSettings, directory: Path, device: str) -> Publisher:
    """ConfigError where the certificate or key of pulls cannot be used, LinkError where nothing can listen there."""
    from trinity_bus.weights.checkpoint.publisher import CheckpointPublisher
    from trinity_bus.weights.pull.server import WeightServer

    bucket_bytes, timeout_s = settings.bucket_mib << 20, sync.sync_timeout_s
    dtype = None if sync.sync_dtype == "same" else sync.sync_dtype
    if sync.sync_method == "checkpoint":
        return CheckpointPublisher(
            directory,
            host=settings.host,
            bucket_bytes=bucket_bytes,
            keep=settings.keep_checkpoints,
            dtype=dtype,
            deltas=sync.sync_delta,
        )
    is_memory = sync.sync_method == "memory"
    return WeightServer(
        settings.host,
        ports=settings.weights_ports,
        tls=pull_certificate(sync) if is_memory else None,
        bucket_bytes=bucket_bytes,
        timeout_s=timeout_s,
        dtype=dtype,
        deltas=sync.sync_delta and is_memory,
        fan_out=sync.sync_fan_out,
        method="memory" if is_memory else "gloo" if device == "cpu" else "nccl",
    )


class Publication:
    def __init__(self, server: Server, *, model: str, incarnation: str) -> None:
        self._server = server
        self._model = model
        self._incarnation = incarnation
        self._checksums: dict[int, str] = {}
        # From the start, or to a collector the first one would be no rise.
        _MISMATCHES.add(0)
        # Answers with other bytes than were sent, since the start
        self.mismatches = 0

    def published(self, version: int, checksum: str) -> None:
        self._checksums[version] = checksum
        for old in list(self._checksums)[:-_REMEMBERED]:
            del self._checksums[old]

    def checksum(self, version: int) -> str:
        return self._checksums[version]

    async def serve(self, announcements: Reader) -> None:
        """Let the members of what is announced in, as long as it runs."""
        while True:
            ours = [
                (received.record, received.traceparent)
                for received in await announcements.batch(_POLL_S)
                if isinstance(received.record, ModelVersion) and self._is_ours(received.record)
            ]
            for version, traceparent in ours:
                self._server.admit(version, traceparent)
            if ours:
                self._server.keep(ours[-1][0].version)

    def compare(self, synced: WeightsSynced) -> bool:
        """Whether an answer is in order; a checksum that is not is reported.

        An answer that tells of a failure, or of a version that this incarnation has not published, is in order.
        """
        sent = self._checksums.get(synced.version)
        if synced.model != self._model or not synced.ok or sent is None or synced.checksum == sent:
            return True
        self.mismatches += 1
        _MISMATCHES.add(1)
        log.error(
            "explorer %s received version %d (epoch %d) with checksum %s, it was sent with %s: it must take it again; "
            "look at its memory and at the network between",
            synced.explorer,
            synced.version,
            synced.epoch,
            synced.checksum or "(none)",
            sent,
        )
        return False

    def _is_ours(self, version: ModelVersion) -> bool:
        return version.model == self._model and version.trainer_incarnation == self._incarnation
