"""The explorer's end of its fork server: starting it, having it fork runners, hearing of their deaths.

::

    STARTING --WorkflowsLoaded--> READY --close(), or this process dies--> ENDED, with all runners
       |--LoadFailed, or it dies--> RunnersError
       '--takes too long----------> RunnersError
    READY --it dies--> RunnersError to whoever listens; its runners die with it

It runs under a guard (:mod:`trinity_bus.runtime.process`), so that nothing of it outlives this process, and is given
little of it (:mod:`trinity_bus.runners.confinement`).

Runners run in the explorer's own Python, or in one of the user's, whose packages need not agree with vLLM's. The latter
is asked at start, before anything depends on it, whether it is there, whether its Python and its
trinity-bus are the explorer's versions (what explorer and runners say to each other has no versions of its own), and
whether it has the extra ``runner``.
"""

import asyncio
import contextlib
import json
import logging
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from schemas import Sampling
from trinity_bus import awake
from trinity_bus.chat.encoding import Writing
from trinity_bus.config import Settings, env_name
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.runners import control
from trinity_bus.runners.confinement import environment
from trinity_bus.runtime.forking import ChildExited, ChildForked, SignalChild
from trinity_bus.runtime.process import Child

_EXTRA: Final = ("jinja2", "transformers")  # Of the extra ``runner``: what runners import beside what trinity-bus needs
_LIMIT_S: Final = 60.0
_ASK: Final = """
import importlib.metadata, importlib.util, json, sys
try:
    ours = importlib.metadata.version("trinity-bus")
except importlib.metadata.PackageNotFoundError:
    ours = None
python = "%d.%d" % sys.version_info[:2]
lacks = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({"python": python, "trinity-bus": ours, "lacks": lacks}))
"""


def interpreter(python: Path | None, environment: Mapping[str, str]) -> str:
    """Return the interpreter for runners: the explorer's own where ``python`` is None.

    ConfigError: it cannot be run, or is not fit for runners; with what to do.
    """
    if python is None:
        return sys.executable
    said = _ask(python, environment)
    ours = {"python": "{}.{}".format(*sys.version_info), "trinity-bus": version("trinity-bus")}
    remedy = f"{python} -m pip install 'trinity-bus[runner]=={ours['trinity-bus']}'"
    if said["python"] != ours["python"]:
        raise _unfit(python, f"is Python {said['python']}, and the explorer's is {ours['python']}", "name one of that")
    if said["trinity-bus"] is None:
        raise _unfit(python, "has no trinity-bus", remedy)
    if said["trinity-bus"] != ours["trinity-bus"]:
        raise _unfit(python, f"has trinity-bus {said['trinity-bus']}, and the explorer {ours['trinity-bus']}", remedy)
    if said["lacks"]:
        raise _unfit(python, f"lacks {', '.join(said['lacks'])}", remedy)
    return str(python)


