"""Commands to the coordinator, and its replies.

::

    caller                  channel                               log
      |--ask(command)-------->|--command, id c-1------------------> commands
      |                       |                                     (the coordinator carries it out)
      |                       |<------------------reply to c-1----- replies
      |<--reply---------------|

Any number of commands are under way at once; a reply finds its command by its id.

==================================  ===================================================================================
what fails                          what happens
==================================  ===================================================================================
a command cannot be sent            it is sent again, under the same id, for ``kafka.outage_s``
a reply is lost, or the broker is   the command is sent again under the same id; the coordinator answers it the same
away for a while                    way, and carries it out once
the coordinator dies                its successor answers
no coordinator answers              ``NoCoordinatorError``; a command that was sent may still be carried out later
the caller gives up waiting         the reply is passed over
a reply is for another client       it is passed over
==================================  ===================================================================================

When a command is sent again, and when waiting for its reply ends::

    send --> WAITING --the reply--> ANSWERED
              |  ^
              |  '-- again_s without a reply: sent again, under the same id
              '-- silence_s without a word from any coordinator --> GIVEN UP

A command that is answered at once (all but FinalizeBatch) hears of the coordinator by its own reply. One that may wait
for hours is accompanied by a question that any coordinator answers at once, so that a long wait and a dead coordinator
can be told apart.

While the broker takes no commands, silence says nothing about the coordinator: it is borne for ``outage_s``, as every
service bears it, and counts anew when the broker is back.
"""

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from schemas import AbortBatch, CommandReply, Contribute, FinalizeBatch, PublishVersion, RollBack
from schemas.command import AnyCommand
from schemas.topic import Topic
from schemas.topics import COMMANDS, OPERATOR_COMMANDS, REPLIES
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer, Received, TopicFollower, Undecodable
from trinity_bus.client.experiences import Published
from trinity_bus.client.tasks import producer_name
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, NoCoordinatorError

AGAIN_S = 5.0
SILENCE_S = 30.0

log = logging.getLogger(__name__)

_NAME_CHARS: Final = 64


