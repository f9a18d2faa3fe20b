"""Several services as children of one process: started in order, watched, stopped in reverse order.

::

    launch(spec): RUNNING --ends for a reason that can pass--> WAITS, 1 s, 2 s, 4 s, ... a minute
                     |                                          |'--> RUNNING
                     |                                          '--too many in a row--> GIVEN UP
                     |--for a reason that stays: its settings-------------------------> GIVEN UP
                     '--with 0, where its work ends-----------------------------------> DONE
    stop(): SIGTERM to the services of the last stage, SIGKILL after their grace, then the stage before ...

A signal, a freeze, too little memory, a broker that was away: all of these pass, and so may whatever a process cannot
explain. What has run for a while before it ended is no part of a row. What ends at once, again and again, has a reason
that a start does not mend. One that is given up is a ServiceDiedError, with the end of its log.

Whatever interrupts a supervisor (an exception, Ctrl-C at any moment, even during start or stop), leaving its ``with``
block leaves no process behind; and where this process is killed, its children are too.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Self

from trinity_bus import awake
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.process import Child, Process, ProcessError, how_ended, tail

log = logging.getLogger(__name__)

# how a service ends that cannot work with what it was told (``EX_CONFIG`` of ``sysexits.h``)
SETTINGS_STATUS: Final = 78
LIVED_S: Final = 60.0  # who has run for so long was well
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_MOST: Final = 6
_POLL_S = 0.05
_TAIL_LINES = 20
_MAX_CHARS = 100
# as ``trinity_bus.telemetry.logs`` writes what this program says; what libraries say is no news of the service
_LINE = re.compile(r"\d\d:\d\d:\d\d INFO +(?:trinity_bus|workers|preload)[\w.]*: (.*)")


class Fate(Enum):
    AGAIN = "again"
    GIVEN_UP = "given up"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RestartVerdict:
    fate: Fate
    why: str  # how it has ended, to be said behind its name
    pause_s: float = 0.0  # before it is started again


class Restarts:
    """Whether a process that has ended is started again, and when. Pure: times are arguments.

    It is started again ``most`` times in a row; ``work_ends``: with status 0 it is done.
    """

    def __init__(self, most: int = _MOST, *, work_ends: bool = False) -> None:
        self._most = most
        self._work_ends = work_ends
        self._row = 0

    def ended(self, status: int, ran_s: float) -> RestartVerdict:
        """Decide, by its exit status (minus a signal's number) and the seconds it ran, by ``awake``."""
        lack = ", as the kernel does where memory is short" if status == -signal.SIGKILL else ""
        how = how_ended(status) + lack
        if status == 0 and self._work_ends:
            return RestartVerdict(Fate.DONE, how)
        if status == SETTINGS_STATUS:
            return RestartVerdict(Fate.GIVEN_UP, f"{how}: a setting is wrong, and is so at the next start")
        self._row = 0 if ran_s >= LIVED_S else self._row
        if self._row >= self._most:
            return RestartVerdict(
                Fate.GIVEN_UP, how if self._most == 0 else f"{how}, once more after {self._row} starts"
            )
        self._row += 1
        return RestartVerdict(Fate.AGAIN, how, min(_FIRST_S * 2 ** (self._row - 1), _LONGEST_S))


class ServiceDiedError(ProcessError):
    """A service ended by itself. The message ends with the last lines of its log."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        said = tail(log, _TAIL_LINES)
        super().__init__(f"{name} {what}. Its log: {log}" + (f"\n{said}" if said else ""))
        self.name = name
        self.log = log


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """What to run and how."""

    name: str  # unique; the name of its log file
    command: Sequence[str | Path]
    env: Mapping[str, str] | None = None  # its environment; unset: that of this process
    again: bool = False  # whether it is started again where it has ended for a reason that can pass
    work_ends: bool = False  # whether an end with status 0 is the end of its work
    is_needed: bool = True  # whether the others stop where it has ended for good
    grace_s: float = 20.0  # how long it may take to stop
    stage: int = 0  # higher stages stop first; services of one stage stop together
    # where it is forked, for as long as that is there, instead of started by its ``command``
    forked_from: Preload | None = None
    forked_with: Sequence[str] = ()  # its arguments then
    # makes a socket that it is given when it is forked, its number as the last argument
    channel: Callable[[], socket.socket] | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process does, by the last line of its log that says so."""

    name: str
    what: str
    seconds: float  # for how long; 0 where it has not been started


def activity_of(name: str, log: Path) -> Activity:
    try:
        since = log.stat().st_mtime
    except FileNotFoundError:
        return Activity(name, "waits for its imports", 0.0)
    told = [found[1] for line in tail(log, _TAIL_LINES).splitlines() if (found := _LINE.fullmatch(line))]
    what = textwrap.shorten(told[-1] if told else "starting", _MAX_CHARS, placeholder=" ...")
    return Activity(name, what, max(0.0, time.time() - since))


class _Service:
    def __init__(self, spec: ServiceSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.restarts = Restarts(work_ends=spec.work_ends) if spec.again else Restarts(0, work_ends=spec.work_ends)
        self.fate: Fate | None = None
        self._again_at = 0.0
        self.child = self._spawn()

    def _spawn(self) -> Process:
        self._began = awake.now()
        forked_from = self.spec.forked_from
        if forked_from is not None and forked_from.process.poll() is None:
            arguments = list(self.spec.forked_with)
            env = os.environ if self.spec.env is None else self.spec.env
            passed = None if self.spec.channel is None else self.spec.channel()
            return forked_from.start(arguments, name=self.spec.name, env=env, output=self.log, passed=passed)
        return Child(self.spec.command, env=self.spec.env, output=self.log)

    def check(self, note: Callable[[str], None]) -> None:
        # Start it again where it has ended and may be; raise where it is needed and may not.
        code = self.child.poll()
        if code is None or self.fate in {Fate.DONE, Fate.GIVEN_UP}:
            return
        if self.fate is Fate.AGAIN:
            if awake.now() >= self._again_at:
                self.fate, self.child = None, self._spawn()
            return
        verdict = self.restarts.ended(code, awake.now() - self._began)
        self.fate, self._again_at = verdict.fate, awake.now() + verdict.pause_s
        if verdict.fate is Fate.AGAIN:
            note(f"{self.spec.name} {verdict.why}; it is started again in {verdict.pause_s:.0f} s. Its log: {self.log}")
        elif verdict.fate is Fate.GIVEN_UP and self.spec.is_needed:
            raise ServiceDiedError(self.spec.name, verdict.why, self.log)


class Supervisor:
    """Owns the services of one run; logs go to ``logs/NAME.log``. ``note`` is told what is started again."""

    def __init__(self, run_dir: Path, note: Callable[[str], None] = log.warning) -> None:
        self._logs = run_dir / "logs"
        self._note = note
        self._services: dict[str, _Service] = {}

    def launch(self, spec: ServiceSpec) -> None:
        """Start a service without waiting for it to be ready. Raises ProcessError."""
        if spec.name in self._services:
            raise ProcessError(f"there is a service {spec.name} already")
        self._logs.mkdir(parents=True, exist_ok=True)
        self._services[spec.name] = _Service(spec, self.log(spec.name))

    def check(self) -> None:
        """Restart services that ended and may be; ServiceDiedError where one may not. Does not wait."""
        for service in list(self._services.values()):
            service.check(self._note)

    async def watch(self) -> None:
        """Check again and again, until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(_POLL_S)

    def is_done(self, name: str) -> bool:
        # Whether it has ended because its work is done.
        return self._services[name].fate is Fate.DONE

    def activities(self) -> list[Activity]:
        """Return what each service does. Any thread may ask, also while some are launched."""
        return [activity_of(name, service.log) for name, service in list(self._services.items())]

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def stop_one(self, name: str) -> int:
        """Stop one service and forget it; return its exit status."""
        # First: whoever watches meanwhile would take its end for a death.
        service = self._services.pop(name)
        try:
            return service.child.stop(service.spec.grace_s)
        except BaseException:
            service.child.kill()
            raise

    def stop(self) -> None:
        """Stop all services, stage by stage. Where this is interrupted, what is left is killed."""
        try:
            for stage in sorted({service.spec.stage for service in self._services.values()}, reverse=True):
                members = [service for service in self._services.values() if service.spec.stage == stage]
                # The one started last first, but without waiting for it.
                for service in reversed(members):
                    service.child.terminate()
                began = awake.now()
                for service in reversed(members):
                    left = service.spec.grace_s - (awake.now() - began)
                    if service.child.wait(max(0.0, left)) is None:
                        service.child.kill()
        finally:
            for service in self._services.values():
                service.child.kill()
            self._services.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
