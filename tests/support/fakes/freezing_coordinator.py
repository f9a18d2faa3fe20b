"""``python -m tests.support.fakes.freezing_coordinator run coordinator``: a real one that stands still amid commits.

``FREEZE_AT`` has the instants, as JSON: a list of ``[handler, moment, broker, later_s]``. At the next commit that tells
results, it is stopped (SIGSTOP) at the first of them, and so on:

* handler: of the client library's requests.
* moment: ``asked`` before the request is sent, ``sent`` after it, or ``answered``.
* broker: whether the process of ``BROKER_PID`` is stopped too, before the request is sent.
* later_s: how much later that one goes on.

After ``FREEZE_S`` seconds, another process has it go on.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.producer import sender

from schemas.topics import RESULTS
from trinity_bus.coordination import CommitPlan, Write
from workers.cli.app import main
from workers.coordinator.leader_term import LeaderTerm
from workers.coordinator.pending_commit import PendingCommit

_HANDLERS = (
    sender.AddPartitionsToTxnHandler,
    sender.SendProduceReqHandler,
    sender.AddOffsetsToTxnHandler,
    sender.TxnOffsetCommitHandler,
    sender.EndTxnHandler,
)
_left: list[tuple[str, str, bool, float]] = [tuple(one) for one in json.loads(os.environ["FREEZE_AT"])]
_armed: list[bool] = []


def _stand_still(*, broker: bool, later_s: float) -> None:
    _left.pop(0)
    _armed.clear()
    own, brokers = os.getpid(), os.environ["BROKER_PID"]
    others = f"; sleep {later_s}; kill -CONT {brokers}" if broker else ""
    waker = ["sh", "-c", f"sleep {os.environ['FREEZE_S']}; kill -CONT {own}{others}"]
    with subprocess.Popen(waker):
        os.kill(own, signal.SIGSTOP)
    print(f"stood still; {len(_left)} instants are left", flush=True)


def _freezing(name: str, do: Callable[[Any, Any], Awaitable[bool]]) -> Callable[[Any, Any], Awaitable[bool]]:
    async def freezing(self: Any, node: Any) -> bool:
        if not _armed or not _left or _left[0][0] != name:
            return await do(self, node)
        _, moment, broker, later_s = _left[0]
        if broker:
            # First: all of a machine stands still within a millisecond, in some order.
            os.kill(int(os.environ["BROKER_PID"]), signal.SIGSTOP)
        if moment == "asked":
            _stand_still(broker=broker, later_s=later_s)
            return await do(self, node)
        doing = asyncio.ensure_future(do(self, node))
        if moment == "answered":
            await doing
        for _ in range(4):
            await asyncio.sleep(0)
        _stand_still(broker=broker, later_s=later_s)
        return await doing

    return freezing


for handler in _HANDLERS:
    handler.do = _freezing(handler.__name__, handler.do)

_commit = LeaderTerm._commit


async def _arming(self: LeaderTerm, plan: CommitPlan, pending: PendingCommit, *args: Any) -> None:
    if any(isinstance(effect, Write) and effect.topic is RESULTS for effect in pending.effects):
        _armed.append(True)
    await _commit(self, plan, pending, *args)


LeaderTerm._commit = _arming  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    main()