def _ask(python: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(  # noqa: S603 (the operator names it)
            [python, "-c", _ASK, *_EXTRA],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        said: dict[str, Any] = json.loads(done.stdout)
    except OSError as error:
        raise _unfit(python, f"cannot be run ({error.strerror})", "name the interpreter of an environment") from error
    except subprocess.TimeoutExpired as error:
        raise _unfit(python, f"said nothing for {_LIMIT_S:g} s", "see what it does when it is started") from error
    except (subprocess.CalledProcessError, ValueError) as error:
        last = (getattr(error, "stderr", "") or "").strip().splitlines()[-1:]
        raise _unfit(python, f"is no Python that works ({''.join(last) or error})", "name one that does") from error
    return said


def _unfit(python: Path, what: str, remedy: str) -> ConfigError:
    return ConfigError(f"{env_name('explorer.runner_python')}: {python} {what}: {remedy}")


_log = logging.getLogger(__name__)

_RUNNER_USER = env_name("explorer.runner_user")
_IMAGES_USER = "workflows"
TOKENIZER = "trinity_bus.chat.encoding:load_tokenizer"
_STOP_S = 2.0

type Listener = Callable[[ChildForked | ChildExited | RunnersError], None]


class RunnersError(TrinityError):
    """The explorer's own end: runners cannot be started, or the process that starts them is gone."""


def runner_user(named: str | None) -> str | None:
    """Return whom runners become: who is named, else of an explorer that is root the images' own user for it."""
    if named is not None or os.geteuid() != 0:
        return named
    try:
        return pwd.getpwnam(_IMAGES_USER).pw_name
    except KeyError:
        _log.warning("workflows run as root, as this explorer does; %s names another user", _RUNNER_USER)
        return None


class ForkServer:
    """A fork server's process. Starting it takes seconds; it starts with this object, and is waited for in ``ready``.

    ``channel`` leads to one that somebody else has started, and that ends when this closes; unset: it is started here.
    ``tokenizer`` loads the tokenizer, as ``module:function``. ConfigError: ``explorer.runner_python`` is not fit for
    runners. ProcessError: it cannot be started.
    """

    def __init__(self, settings: Settings, *, channel: socket.socket | None = None, tokenizer: str = TOKENIZER) -> None:
        explorer = settings.explorer
        user = runner_user(explorer.runner_user)
        self._limit_s = explorer.start_timeout_s
        self._child: Child | None = None
        if channel is None:
            given = environment(os.environ, explorer.runner_environment)
            python = interpreter(explorer.runner_python, given)
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._child = Child(
                    [python, "-m", "trinity_bus.runners.fork_server_main", str(theirs.fileno())],
                    env=given,
                    pass_fds=[theirs.fileno()],
                )
        self._channel = channel
        self._channel.setblocking(False)
        modules = explorer.workflow_modules
        sampling = Sampling(temperature=explorer.temperature, max_tokens=explorer.max_tokens, seed=explorer.seed)
        self._unsent: deque[tuple[bytes, socket.socket | None]] = deque()
        self._channel.send(
            control.TO_FORK_SERVER.encode(
                control.LoadWorkflows(
                    tokenizer=tokenizer,
                    model_path=explorer.model_path or "",
                    model=explorer.served_model,
                    sampling=sampling.model_dump_json(exclude_none=True).encode(),
                    modules=[] if modules is None else modules.replace(" ", "").split(","),
                    explorer=explorer.name,
                    namespace=settings.kafka.namespace,
                    telemetry=settings.telemetry.model_dump_json().encode(),
                    template_options=explorer.chat_template_options,
                    writing=Writing(explorer.max_model_len, explorer.parse_special_tokens, explorer.renderer),
                    user=user,
                )
            )
        )
        self._workflows: list[str] | None = None
        self._listener: Listener | None = None

    async def ready(self) -> list[str]:
        """Return the names of the workflows that runners know, once they can be forked.

        ConfigError: a module of workflows cannot be imported, the tokenizer cannot be loaded, or runners cannot become
        ``explorer.runner_user``. RunnersError: it died, or took longer than ``explorer.start_timeout_s``.
        """
        if self._workflows is not None:
            return self._workflows
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._channel.fileno(), readable.set)
        try:
            async with awake.timeout(self._limit_s):
                await readable.wait()
        except TimeoutError as error:
            raise RunnersError(f"the runners' fork server did not start within {self._limit_s:g} s") from error
        finally:
            loop.remove_reader(self._channel.fileno())
        match self._receive():
            case control.WorkflowsLoaded(workflows):
                self._workflows = workflows
                return workflows
            case control.LoadFailed(why):
                raise ConfigError(
                    f"runners cannot be prepared: {why}; see {env_name('explorer.workflow_modules')}, "
                    f"{env_name('explorer.model_path')} and {env_name('explorer.runner_user')}"
                )
            case other:
                code = None if self._child is None else self._child.wait(_STOP_S)
                raise RunnersError(f"the runners' fork server ended as it started ({other or code})")

    def listen(self, listener: Listener) -> None:
        """Tell one listener of starts and ends from now on; with an error when the fork server itself is gone."""
        self._listener = listener
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._hear)

    def unlisten(self) -> None:
        self._listener = None
        asyncio.get_running_loop().remove_reader(self._channel.fileno())

    def fork(self, serial: int) -> socket.socket:
        """Have a runner started; return the socket to it, which can be used at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self._send(control.ForkRunner(serial), theirs)
        return ours

    def signal(self, serial: int, number: signal.Signals) -> None:
        """Have a runner sent a signal; nothing happens where it is dead."""
        self._send(SignalChild(serial, number), None)

    def close(self) -> None:
        """End it and all runners. Safe to call twice."""
        self._channel.close()
        for _, passed in self._unsent:
            if passed is not None:
                passed.close()
        self._unsent.clear()
        if self._child is not None and self._child.wait(_STOP_S) is None:
            self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: control.ToForkServer, passed: socket.socket | None) -> None:
        self._unsent.append((control.TO_FORK_SERVER.encode(message), passed))
        self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        # What it does not take because it is gone is told by ``_hear``.
        with contextlib.suppress(ConnectionError):
            while self._unsent:
                datagram, passed = self._unsent[0]
                try:
                    socket.send_fds(self._channel, [datagram], [] if passed is None else [passed.fileno()])
                except BlockingIOError:
                    loop.add_writer(self._channel.fileno(), self._flush)
                    return
                self._unsent.popleft()
                if passed is not None:
                    passed.close()
        loop.remove_writer(self._channel.fileno())

    def _receive(self) -> control.FromForkServer | None:
        # The next message is there; None: the fork server is gone.
        try:
            datagram = self._channel.recv(control.FROM_FORK_SERVER.limit)
        except ConnectionError:
            return None
        return control.FROM_FORK_SERVER.decode(datagram) if datagram else None

    def _hear(self) -> None:
        message = self._receive()
        listener = self._listener
        if listener is None:
            return
        if isinstance(message, ChildForked | ChildExited):
            listener(message)
            return
        self.unlisten()
        listener(RunnersError("the process that starts runners is gone"))
