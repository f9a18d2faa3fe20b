"""What is said of versions by the trainer, by explorers, and by those who choose one; docs/versions.md has pictures.

What a trainer publishes is announced when the sync style lets it; a version whose announcement was lost is asked for
again. An explorer that loaded other bytes than were sent has to load them again.

==========================================  ===========================================================================
a choice                                    what follows
==========================================  ===========================================================================
the version is the one that is served       it is pinned at once; an announcement without members says so, and who asked
the trainer does not have it                the reply is ``unknown_version``, with those that it has
the trainer does not answer in time         the reply is ``timeout``, and nothing has changed
another version is chosen meanwhile         the first reply is ``invalid``, and says so
a version is pinned                         the trainer goes on, and what it publishes is held
a train batch needs newer weights           it waits until the newest is served again; the reply and a warning name it
the trainer starts anew                     it is asked for the pinned version; if it no longer has it, there is a
                                            warning: who starts anew meanwhile stays without weights
==========================================  ===========================================================================

A *rollback* ends a lineage: what is newer than the chosen version is discarded, for good.

==========================================  ===========================================================================
a rollback                                  what follows
==========================================  ===========================================================================
it is asked for                             attempts are stopped and wait, without a try lost; nothing is dispatched
the trainer does not have the version       the reply is ``unknown_version``, and all goes on as it was
the trainer dies before or amid it          its next incarnation is asked again
the trainer does not answer in time         the reply is ``timeout``; it is done when a trainer answers all the same,
                                            because nobody knows how far the trainer came
another choice or rollback comes meanwhile  a rollback takes the place of the first, and the newest version that of any;
                                            the choice of another version is ``invalid``
it is done                                  what explorers serve of later versions is void at once, a pin is undone
==========================================  ===========================================================================

Attempts that need newer weights than the chosen version are not interrupted, and no more of them begin once the trainer
has it at hand: a choice takes effect when the last of them has ended.
"""

import math
from collections.abc import Callable
from typing import assert_never

from schemas import (
    ModelVersion,
    PublishedVersion,
    PublishVersion,
    RollBack,
    Rollback,
    StepTrained,
    Superseded,
    TrainerHeartbeat,
    VersionRefused,
    VersionWanted,
    WeightsSynced,
)
from schemas.command import CommandError
from schemas.topics import VERSION_HISTORY
from trinity_bus.coordination.effects import Fact, Write
from trinity_bus.coordination.machine_state import Handler, MachineState
from trinity_bus.coordination.weight_sync import Choice, told_of

ROLLBACK_S = 600.0  # how long a trainer may take to begin a new incarnation from an older checkpoint
MAX_NAMED = 8  # batches that a reply names


