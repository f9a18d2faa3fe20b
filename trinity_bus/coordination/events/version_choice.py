"""Going back to an older version because somebody asks for it, and forward again.

::

    client              coordinator                      trainer                          explorers
      |--PublishVersion 3-->|                               |                                 |
      |                     |--VersionWanted 3 (events)---->| loads it from its checkpoint    |
      |                     |<--StepTrained 3, again--------|                                 |
      |                     |   waits until no attempt runs that needs newer weights          |
      |<--reply: ok---------|--ModelVersion 3, pinned-------|-------------------------------->|
      |--PublishVersion---->|   (no version: the newest)    |                                 |
      |<--reply: ok---------|--ModelVersion 9---------------|-------------------------------->|

==========================================  ===========================================================================
what happens                                what follows
==========================================  ===========================================================================
the version is the one that is served       it is pinned at once; an announcement without members says so, and who asked
the trainer does not have it                the reply is ``unknown_version``, with those that it has
the trainer does not answer in time         the reply is ``timeout``, and nothing has changed
another version is chosen meanwhile         the first reply is ``invalid``, and says so
a version is pinned                         the trainer goes on, and what it publishes is held
a train batch needs newer weights           it waits until the newest is served again; nothing of it is lost, and the
                                            reply and a warning name it. Batches for which it is fresh enough go on
an evaluation begins                        it evaluates the pinned version
the trainer starts anew                     it is asked for the pinned version; explorers that serve it go on with it
and no longer has it                        a warning: who starts anew meanwhile stays without weights
==========================================  ===========================================================================

A *rollback* ends a lineage: what is newer than the chosen version is discarded, for good::

    client              coordinator                      trainer                          explorers
      |--RollBack 3-------->|   stops all that runs         |                                 |
      |                     |--VersionWanted, rollback 3--->| discards newer checkpoints,     |
      |                     |                               | begins a new incarnation from 3 |
      |                     |<--StepTrained 3, rollback-----|                                 |
      |<--reply: ok---------|--ModelVersion 3-----------------------------------------------> |
      |                     |<--StepTrained 4, 5 ... 8------| passes over batches 4 to 8, FINALIZED before

==========================================  ===========================================================================
what happens                                what follows
==========================================  ===========================================================================
it is asked for                             attempts are stopped and wait, without a try lost; nothing is handed out
the trainer does not have the version       the reply is ``unknown_version``, and all goes on as it was
the trainer dies before or amid it          its next incarnation is asked again
the trainer does not answer in time         the reply is ``timeout``; it is done when a trainer answers all the same,
                                            because nobody knows how far the trainer came
another choice or rollback comes meanwhile  a rollback takes the place of the first, and the newest version that of any;
                                            the choice of another version is ``invalid``
it is done                                  what explorers serve of later versions is void at once, a pin is undone
a result drawn with discarded weights       its attempt was stopped: it does not count. What was answered before stays
==========================================  ===========================================================================

Attempts that need newer weights than the chosen version are not interrupted, and no more of them begin once the trainer
has it at hand: a choice takes effect when the last of them has ended, after the limit of one attempt at most.
"""

import math

from schemas import (
    ModelVersion,
    PublishVersion,
    RollBack,
    Rollback,
    StepTrained,
    VersionRefused,
    VersionWanted,
)
from schemas.command import CommandError
from trinity_bus.coordination.effects import Fact
from trinity_bus.coordination.machine_state import Handler, MachineState
from trinity_bus.coordination.versions.weight_sync import Choice

ROLLBACK_S = 600.0  # how long a trainer may take to begin a new incarnation from an older checkpoint
MAX_NAMED = 8  # batches that a reply names


