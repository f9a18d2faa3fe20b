"""What clients give rewards for, and how it becomes experiences.

::

    POST /feedback: ids of answers, or a session; a reward --> Sessions: REWARDED
                    '--ids that are not known here--> TurnFinder: what other gateways have answered --> Sessions
    POST /commit --> one group for each task --experiences--> durable --Contribute--> the coordinator
                                                                  accepted, or refused by name <--'

A task is contributed once, whichever gateway does it and however often: the coordinator knows its id. So is an answer
that is a conversation by itself, under whatever task: a contribution says which of them it covers. What is refused
for good is forgotten here; what the coordinator cannot take now, or nobody answers to, stays for the next commit.

Failures: no coordinator, or no broker, is 503; what was contributed before stays contributed. Feedback on what was
answered here needs neither.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Final

import msgspec
from aiohttp import web

from schemas.codec import encode
from schemas.errors import SchemaError
from schemas.groups.grouping import build_group
from schemas.record import IDENTIFIER_PATTERN, MAX_ID_LENGTH
from schemas.task import MAX_REPEAT_TIMES
from schemas.topic import ROOM
from trinity_bus import awake
from trinity_bus.bus import Producer
from trinity_bus.chat import ChatError
from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.experiences import publish
from trinity_bus.gateway.sessions import Contribution, Sessions
from trinity_bus.rollout.answer import with_routes_of_all
from workers.gateway.request_gate import BODY, OWNER, json_response, log
from workers.gateway.turn_finder import TurnFinder

WORKFLOW: Final = "gateway"  # what stands in experiences and turns of sessions
MAX_ANSWERS: Final = 1024  # of one feedback
_AGAIN: Final = frozenset({"over_limit", "timeout"})  # refusals that another try may not meet

type _Id = Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN, max_length=MAX_ID_LENGTH)]


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reward: float
    msg_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_ANSWERS)] = []  # ids of answers
    session: str | None = None  # all of a session that has no reward
    task_id: _Id | None = None
    run_id: Annotated[int, msgspec.Meta(ge=0, lt=MAX_REPEAT_TIMES)] | None = None


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contribute what has a reward: of these tasks, or of all."""

    task_ids: list[_Id] | None = None


@dataclass(eq=False)
class Contributor:
    """Takes feedback, and contributes: in the name of its channel."""

    sessions: Sessions
    producer: Producer
    channel: CommandChannel
    recall: TurnFinder
    _: KW_ONLY
    model: str
    max_record_bytes: int

    def __post_init__(self) -> None:
        # of each client; there are as many as keys
        self._committing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.contributed = 0  # samples that were accepted
        self.refused: Counter[str] = Counter()  # contributions by the reason for which they were refused

    async def feedback(self, request: web.Request) -> web.StreamResponse:
        said = read_said(request[BODY], Feedback)
        session = request.match_info.get("session", said.session)
        if not math.isfinite(said.reward):
            raise ChatError("a reward is a finite number")
        if not said.msg_ids and session is None:
            raise ChatError("feedback names answers (msg_ids) or a session")
        await self._take(request[OWNER], said.msg_ids)
        counted = self.sessions.feedback(
            request[OWNER],
            said.msg_ids,
            said.reward,
            session=None if said.msg_ids else session,
            task_id=said.task_id,
            run_id=said.run_id,
        )
        return json_response({"status": "success", "counted": counted})

    async def _take(self, owner: str, answers: Sequence[str]) -> None:
        """Take in what other gateways have answered of these, as far as it is on the log."""
        missing = self.sessions.missing(owner, answers)
        recalled = await self.recall.requests(owner, missing)
        for answer_id in missing:
            if (found := recalled.get(answer_id)) is not None:
                self.sessions.take(owner, answer_id, *found, awake.now())

    async def commit(self, request: web.Request) -> web.StreamResponse:
        """Contribute what has a reward; 409 where some of it is refused."""
        said = read_said(request[BODY] or b"{}", Commit)
        contributed: dict[str, int] = {}
        refused: dict[str, str] = {}
        # Two at once would contribute the same.
        async with self._committing[request[OWNER]]:
            for one in self.sessions.pending(request[OWNER], said.task_ids):
                error, detail = await self._contribute(one)
                if error is None:
                    contributed[one.task_id] = len(one.rollouts)
                    self.contributed += len(one.rollouts)
                else:
                    refused[one.task_id] = f"{error}: {detail}"
                    self.refused[error] += 1
                    log.warning("the contribution of task %s is refused: %s: %s", one.task_id, error, detail)
                if error not in _AGAIN:
                    self.sessions.settled(one)
        status = "refused" if refused else "success"
        body = {"status": status, "contributed": contributed, "refused": refused}
        return json_response(body, 409 if refused else 200)

    async def _contribute(self, one: Contribution) -> tuple[str | None, str]:
        """Return as what it was refused, if it was, and why."""
        try:
            group = build_group(
                with_routes_of_all(one.rollouts),
                task_id=one.task_id,
                attempt=1,
                batch_id=WORKFLOW,
                batch_type="train",
                workflow=WORKFLOW,
                model=self.model,
                explorer=self.channel.producer,
                incarnation=self.channel.client,
            )
            _, published = await publish(
                self.producer,
                [encode(group)],
                author=self.channel.producer,
                incarnation=self.channel.client,
                max_bytes=self.max_record_bytes - ROOM,
            )
        except SchemaError as error:
            return "invalid", str(error)
        reply = await self.channel.contribute(published[0], one.covers)
        return reply.error, reply.detail


def read_said[R](body: bytes, kind: type[R]) -> R:
    """Return what a client has sent as JSON; raises ChatError where it is no such thing."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChatError(f"the request cannot be read: {error}") from error