class Versions(Handler):
    """What follows from what is said of versions. ``requeue_running`` stops what runs and queues it, for a reason."""

    def __init__(self, state: MachineState, requeue_running: Callable[[str], None]) -> None:
        super().__init__(state)
        self._model = state.settings.model
        self._timeout_s = state.synchronizer.sync_timeout_s
        self._requeue_running = requeue_running
        self._deadline: float | None = None

    # -- what the trainer and explorers say --------------------------------------------------------------------------

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
                    self._refused(event)
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
            self._offered(step, traceparent)
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
        if step.rollback is not None and (told_last is None or told_last.rollback != step.rollback):
            self._rolled_back(step.trainer, step.rollback)
        if former is not None and former.incarnation != step.incarnation:
            self._trainer_began()

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
            superseded = Superseded(service="trainer", name=name, incarnation=incarnation, by=newest.incarnation)
            self._out.dismiss(superseded)

    def _warn_if_kept(self, step: StepTrained) -> None:
        # A trainer that does not publish what batches will need.
        if self._policy.publishes(step.version):
            detail = (
                f"batches will need version {step.version}, which {step.trainer} does not publish; give all services "
                "the same TRINITY_BUS_SYNCHRONIZER__ settings"
            )
            self._out.observe(Fact.STARVED, step.trainer, detail)

    # -- what is chosen ----------------------------------------------------------------------------------------------

    def asked(self, command: PublishVersion | RollBack, traceparent: str | None) -> None:
        """Note that a client asks for a version, for the newest, or ends a lineage."""
        rollback: Rollback | None = None
        if isinstance(command, RollBack):
            through = max(self._ledger.counters.finalized, command.version)
            rollback = Rollback(to=command.version, through=through, reason=command.reason, asked_by=command.asked_by)
        choice = Choice(
            command.version or 0,
            command.client,
            command.command_id,
            traceparent,
            rollback=rollback,
            asked_by=command.asked_by,
        )
        earlier = self._sync.state.choice
        if earlier is not None and (earlier.client, earlier.command_id) == (choice.client, choice.command_id):
            return
        refusal = self._refusal(command, earlier)
        if refusal is not None:
            self._reply(choice, *refusal)
            return
        if earlier is not None:
            what = "another version was chosen" if rollback is None else f"a rollback to version {rollback.to} came"
            self._reply(earlier, "invalid", f"{what} meanwhile")
            self._sync.state.choice = None
        release = self._sync.state.release
        if command.version is None:
            self._sync.state.pinned = False
            self._sync.asked(command.asked_by)
            self._reply(choice)
        elif rollback is None and release is not None and command.version == release.version:
            self._sync.pin(release, self._sync.state.traceparent)
            self._sync.asked(command.asked_by)
            self._reply(choice, detail=self._waiting())
        else:
            self._sync.state.choice = choice
            self._deadline = self._clock.now + self._limit_s(choice)
            self._ask(choice)
        if rollback is not None:
            self._requeue_running(f"the lineage after version {rollback.to} is ended")

    def _refusal(self, command: PublishVersion | RollBack, earlier: Choice | None) -> tuple[CommandError, str] | None:
        is_choice = isinstance(command, PublishVersion)
        if command.model != self._model:
            return "unknown_model", f"the model here is {self._model!r}, not {command.model!r}"
        if command.version is None:
            return None
        if is_choice and earlier is not None and earlier.rollback is not None:
            return "invalid", f"a rollback to version {earlier.version} is under way"
        if self._sync.state.release is None:
            return "unknown_version", "no trainer has published a version yet"
        if not is_choice and command.version > self._sync.trained:
            return "unknown_version", f"the newest version is {self._sync.trained}"
        return None

    def _limit_s(self, choice: Choice) -> float:
        return self._timeout_s if choice.rollback is None else ROLLBACK_S

    def _ask(self, choice: Choice) -> None:
        version = choice.version if choice.rollback is None else None
        self._out.request_version(VersionWanted(model=self._model, version=version, rollback=choice.rollback))

    def _rolled_back(self, trainer: str, rollback: Rollback) -> None:
        choice = self._sync.state.choice
        self._fleet.discard(rollback.to + 1)
        self._sync.state.pinned = False
        self._sync.asked(rollback.asked_by)
        self._out.observe(Fact.ROLLED_BACK, trainer, f"to version {rollback.to}: {rollback.reason}")
        if choice is not None and choice.rollback == rollback:
            self._sync.state.choice = None
            first, last = rollback.to + 1, rollback.through
            self._reply(choice, detail=f"batches {first} to {last} are passed over" if first <= last else "")
        self._requeue_running(f"the trainer has rolled back to version {rollback.to}")

    def _offered(self, step: StepTrained, traceparent: str | None) -> None:
        state = self._sync.state
        if state.choice is not None and state.choice.rollback is None and state.choice.version == step.version:
            state.choice = state.choice.but(step=step, step_traceparent=traceparent)
        elif state.pinned and self._sync.version == step.version:
            self._sync.pin(step, traceparent)
        else:
            self._out.observe(Fact.LATE_VERSION, step.trainer, f"nobody waits for version {step.version} any more")

    def _refused(self, event: VersionRefused) -> None:
        state = self._sync.state
        there_are = ", ".join(str(version) for version in event.available) or "none"
        detail = f"version {event.version} cannot be had: {event.reason}; there are {there_are}"
        if state.choice is not None and state.choice.version == event.version:
            self._reply(state.choice, "unknown_version", detail)
            self._sync.state.choice = None
        elif state.pinned and self._sync.version == event.version:
            self._out.observe(Fact.STARVED, event.trainer, f"{detail}; explorers that start anew stay without weights")

    def _trainer_began(self) -> None:
        """Ask a new incarnation of the trainer again: it has not heard what was asked of the former one."""
        state = self._sync.state
        if state.choice is not None:
            state.choice = state.choice.but(step=None, step_traceparent=None)
            self._ask(state.choice)
        elif state.pinned:
            self._out.request_version(VersionWanted(model=self._model, version=self._sync.version))

    def overdue(self) -> None:
        now = self._clock.now
        choice = self._sync.state.choice
        if choice is None or choice.step is not None:
            return
        if self._deadline is None:
            # Restored: the trainer has the whole time again.
            self._deadline = now + self._limit_s(choice)
        if now < self._deadline:
            return
        detail = f"the trainer has not answered within {self._limit_s(choice):g} s"
        if choice.rollback is None:
            self._reply(choice, "timeout", detail)
            self._sync.state.choice = None
        else:
            self._reply(choice, "timeout", f"{detail}; the rollback is done when it does")
            self._deadline = math.inf

    def resolve(self) -> ModelVersion | None:
        """Return the announcement of the version that was chosen, once nothing runs that needs a newer one."""
        choice = self._sync.state.choice
        if (
            choice is None
            or choice.rollback is not None
            or choice.step is None
            or self._ledger.newest_drawn_for() > choice.version
        ):
            return None
        self._sync.state.choice = None
        self._sync.asked(choice.asked_by)
        followers = self._fleet.followers()
        announcement = self._sync.go_back(choice.step, choice.step_traceparent, followers, self._clock.now)
        self._reply(choice, detail=self._waiting())
        return announcement

    @property
    def ceiling(self) -> int | None:
        """The newest version that a task may need to be dispatched now; None for any, -1 where nothing is."""
        state = self._sync.state
        if state.choice is not None and state.choice.rollback is not None:
            return -1
        if state.choice is not None and state.choice.step is not None:
            return state.choice.version
        return self._sync.version if state.pinned else None

    def _waiting(self) -> str:
        # Warns of the batches that wait for newer weights than are served; the reply's detail.
        waiting = self._ledger.needing_more_than(self._sync.version)
        for batch in waiting:
            detail = f"needs version {batch.min_version}, but {self._sync.version} was chosen: it waits"
            self._out.observe(Fact.STARVED, batch.batch_id, detail)
        if not waiting:
            return ""
        names = ", ".join(batch.batch_id for batch in waiting[:MAX_NAMED])
        return f"{len(waiting)} batches wait until the newest version is served again: {names}"

    def _reply(self, choice: Choice, error: CommandError | None = None, detail: str = "") -> None:
        command = PublishVersion(
            client=choice.client, command_id=choice.command_id, model=self._model, version=choice.version
        )
        self._out.add(self._replies.give(command, error, detail, choice.traceparent))


def history_entry(step: StepTrained) -> PublishedVersion:
    return PublishedVersion(
        **told_of(step),
        batch_id=step.batch_id,
        writer=step.writer,
        seconds=step.seconds,
        skipped=step.skipped,
        rollback=step.rollback,
    )
