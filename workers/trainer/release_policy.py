"""When a trained step is saved, when its version can be had, and when the mesh is told. Pure.

Two ways, ``trainer.publish``. ``durable``: nobody hears of a version that a crash could take back::

    trained --to be published, or its turn--> SAVING, beside the next step --rename--> DURABLE: told
       '----neither---------------------------> noted beside the checkpoints, told behind those that come before

``staged``: explorers need not wait for a disk; every ``checkpoint_interval`` steps there is a checkpoint all the same::

    trained --to be published--> STAGED --> noted, told at once --its turn--> SAVING, beside the next step --> DURABLE
       '----not-----------------------------> noted, told at once

Actions come in the order in which they are to be done:

===================  =================================================================================================
``Note``             write durably that others are about to hear of a step which is in no checkpoint
``SaveCheckpoint``   copy all that a restart needs, and begin to write it; ``saved`` is called after its rename
``StageVersion``     copy the weights to where explorers can have them
``AnnounceTrained``  say on the log that the step is trained, and whether its version can be had
===================  =================================================================================================

What holds, whatever comes: one checkpoint is written at a time (``must_wait``); steps are told of in their order; what
is told of is durable or noted; a version is staged before it is told of; with ``durable``, it has its checkpoint too.

===========================  =========================================================================================
killed ...                   and started again
===========================  =========================================================================================
``durable``, before the      nobody has heard of the version: its step is trained again, from the checkpoint before
rename
``staged``, with versions    their steps are trained again, from the same log and as their records on ``steps`` say. The
that have no checkpoint      first version told of is the checkpoint's, under a new incarnation; a version is one of an
                             incarnation, so what explorers serve of the former one is not taken for what has its
                             number now, see ``coordination.weight_sync``
a save fails                 the trainer ends with the reason
===========================  =========================================================================================
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

type Mode = Literal["durable", "staged"]


@dataclass(frozen=True, slots=True)
class Note:
    step: int


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    step: int


@dataclass(frozen=True, slots=True)
class StageVersion:
    step: int


@dataclass(frozen=True, slots=True)
class AnnounceTrained:
    step: int
    publish: bool


type Action = Note | SaveCheckpoint | StageVersion | AnnounceTrained


@dataclass(slots=True)
class ReleasePolicy:
    mode: Mode
    # Steps between checkpoints
    interval: int
    # Newest step that has a checkpoint
    durable: int = -1
    # Step whose checkpoint is being written
    saving: int | None = None
    # What waits for that, in the order of steps
    _untold: deque[AnnounceTrained] = field(default_factory=deque)

    def must_wait(self, step: int, *, publish: bool, last: bool = False) -> bool:
        """Whether the checkpoint that is being written has to be whole before ``trained`` may be called."""
        return self.saving is not None and self._is_saved(step, publish=publish, last=last)

    def trained(self, step: int, *, publish: bool, last: bool = False) -> list[Action]:
        # The last must be durable whatever the interval.
        save = self._is_saved(step, publish=publish, last=last)
        actions: list[Action] = []
        if self.mode == "staged":
            actions += [StageVersion(step)] if publish else []
            actions += [Note(step), AnnounceTrained(step, publish)]
            actions += self._begin(step) if save else []
        elif save:
            actions += self._begin(step)
            actions += [StageVersion(step)] if publish else []
            self._untold.append(AnnounceTrained(step, publish))
        else:
            actions.append(Note(step))
            self._untold.append(AnnounceTrained(step, publish=False))
        return [*actions, *self._told()]

    def wanted(self, step: int) -> list[Action]:
        """Have the version of the last step, told of as trained before, be one that can be had."""
        if self.mode == "staged" or step == self.durable:
            return [StageVersion(step), AnnounceTrained(step, publish=True)]
        self._untold = deque(tell for tell in self._untold if tell.step != step)
        self._untold.append(AnnounceTrained(step, publish=True))
        return [StageVersion(step)] if step == self.saving else [*self._begin(step), StageVersion(step)]

    def saved(self, step: int) -> list[AnnounceTrained]:
        self.saving, self.durable = None, step
        return self._told()

    def _is_saved(self, step: int, *, publish: bool, last: bool) -> bool:
        return last or step % self.interval == 0 or (publish and self.mode == "durable")

    def _begin(self, step: int) -> list[Action]:
        self.saving = step
        return [SaveCheckpoint(step)]

    def _told(self) -> list[AnnounceTrained]:
        if self.saving is not None:
            return []
        told, self._untold = list(self._untold), deque()
        return told