class CommandChannel:
    """Sends commands and waits for their replies. An async context manager. ``again_s``, ``silence_s``: see above.

    ``name``: what the coordinator's log calls this client; what follows it tells it from others of that name.
    """

    def __init__(
        self,
        bus: Bus,
        producer: Producer,
        *,
        name: str,
        again_s: float = AGAIN_S,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = awake.now,
    ) -> None:
        self.client = f"{name[:_NAME_CHARS]}-{uuid.uuid4().hex[:12]}"
        self.producer = producer_name(bus.settings, name)  # whose the tasks and batches are that are sent through it
        self._bus = bus
        self._producer = producer
        self._again_s = again_s
        self._silence_s = silence_s
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[CommandReply]] = {}
        self._heard_at: float | None = None
        self._failure: BaseException | None = None
        # Read whole, though most are for others: Kafka has no way to read the records of one key.
        self._follower = TopicFollower(lambda start: bus.reader(REPLIES, start=start), self._take, self._ended)

    async def __aenter__(self) -> Self:
        await self._follower.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._follower.stop()
        self._ended(BusError("the client was shut down while it waited for a reply"))

    @property
    def settings(self) -> KafkaSettings:
        return self._bus.settings

    async def ask(self, kind: type[AnyCommand], *, operator: bool = False, **fields: Any) -> CommandReply:
        """Send a command, made of fields of its own, and return the reply, which may say that it was refused.

        ``operator``: whether it is sent as an operator's, as those are that nobody else may send. Raises
        NoCoordinatorError where no coordinator answers.
        """
        topic = COMMANDS if kind in COMMANDS.records and not operator else OPERATOR_COMMANDS
        return await self._ask(self._command(kind, **fields), topic)

    async def contribute(self, published: Published, covers: Sequence[str] = ()) -> CommandReply:
        """Ask that experiences count as a task's; ``covers``: see ``Contribute``."""
        return await self.ask(Contribute, **published._asdict(), covers=list(covers) or None)

    async def ask_whether_present(self) -> None:
        """Return when a coordinator answers; NoCoordinatorError where none does."""
        await self._ask(self._question())

    def _command[C: AnyCommand](self, kind: type[C], **fields: Any) -> C:
        own = {"producer": self.producer} if "producer" in kind.model_fields else {}
        return kind(client=self.client, command_id=f"{self.client}/{next(self._numbers)}", **own, **fields)

    async def _ask(self, command: AnyCommand, topic: Topic = COMMANDS) -> CommandReply:
        if self._failure is not None:
            raise self._failure
        answered: asyncio.Future[CommandReply] = asyncio.get_running_loop().create_future()
        self._waiting[command.command_id] = answered
        try:
            problem = await self._send(command, topic)
            since = sent_at = self._clock()
            while True:
                ends = self._silence_ends(since, problem)
                await awake.wait([answered], max(0.0, min(sent_at + self._again_s, ends) - self._clock()))
                if answered.done():
                    return answered.result()
                now = self._clock()
                if now >= self._silence_ends(since, problem):
                    raise self._silence(command, problem)
                if now >= sent_at + self._again_s:
                    before, problem = problem, await self._send(command, topic)
                    is_silent = self._heard_at is None or now >= self._heard_at + self._again_s
                    if is_silent and isinstance(command, FinalizeBatch | PublishVersion | RollBack):
                        problem = await self._send(self._question()) or problem
                    sent_at = self._clock()
                    if before is not None and problem is None:
                        # The broker is back: the coordinator has all its time to answer.
                        since = sent_at
        finally:
            del self._waiting[command.command_id]

    def _silence_ends(self, since: float, problem: BusError | None) -> float:
        # When waiting ends if no coordinator is heard. ``since``: when it was sent first, or first after the broker's
        # return; ``problem``: why the broker did not take it last.
        limit = self._silence_s if problem is None else max(self._bus.settings.outage_s, self._silence_s)
        return limit + (since if self._heard_at is None else max(since, self._heard_at))

    def _question(self) -> AbortBatch:
        # Answered at once by any coordinator, and of no effect: to abort what never was is a success.
        return self._command(AbortBatch, batch_id=f"{self.client}/0", reason="are you there?")

    async def _send(self, command: AnyCommand, topic: Topic = COMMANDS) -> BusError | None:
        # What goes wrong is returned, and made good by sending it again.
        try:
            async with awake.timeout(self._again_s):
                await (await self._producer.send(topic, command.subject, command))
        except TimeoutError:
            return BusError(f"the broker did not take the command within {self._again_s:g} s")
        except BusError as error:
            log.warning("%s for %s will be sent again: %s", command.SCHEMA, command.subject, error)
            return error
        return None

    def _silence(self, command: AnyCommand, problem: BusError | None) -> NoCoordinatorError:
        settings, about = self._bus.settings, f"{command.SCHEMA} {command.subject!r}"
        if problem is not None:
            return NoCoordinatorError(
                f"the broker has taken no command for {settings.outage_s:g} s, so no coordinator can answer about "
                f"{about}: is it running? ({problem})"
            )
        return NoCoordinatorError(
            f"no coordinator of namespace {settings.namespace!r} has answered within {self._silence_s:g} s: "
            "start one with `trinity-bus run coordinator`, or set TRINITY_BUS_MESH__NAMESPACE to that of the one that "
            f"runs. What was asked about {about} may still be done when one starts"
        )

    def _take(self, received: Received[Any]) -> None:
        reply = received.record
        if not isinstance(reply, CommandReply):
            # Only the coordinator writes here; that it wrote what cannot be read is for its own log.
            log.error("%s is no reply: %s", received.place, reply.detail if isinstance(reply, Undecodable) else "null")
            return
        self._heard_at = self._clock()
        answered = self._waiting.get(reply.command_id) if reply.client == self.client else None
        if answered is not None and not answered.done():
            answered.set_result(reply)

    def _ended(self, error: BaseException) -> None:
        self._failure = error
        for future in self._waiting.values():
            with contextlib.suppress(asyncio.InvalidStateError):
                future.set_exception(error)
