import msgspec
import pytest

from trinity_bus.chat import wire
from trinity_bus.runners import messages
from trinity_bus.runners.messages import (
    TO_RUNNER,
    AbandonRequest,
    CancelRun,
    EngineRequest,
    KeepTurn,
    Ping,
    Pong,
    RequestAnswered,
    Run,
    RunCancelled,
    RunDone,
    RunFailed,
    to_explorer,
)
from trinity_bus.runtime.frames import ProtocolError

DRAWN = wire.DrawnFrame(1, wire.token_bytes([7]), wire.logprob_bytes([-0.5]), 3, "stop", [(0, 3)])


def body(message: messages.ToRunner | messages.ToExplorer) -> bytes:
    return msgspec.msgpack.encode(message)


@pytest.mark.parametrize(
    "message",
    [
        Run(1, b"{}", -1, None),
        CancelRun(2),
        Ping(),
        RequestAnswered(1, 2, [DRAWN, DRAWN]),
        RequestAnswered(1, 2, [wire.FailedFrame("no", "ValueError")]),
        RequestAnswered(1, 2, [wire.SaidFrame("yes")]),
        RequestAnswered(1, 2, [wire.ScoredFrame(b"1234")]),
        RequestAnswered(1, 2, []),
    ],
)
def test_messages_to_a_runner_arrive_as_they_were(message: messages.ToRunner) -> None:
    assert TO_RUNNER.decode(body(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        RunFailed(1, "ValueError", "no"),
        RunCancelled(2),
        Pong({3: {"turn": 4}}),
        RunDone(5, b"a group", "an error"),
        AbandonRequest(1, 2),
        EngineRequest(1, 2, wire.Ask(wire.token_bytes([7, 8]), b"{}", 3), None, "00-trace"),
        EngineRequest(1, 2, wire.ChatAsk(b"[]", b"{}"), "judge"),
        # What the engine refuses is no reason to stop the runner.
        EngineRequest(1, 2, wire.ScoreAsk(b"", 0), "teacher"),
        EngineRequest(1, 2, KeepTurn(b"a turn")),
    ],
)
def test_messages_to_the_explorer_arrive_as_they_were(message: messages.ToExplorer) -> None:
    assert to_explorer(body(message)) == message


def test_one_side_does_not_take_what_only_the_other_may_say() -> None:
    with pytest.raises(ProtocolError, match="a message that cannot be read"):
        to_explorer(body(Ping()))
    with pytest.raises(ProtocolError, match="a message that cannot be read"):
        TO_RUNNER.decode(body(RunCancelled(1)))
