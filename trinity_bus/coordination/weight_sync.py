"""Which weights the mesh serves, and who takes part in moving them.

The trainer says that a version can be had from it; the coordinator names the *members*, explorers that shall load it,
in a ``ModelVersion``, as soon as the sync style lets it. Members that are named together are a *round*; there is at
most one round at a time. docs/versions.md has a picture.

==========================================  =====================================================================
what happens                                what follows
==========================================  =====================================================================
a version is trained and to be published    it is held while the sync style says so; a newer one takes its place
a version is held no more                   a round, of all explorers that can (of too many, those that serve the oldest
                                            versions), as soon as that under way has ended. Members that ran out of
                                            time when last asked are not waited for
the explorers' side has done its interval   with ``explorer_driven``, the trainer is asked for a version, and again
                                            after each step until it comes
a member answers, dies or is late           it is out of the round
a choice, or the style, does not wait       the round under way is superseded; later answers to it are only noted
explorers do not serve the version          they make the next round; who needs round after round waits longer each
                                            time, up to half a minute
what the trainer said of a version is lost  its heartbeats tell of the version: it is asked to say it again
a former incarnation of the trainer speaks  it is told that it is superseded, and ends
a trainer starts anew                       its former incarnation is ignored. Its version is served at once if nobody
                                            serves a newer one; else that one stays until the trainer has caught up:
                                            whoever went back would draw what is too old for batches ahead. What it
                                            then has under a number may be other weights: who serves those of the
                                            former one is handed nothing until it has loaded the new ones
==========================================  =====================================================================

So every round ends. An *epoch* is a membership. Its number grows when a round has other members than the one before,
or the one before did not end well, or the trainer is a new incarnation; else it stays, so that connections can be used
again.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import field

from schemas import Member, ModelVersion, Rollback, StepTrained, VersionWanted
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.fleet import ZOMBIES_KEPT, Fleet
from trinity_bus.coordination.limits import bounded
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Row, Single
from trinity_bus.coordination.sync_policy import SyncPolicy

type MemberKey = tuple[str, str]  # an explorer's name and incarnation

FIRST_RETRY_S = 0.25
LONGEST_RETRY_S = 30.0
TRAINER_SILENCE_S = 30.0  # after which a trainer that used to send heartbeats is not asked to serve anybody


class Choice(Value):
    """Somebody asks for an older version; see :mod:`trinity_bus.coordination.events.versions`."""

    version: int
    client: str
    command_id: str
    traceparent: str | None
    step: StepTrained | None = None  # the trainer's word that it has the version at hand
    step_traceparent: str | None = None
    rollback: Rollback | None = None  # what is newer is to be discarded
    asked_by: str | None = None


class SyncState(Row):
    release: StepTrained | None = None  # the version that is to be served
    traceparent: str | None = None  # of its publication
    held: StepTrained | None = None  # a newer one, which is not served yet
    held_traceparent: str | None = None
    asked_after: int = 0  # sequence of the batch after which the trainer was last asked for a version
    wanted: int = 0  # the version that was asked for and has not come; 0 for none
    pinned: bool = False  # whether somebody chose ``release``, and what is newer is held until that is taken back
    choice: Choice | None = None  # one that has not taken effect
    epoch: int = 0
    group: tuple[MemberKey, ...] = ()  # members of the last round, by rank
    intact: bool = True  # whether nothing has gone wrong in the last round
    pending: dict[str, str] = field(default_factory=dict)  # members that have not answered: name to incarnation
    # Of each explorer, its incarnation, and how often that was named in rounds of ``release``.
    rounds: dict[str, tuple[str, int]] = field(default_factory=dict)
    zombies: tuple[str, ...] = ()  # former incarnations of the trainer
    asked_by: str | None = None  # who asked for what is served, as announcements say
    is_untold: bool = False  # whether no announcement has said yet what was asked for


class WeightSync:
    """Announcements, one round after another. ``most``: explorers that are named in a round."""

    def __init__(self, model: str, policy: SyncPolicy, timeout_s: float, store: StateStore, *, most: int) -> None:
        self.state = SyncState()
        Single("sync", self.state, store)
        self._model = model
        self._policy = policy
        self._timeout_s = timeout_s
        self._most = most
        self._deadline = 0.0
        self._retry_at: dict[MemberKey, float] = {}
        self._late: set[MemberKey] = set()  # who ran out of time when last asked; a successor waits for them once more
        self.trainer_seen: float | None = None  # when the trainer that is to be served from sent its last heartbeat
        self._content: tuple[int, int] | None = None  # revision of the fleet at which all served a version, and which

    @property
    def version(self) -> int:
        return -1 if self.state.release is None else self.state.release.version

    @property
    def newest(self) -> int:
        # That was published, be it held or served; -1 before there is any.
        return self.version if self.state.held is None else max(self.version, self.state.held.version)

    @property
    def trained(self) -> int:
        # The newest that was published of the trainer's present incarnation, or -1.
        state = self.state
        newest = state.release if state.held is None else state.held
        return -1 if newest is None else newest.version

    @property
    def for_evaluation(self) -> int:
        # The version that an evaluation is of that begins now.
        return self.version if self.state.pinned else self.newest

    def is_zombie(self, trainer_incarnation: str) -> bool:
        return trainer_incarnation in self.state.zombies

    def has_not_heard_of(self, incarnation: str, version: int) -> bool:
        """Whether this incarnation of the trainer has published a version whose announcement never came."""
        newest = self.state.held or self.state.release
        if version < 0 or self.is_zombie(incarnation):
            return False
        return newest is None or newest.incarnation != incarnation or newest.version < version

    def publish(self, step: StepTrained, traceparent: str | None) -> bool:
        """Note that a version can be had. Return whether that is news; else it came late or twice."""
        state, old = self.state, self.state.held or self.state.release
        if old is not None and old.incarnation == step.incarnation and step.version <= old.version:
            return False
        if old is not None and old.incarnation != step.incarnation:
            state.zombies = (*state.zombies, old.incarnation)[-ZOMBIES_KEPT:]
            state.intact = False
        state.held, state.held_traceparent = step, traceparent
        if step.version >= state.wanted:
            state.wanted = 0
        self.trainer_seen = None
        return True

    def release(self, oldest_needed: int | None, explorers: Iterable[Explorer], now: float) -> ModelVersion | None:
        """Return the announcement of the version that was held until now; None where there is none, or still held."""
        state, held = self.state, self.state.held
        if held is None or state.pinned:
            return None
        explorers = list(explorers)
        is_awaited = self._policy.finishes_rounds and not self._late.issuperset(state.pending.items())
        if state.release is not None and state.release.incarnation != held.incarnation:
            # What the former incarnation has published can be had from nobody, so only who has it keeps it.
            if any(explorer.version > held.version for explorer in explorers):
                return None
        elif is_awaited or self._policy.holds(held.version, served=self.version, oldest_needed=oldest_needed):
            return None
        if not state.is_untold:
            # It comes by itself, after what somebody asked for.
            state.asked_by = None
        state.release, state.traceparent = held, state.held_traceparent
        state.held = state.held_traceparent = None
        return self._announce_first(held, explorers, now)

    def is_trained_again(self, before: StepTrained) -> bool:
        """Whether what is to be served may be other weights than ``before``, of a former trainer, under its number."""
        now = self.state.release
        if now is None or now.incarnation == before.incarnation:
            return False
        return (now.version, now.checksum) != (before.version, before.checksum)

    def asked(self, asked_by: str | None) -> None:
        """Note who has chosen what is served: it is announced, also where no explorer has to move."""
        self.state.asked_by, self.state.is_untold = asked_by, True

    def pin(self, step: StepTrained, traceparent: str | None) -> None:
        """Note that this version is served while ``state.pinned``; nobody moves who serves it already."""
        state = self.state
        if state.held is None and state.release is not None and state.release.version != step.version:
            state.held, state.held_traceparent = state.release, state.traceparent
        state.release, state.traceparent, state.pinned = step, traceparent, True

    def go_back(
        self, step: StepTrained, traceparent: str | None, explorers: Iterable[Explorer], now: float
    ) -> ModelVersion:
        self.pin(step, traceparent)
        return self._announce_first(step, explorers, now)

    def want(self, finalized: int) -> VersionWanted | None:
        """Return what the trainer is to be asked for, as the explorers' side has come to the end of an interval."""
        want = None if self.state.release is None else self._policy.want(finalized, self.state.asked_after)
        if want is None:
            return None
        self.state.asked_after, at_least = want
        self.state.wanted = max(at_least, self.newest + 1)
        return self.reminder()

    def reminder(self) -> VersionWanted | None:
        """Return the same again, where it has not come: the trainer may have restarted, and not have heard."""
        wanted = self.state.wanted
        return VersionWanted(model=self._model, at_least=wanted) if wanted else None

    def answered(self, member: MemberKey, version: int, epoch: int, *, ok: bool) -> bool:
        """Note that a member has answered. Return whether that was the answer to the round under way."""
        state = self.state
        if state.pending.get(member[0]) != member[1] or (version, epoch) != (self.version, state.epoch):
            return False
        self._late.discard(member)
        self._finish_member(member[0], ok=ok)
        return True

    def departed(self, member: MemberKey) -> None:
        self._retry_at.pop(member, None)
        self._late.discard(member)
        name, incarnation = member
        if self.state.rounds.get(name, ("", 0))[0] == incarnation:
            self.state.rounds = {other: rounds for other, rounds in self.state.rounds.items() if other != name}
        if self.state.pending.get(name) == incarnation:
            self._finish_member(name, ok=False)

    def overdue(self, now: float) -> list[str]:
        """Members of the round under way that ran out of time; they count as failed from now on."""
        if now < self._deadline:
            return []
        late = list(self.state.pending)
        self._late.update(self.state.pending.items())
        for name in late:
            self._finish_member(name, ok=False)
        return late

    def next_round(self, fleet: Fleet, now: float) -> ModelVersion | None:
        """Return the announcement for those who do not serve the version, or of a choice that was not yet told of."""
        release = self.state.release
        if release is None or self.state.pending:
            return None
        is_silent = self.trainer_seen is not None and now - self.trainer_seen > TRAINER_SILENCE_S
        if is_silent or self.is_zombie(release.incarnation):
            return self._announce(release, [], now) if self.state.is_untold else None
        if self._content == (fleet.revision, release.version) and not self.state.is_untold:
            return None
        laggards = [e for e in fleet.followers() if e.can_sync and e.version != release.version]
        if not laggards:
            # As long as no explorer changes, there is nobody to be looked for.
            self._content = fleet.revision, release.version
        ready = [e for e in laggards if self._retry_at.get((e.name, e.incarnation), now) <= now]
        return self._announce(release, ready, now) if ready or self.state.is_untold else None

    def rebuild(self, now: float) -> None:
        self._deadline = now + self._timeout_s

    def _finish_member(self, name: str, *, ok: bool) -> None:
        # In place: a thousand members may answer, and each time all others would be copied.
        del self.state.pending[name]
        self.state.touch()
        self.state.intact = self.state.intact and ok

    def _announce_first(self, release: StepTrained, explorers: Iterable[Explorer], now: float) -> ModelVersion:
        self.state.rounds = {}
        self._retry_at.clear()
        return self._announce(release, [explorer for explorer in explorers if explorer.can_sync], now)

    def _announce(self, release: StepTrained, members: list[Explorer], now: float) -> ModelVersion:
        state = self.state
        # Those that are too many for one record make the next round, and then they serve the oldest version.
        oldest = sorted(members, key=lambda explorer: (explorer.version, explorer.name))[: self._most]
        group = tuple(sorted((explorer.name, explorer.incarnation) for explorer in oldest))
        if group != state.group or not state.intact or state.pending:
            state.epoch += 1
        state.group, state.intact, state.pending = group, True, dict(group)
        state.is_untold = False
        self._deadline = now + self._timeout_s
        rounds = dict(state.rounds)
        for name, incarnation in group:
            of, count = rounds.get(name, (incarnation, 0))
            count = count if of == incarnation else 0
            rounds[name] = incarnation, count + 1
            self._retry_at[name, incarnation] = now + min(FIRST_RETRY_S * 2.0 ** min(count, 16), LONGEST_RETRY_S)
        state.rounds = rounds
        return ModelVersion(
            **told_of(release),
            epoch=state.epoch,
            members=[
                Member(explorer=name, incarnation=member, rank=i) for i, (name, member) in enumerate(group, start=1)
            ],
            master_address=release.master_address,
            master_port=release.master_port,
            pinned=state.pinned,
            asked_by=state.asked_by,
            dtype=release.dtype,
        )


def told_of(step: StepTrained) -> dict[str, Any]:
    """Return what announcements and the history of versions both tell of a version."""
    return {
        "model": step.model,
        "version": step.version,
        "step": step.step,
        "method": step.method,
        "trainer": step.trainer,
        "trainer_incarnation": step.incarnation,
        "checksum": step.checksum,
        "checkpoint": step.checkpoint,
        "metrics": bounded(step.metrics),
        "source": step.source,
    }
