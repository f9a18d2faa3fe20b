"""OpenEnv environments as workflows: servers at an address that a workflow's code names, a session for each run.

::

    connect --reset(seed, options)--> an observation --> the model --said--> step(action) --> observation, reward
                                                           ^                                    |
                                                           '------------- not done -------------'

An episode is a run, its reward the sum of its steps'. OpenEnv's protocol, JSON over a WebSocket at ``/ws``, is spoken
here: no package of OpenEnv's is needed. Turns, limits of time and what becomes of an attempt that goes on are as with
other environments: ``trinity_bus.rollout.text_env``.

Failures, of the run: a server that cannot be reached, closes the connection, has no session free, refuses an action,
says that its environment has failed, sends what is no answer, or more than ``MAX_OBSERVATION_BYTES``
(``OpenEnvError``); an episode that is over before it began, or ends without that any step had a reward.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import aiohttp
import msgspec

from schemas.task import Task
from trinity_bus import awake
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.text_env import TextEnv, TextEnvWorkflow

MAX_OBSERVATION_BYTES: Final = 1 << 20
_SHOWN: Final = 1000  # bytes of an error
_CLOSE_S: Final = 1.0  # how long a server may take to say that a session is over


class OpenEnvError(TrinityError, RuntimeError):
    """An environment cannot be used any more; the message has its address, and says why."""


class _Result(msgspec.Struct):
    observation: dict[str, Any]
    reward: bool | float | None = None
    done: bool = False


class _Answer(msgspec.Struct):
    type: str
    data: msgspec.Raw


class OpenEnv:
    """An environment at an address, for one episode at a time; see ``TextEnv``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._rewarded = False  # a step of this episode had a reward

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Begin an episode. Options are what the environment's own ``reset`` takes."""
        await self.close()
        self._rewarded = False
        # How long anything takes is measured by who calls.
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        address = self._url.rstrip("/") + "/ws"
        try:
            self._socket = await self._http.ws_connect(address, max_msg_size=MAX_OBSERVATION_BYTES)
        except aiohttp.ClientError as error:
            raise self._failed(f"it cannot be reached: {error}") from error
        result = await self._ask("reset", {"seed": seed, **(options or {})})
        if result.done:
            raise self._failed("the episode is over before it began")
        return result.observation, {}

    async def step(self, action: Mapping[str, Any]) -> Any:
        result = await self._ask("step", dict(action))
        self._rewarded = self._rewarded or result.reward is not None
        if result.done and not self._rewarded:
            raise self._failed("the episode has ended, and no step of it had a reward")
        return result.observation, result.reward or 0.0, result.done, False, {}

    async def close(self) -> None:
        # The connection ends, and with it the server's session, whether or not the server says so.
        if self._socket is not None:
            with contextlib.suppress(TimeoutError):
                async with awake.timeout(_CLOSE_S):
                    await self._socket.close()
        if self._http is not None:
            await self._http.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> _Result:
        if self._socket is None:
            raise self._failed("it was not reset")
        try:
            # Whom the server has refused finds the reason in what it sent before it closed the connection.
            with contextlib.suppress(ConnectionError):
                await self._socket.send_json({"type": kind, "data": data})
            said = await self._socket.receive()
            if said.type is not aiohttp.WSMsgType.TEXT:
                raise self._failed(f"it has closed the connection: {said.extra or said.data}")
            answer = msgspec.json.decode(said.data, type=_Answer)
            if answer.type == "observation":
                return msgspec.json.decode(answer.data, type=_Result)
        except (aiohttp.ClientError, msgspec.MsgspecError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        raise self._failed(bytes(answer.data)[:_SHOWN].decode(errors="replace"))

    def _failed(self, why: str) -> OpenEnvError:
        return OpenEnvError(f"the environment at {self._url}: {why}")


class OpenEnvWorkflow(TextEnvWorkflow):
    """Episodes of a text environment. Register the subclass, with its ``url``."""

    url: ClassVar[str]  # such as http://127.0.0.1:8000

    def make(self, task: Task) -> TextEnv:
        del task
        return OpenEnv(self.url)

    def action(self, said: str) -> Any:
        """Return the fields of an action: here those of one that is a message."""
        return {"message": said}

    def seen(self, observation: Any) -> str:
        """Return what the model is told of an observation's fields: here all of them but ``metadata``, as JSON."""
        # They are for who runs the environment, and may have the answer; servers of openenv-core 0.3 sent none.
        return msgspec.json.encode({name: observation[name] for name in observation if name != "metadata"}).decode()
