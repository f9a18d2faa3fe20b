"""The rules of talking with a runner, driven by a runner that says whatever it likes."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trinity_bus.chat.wire import Ask, FailedFrame
from trinity_bus.runners.messages import (
    MAX_REQUESTS,
    AbandonRequest,
    Dropped,
    EngineRequest,
    Pong,
    RequestAnswered,
    RequestRules,
    RunCancelled,
    RunDone,
    RunEnded,
    RunFailed,
)
from trinity_bus.runtime.frames import ProtocolError

ENDS: dict[str, Callable[[int], RunEnded]] = {
    "done": lambda job: RunDone(job, b"", None),
    "failed": lambda job: RunFailed(job, "E", ""),
    "cancelled": RunCancelled,
}


def generate(job: int, number: int) -> EngineRequest:
    return EngineRequest(job, number, Ask(b"", b"{}"))


class AnyTalk(RuleBasedStateMachine):
    """The model: which jobs are open or cancelled, and which requests the engine works on."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = RequestRules()
        self.jobs: dict[int, bool] = {}
        self.in_engine: set[tuple[int, int]] = set()

    def drop(self, requests: tuple[tuple[int, int], ...]) -> None:
        for request in requests:
            # Nothing is dropped that is not served, and nothing twice.
            self.in_engine.remove(request)

    @rule(job=st.integers(0, 5))
    def give(self, job: int) -> None:
        if job not in self.jobs:
            self.requests.run(job)
            self.jobs[job] = False

    @rule(job=st.integers(0, 6))
    def cancel(self, job: int) -> None:
        self.drop(self.requests.cancel(job))
        if job in self.jobs:
            self.jobs[job] = True
        assert not any(of == job for of, _ in self.in_engine)

    @rule(job=st.integers(0, 6), request=st.integers(0, 3))
    def ask(self, job: int, request: int) -> None:
        asked = generate(job, request)
        if job not in self.jobs or (not self.jobs[job] and (job, request) in self.in_engine):
            with pytest.raises(ProtocolError):
                self.requests.receive(asked)
        elif self.jobs[job]:
            assert self.requests.receive(asked) is None
        else:
            assert self.requests.receive(asked) is asked
            self.in_engine.add((job, request))

    @rule(job=st.integers(0, 6), request=st.integers(0, 3))
    def abandon(self, job: int, request: int) -> None:
        served = (job, request) in self.in_engine
        assert self.requests.receive(AbandonRequest(job, request)) == (Dropped(((job, request),)) if served else None)
        self.in_engine.discard((job, request))

    @rule(job=st.integers(0, 6), request=st.integers(0, 3))
    def answer(self, job: int, request: int) -> None:
        assert self.requests.answer((job, request)) == ((job, request) in self.in_engine)
        self.in_engine.discard((job, request))

    @rule(job=st.integers(0, 6), how=st.sampled_from(sorted(ENDS)))
    def end(self, job: int, how: str) -> None:
        message = ENDS[how](job)
        if job not in self.jobs or (how == "cancelled" and not self.jobs[job]):
            with pytest.raises(ProtocolError):
                self.requests.receive(message)
            return
        heard = self.requests.receive(message)
        assert isinstance(heard, Dropped)
        assert heard.ended is message
        self.drop(heard.requests)
        del self.jobs[job]
        assert not any(of == job for of, _ in self.in_engine)

    @rule()
    def pong(self) -> None:
        assert self.requests.receive(Pong({})) == Pong({})

    @precondition(lambda self: len(self.jobs) > 2)
    @rule()
    def die(self) -> None:
        self.drop(self.requests.close())
        self.jobs.clear()
        assert not self.in_engine

    @invariant()
    def it_knows_what_the_runner_has(self) -> None:
        assert set(self.requests.jobs) == set(self.jobs)


TestAnyTalk = AnyTalk.TestCase


def test_a_workflow_gone_wild_is_refused_and_not_stopped() -> None:
    requests = RequestRules()
    requests.run(1)
    for request in range(MAX_REQUESTS):
        assert isinstance(requests.receive(generate(1, request)), EngineRequest)
    refused = requests.receive(generate(1, MAX_REQUESTS))
    assert isinstance(refused, RequestAnswered)
    (failed,) = refused.frames
    assert isinstance(failed, FailedFrame)
    assert "wait for some before asking more" in failed.reason
