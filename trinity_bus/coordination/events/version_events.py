"""What the trainer and the explorers say of versions, and what becomes of it.

===============================  =======================================================================================
told that                        it
===============================  =======================================================================================
a trainer lives                  asks for the version that it has published and nobody heard of
a step is trained                announces its version when the sync style lets it; reports one that is not published
                                 though batches will need it
the trainer has begun anew       asks it for what was chosen; what its former incarnation says counts no more
an older version can be had      serves it, if it was asked for
it cannot be had                 says so to who asked
an explorer took a version       counts it as served; where the bytes are others, the explorer has to take them again
===============================  =======================================================================================
"""

from collections.abc import Callable
from typing import assert_never

from schemas import PublishedVersion, StepTrained, TrainerHeartbeat, VersionRefused, VersionWanted, WeightsSynced
from schemas.topics import VERSION_HISTORY
from trinity_bus.coordination.effects import Fact, Write
from trinity_bus.coordination.events.version_choice import VersionChoice
from trinity_bus.coordination.limits import bounded
from trinity_bus.coordination.machine_state import Handler, MachineState


class VersionEvents(Handler):
    def __init__(self, state: MachineState, choice: VersionChoice, requeue_running: Callable[[str], None]) -> None:
        super().__init__(state)
        self._model = state.settings.model
        self._choice = choice
        self._requeue_running = requeue_running

    def handle(
        self, event: TrainerHeartbeat | StepTrained | WeightsSynced | VersionRefused, traceparent: str | None
    ) -> None:
        match event:
            case TrainerHeartbeat():
                self._trainer_beat(event)
            case StepTrained():
                self._trained(event, traceparent)
            case WeightsSynced():
                self._synced(event)
            case VersionRefused():
                if not self._sync.is_zombie(event.incarnation):
                    self._choice.refused(event)
            case _:
                assert_never(event)

    def _trainer_beat(self, beat: TrainerHeartbeat) -> None:
        release = self._sync.state.release
        if beat.model != self._model:
            return
        if self._sync.is_zombie(beat.incarnation):
            self._dismiss_trainer(beat.trainer, beat.incarnation)
            return
        if release is not None and release.incarnation == beat.incarnation:
            self._sync.trainer_seen = self._clock.now
        if self._sync.has_not_heard_of(beat.incarnation, beat.version):
            # Its first word came before this heartbeat, if it came at all.
            detail = f"version {beat.version} was published, and nobody heard of it"
            self._out.observe(Fact.LOST_VERSION, beat.trainer, detail)
            self._out.request_version(VersionWanted(model=beat.model, at_least=beat.version))

    def _trained(self, step: StepTrained, traceparent: str | None) -> None:
        if step.model != self._model:
            self._out.observe(Fact.OTHER_MODEL, step.trainer, f"{step.model!r}, here it is {self._model!r}")
        elif self._sync.is_zombie(step.incarnation):
            self._dismiss_trainer(step.trainer, step.incarnation)
        elif step.again:
            self._choice.offered(step, traceparent)
        elif not step.publish:
            self._warn_if_kept(step)
            self._out.request_version(self._sync.reminder())
        else:
            self._published(step, traceparent)

    def _published(self, step: StepTrained, traceparent: str | None) -> None:
        before, former = self._sync.newest, self._sync.state.release
        told_last = self._sync.state.held or former
        if not self._sync.publish(step, traceparent):
            detail = f"version {step.version}, not newer than {before}"
            self._out.observe(Fact.LATE_VERSION, step.trainer, detail)
            return
        # An incarnation begins by publishing what the former one has made; what is known of that was written then.
        if step.batch_id is not None or step.version > before:
            # One record for each version of each model.
            self._out.add(Write(VERSION_HISTORY, f"{step.model}/{step.version}", history_entry(step)))
        self._out.request_version(self._sync.reminder())
        if self._choice.rolled_back(step, told_last):
            self._requeue_running(f"the trainer has rolled back to version {step.version}")
        if former is not None and former.incarnation != step.incarnation:
            self._choice.trainer_began()

    def _synced(self, event: WeightsSynced) -> None:
        explorer = self._fleet.find(event.explorer, event.incarnation)
        release = self._sync.state.release
        if explorer is None or explorer.fixed or release is None or event.model != release.model:
            self._out.observe(
                Fact.LATE_SYNC, event.explorer, f"version {event.version}, incarnation {event.incarnation}"
            )
            return
        wrong_bytes = event.ok and event.version == release.version and event.checksum not in ("", release.checksum)
        ok = event.ok and not wrong_bytes
        counts = self._sync.answered((event.explorer, event.incarnation), event.version, event.epoch, ok=ok)
        if not counts:
            self._out.observe(Fact.LATE_SYNC, event.explorer, f"version {event.version}, epoch {event.epoch}")
        if ok and (counts or explorer.distrusted is None):
            self._fleet.set_version(explorer, event.version)
        elif ok:
            # This is not the answer that is waited for: it may be of a lineage that is void, as what it served before.
            self._fleet.distrust(explorer, event.version)
        elif wrong_bytes:
            detail = f"version {event.version} arrived as {event.checksum}, was sent as {release.checksum}"
            self._out.observe(Fact.SYNC_FAILED, event.explorer, detail)
            self._fleet.distrust(explorer, event.version)
        else:
            self._out.observe(Fact.SYNC_FAILED, event.explorer, f"version {event.version}: {event.error}")

    def _dismiss_trainer(self, name: str, incarnation: str) -> None:
        newest = self._sync.state.held or self._sync.state.release
        if newest is not None:
            self._out.dismiss("trainer", name, incarnation, newest.incarnation)

    def _warn_if_kept(self, step: StepTrained) -> None:
        # A trainer that does not publish what batches will need.
        if self._policy.publishes(step.version):
            detail = (
                f"batches will need version {step.version}, which {step.trainer} does not publish; give all services "
                "the same TRINITY_BUS_SYNCHRONIZER__ settings"
            )
            self._out.observe(Fact.STARVED, step.trainer, detail)


def history_entry(step: StepTrained) -> PublishedVersion:
    """Return what is remembered of a version for good, for ``version-history``."""
    return PublishedVersion(
        model=step.model,
        version=step.version,
        step=step.step,
        batch_id=step.batch_id,
        method=step.method,
        trainer=step.trainer,
        writer=step.writer,
        trainer_incarnation=step.incarnation,
        checksum=step.checksum,
        checkpoint=step.checkpoint,
        metrics=bounded(step.metrics),
        seconds=step.seconds,
        skipped=step.skipped,
        rollback=step.rollback,
        source=step.source,
    )