class VersionChoice(Handler):
    """Carries out ``PublishVersion`` and ``RollBack``; the choice is part of the state of ``sync``."""

    def __init__(self, state: MachineState) -> None:
        super().__init__(state)
        self._model = state.settings.model
        self._timeout_s = state.synchronizer.sync_timeout_s
        self._deadline: float | None = None

    def asked(self, command: PublishVersion, traceparent: str | None) -> None:
        """Note that a client asks for a version, or for the newest."""
        choice = Choice(
            command.version or 0, command.client, command.command_id, traceparent, asked_by=command.asked_by
        )
        earlier = self._sync.state.choice
        if not self._is_to_be_done(choice, command.model):
            return
        if earlier is not None and earlier.rollback is not None and command.version is not None:
            self._reply(choice, "invalid", f"a rollback to version {earlier.version} is under way")
            return
        if earlier is not None:
            self._reply(earlier, "invalid", "another version was chosen meanwhile")
            self._sync.state.choice = None
        if command.version is None:
            self._sync.state.pinned = False
            self._sync.asked(command.asked_by)
            self._reply(choice)
        elif self._sync.state.release is None:
            self._reply(choice, "unknown_version", "no trainer has published a version yet")
        elif command.version == self._sync.version:
            self._sync.pin(self._sync.state.release, self._sync.state.traceparent)
            self._sync.asked(command.asked_by)
            self._reply(choice, detail=self._waiting())
        else:
            self._sync.state.choice = choice
            self._deadline = self._clock.now + self._timeout_s
            self._out.request_version(self._question(choice))

    def roll_back(self, command: RollBack, traceparent: str | None) -> bool:
        """Note that a client ends a lineage. Return whether the trainer is asked, so that what runs must stop."""
        through = max(self._ledger.counters.finalized, command.version)
        rollback = Rollback(to=command.version, through=through, reason=command.reason, asked_by=command.asked_by)
        choice = Choice(command.version, command.client, command.command_id, traceparent, rollback=rollback)
        earlier = self._sync.state.choice
        if not self._is_to_be_done(choice, command.model):
            return False
        if self._sync.state.release is None:
            self._reply(choice, "unknown_version", "no trainer has published a version yet")
            return False
        if command.version > self._sync.trained:
            self._reply(choice, "unknown_version", f"the newest version is {self._sync.trained}")
            return False
        if earlier is not None:
            self._reply(earlier, "invalid", f"a rollback to version {command.version} came meanwhile")
        self._sync.state.choice = choice
        self._deadline = self._clock.now + ROLLBACK_S
        self._out.request_version(self._question(choice))
        return True

    def _is_to_be_done(self, choice: Choice, model: str) -> bool:
        # Not where it is about another model, or under way already
        earlier = self._sync.state.choice
        if model != self._model:
            self._reply(choice, "unknown_model", f"the model here is {self._model!r}, not {model!r}")
            return False
        return earlier is None or (earlier.client, earlier.command_id) != (choice.client, choice.command_id)

    def rolled_back(self, step: StepTrained, former: StepTrained | None) -> bool:
        """Note that a version was published. Return whether its lineage is rolled back, and that is news.

        ``former``: by which a trainer told of the newest before.
        """
        rollback, choice = step.rollback, self._sync.state.choice
        if rollback is None or (former is not None and former.rollback == rollback):
            return False
        self._fleet.discard_after(rollback.to)
        self._sync.state.pinned = False
        self._sync.asked(rollback.asked_by)
        self._out.observe(Fact.ROLLED_BACK, step.trainer, f"to version {rollback.to}: {rollback.reason}")
        if choice is not None and choice.rollback == rollback:
            self._sync.state.choice = None
            first, last = rollback.to + 1, rollback.through
            self._reply(choice, detail=f"batches {first} to {last} are passed over" if first <= last else "")
        return True

    def _question(self, choice: Choice) -> VersionWanted:
        if choice.rollback is not None:
            return VersionWanted(model=self._model, rollback=choice.rollback)
        return VersionWanted(model=self._model, version=choice.version)

    def offered(self, step: StepTrained, traceparent: str | None) -> None:
        """Note that the trainer has an older version at hand again."""
        state = self._sync.state
        if state.choice is not None and state.choice.rollback is None and state.choice.version == step.version:
            state.choice = state.choice.but(step=step, step_traceparent=traceparent)
        elif state.pinned and self._sync.version == step.version:
            self._sync.pin(step, traceparent)
        else:
            self._out.observe(Fact.LATE_VERSION, step.trainer, f"nobody waits for version {step.version} any more")

    def refused(self, event: VersionRefused) -> None:
        """Note that the trainer does not have it."""
        state = self._sync.state
        there_are = ", ".join(str(version) for version in event.available) or "none"
        detail = f"version {event.version} cannot be had: {event.reason}; there are {there_are}"
        if state.choice is not None and state.choice.version == event.version:
            self._reply(state.choice, "unknown_version", detail)
            self._sync.state.choice = None
        elif state.pinned and self._sync.version == event.version:
            self._out.observe(Fact.STARVED, event.trainer, f"{detail}; explorers that start anew stay without weights")

    def trainer_began(self) -> None:
        """Ask a new incarnation of the trainer again: it has not heard what was asked of the former one."""
        state = self._sync.state
        if state.choice is not None:
            state.choice = state.choice.but(step=None, step_traceparent=None)
            self._out.request_version(self._question(state.choice))
        elif state.pinned:
            self._out.request_version(VersionWanted(model=self._model, version=self._sync.version))

    def overdue(self) -> None:
        """Give up on a trainer that does not answer."""
        now = self._clock.now
        choice = self._sync.state.choice
        if choice is None or choice.step is not None:
            return
        if self._deadline is None:
            # Restored: the trainer has the whole time again.
            self._deadline = now + (self._timeout_s if choice.rollback is None else ROLLBACK_S)
        if now < self._deadline:
            return
        if choice.rollback is None:
            self._reply(choice, "timeout", f"the trainer has not answered within {self._timeout_s:g} s")
            self._sync.state.choice = None
        else:
            detail = f"the trainer has not answered within {ROLLBACK_S:g} s; the rollback is done when it does"
            self._reply(choice, "timeout", detail)
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
