"""What must hold of the replies to commands."""

import re
from typing import TYPE_CHECKING

from schemas import (
    AbortBatch,
    BatchRecord,
    BatchResult,
    CommandReply,
    Contribute,
    FinalizeBatch,
    SubmitBatch,
)
from schemas import BatchLifecycleState as State
from tests.support.simulation.invariant import Invariant, InvariantViolatedError, hold
from trinity_bus.coordination import Request

if TYPE_CHECKING:
    from tests.support.simulation.invariants import Invariants

ENDED = (State.FINALIZED, State.ABORTED)
AUTOMATIC = re.compile(r"(train|eval)-\d*")  # names of batches that the coordinator has named


class ReplyRules:
    def __init__(self, seen: "Invariants") -> None:
        self._seen = seen
        self._owners: dict[str, str] = {}  # of submitted batches
        self._told_results: dict[str, BatchResult | None] = {}

    def check(self, reply: CommandReply) -> None:
        seen = self._seen
        name = (reply.client, reply.command_id)
        replies = seen.replies[name]
        replies.append(reply)
        detail = f"{name}: {len(replies)} replies to {seen.sends[name]}"
        hold(len(replies) <= seen.sends[name], Invariant.REPLIES, detail)
        if reply != replies[0]:
            raise InvariantViolatedError(Invariant.REPLIES, f"{name} is told {reply}, after {replies[0]}")
        if len(replies) == 1:
            command = seen.effects[name]
            self._check_reply(command, reply)
            if isinstance(command, Contribute) and reply.error is None:
                seen.contributed(command.task_id, seen.contributions[name])

    def _check_reply(self, command: Request, reply: CommandReply) -> None:
        batch_id = getattr(command, "batch_id", getattr(command, "task_id", None))
        batch = None if batch_id is None else self._seen.batches.get(batch_id)
        state = None if batch is None else batch.state
        match command:
            case SubmitBatch():
                if reply.error is None:
                    self._owners[command.batch_id] = command.client
                known = reply.error is None or state is not None or reply.error == "batch_too_large"
                right = state is not None if reply.error is None else known
            case AbortBatch():
                right = reply.error is None and (state is None or state in ENDED)
            case Contribute():
                right = reply.error != "known_task" or command.task_id in self._seen.accepted
            case FinalizeBatch():
                right = self._finalize_is_true(command, reply, batch)
            case _:
                right = reply.error in (None, "unknown_batch")
        if not right or reply.batch_id != batch_id:
            raise InvariantViolatedError(Invariant.REPLY_IS_TRUE, f"{command} is told {reply}, the batch is {state}")

    def _finalize_is_true(self, command: FinalizeBatch, reply: CommandReply, batch: BatchRecord | None) -> bool:
        if batch is None:
            return reply.error == "unknown_batch"
        is_over = batch.state in ENDED
        if reply.error is None:
            return is_over and batch.batch_type == command.batch_type and self._is_its_result(reply.result, batch)
        return {
            "wrong_type": batch.batch_type != command.batch_type,
            "timeout": not is_over and (batch.batch_type == "train" or not self._owns(command)),
            "open_batch": batch.expected_task_count is None,
        }.get(reply.error, False)

    def _owns(self, command: FinalizeBatch) -> bool:
        """Whether a client ends the batch when its time is up: its own, or one that is anybody's."""
        by_name = "*" if AUTOMATIC.fullmatch(command.batch_id) else ""
        return self._owners.get(command.batch_id, by_name) in ("", command.client)

    def _is_its_result(self, result: BatchResult | None, batch: BatchRecord) -> bool:
        first = self._told_results.setdefault(batch.batch_id, result)
        hold(first == result, Invariant.SAME_RESULT, f"{result}, and before {first}")
        if result is None:
            return False
        hold(result.state is batch.state, Invariant.SAME_RESULT, f"{result} of a batch that is {batch.state}")
        if batch.state is State.FINALIZED:
            said = (result.finished_task_count, result.metrics)
            of_record = (batch.completed_task_count, batch.metrics)
            hold(said == of_record, Invariant.SAME_RESULT, f"{said}, the record says {of_record}")
        return True
