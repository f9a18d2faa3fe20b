"""``trinity-bus harbor``: runs the Harbor tasks of a task set, by agents that reach the model through a gateway.

::

    place k of the task set --> its runs, each a trial of Harbor's with a session of the gateway and a key of its own
        STARTED --agent: /sessions/<session>/v1, verifier: a reward--> /feedback --> REWARDED
           '--no reward that counts--> FAILED, with the reason --> another trial, at most ``attempts``
        all runs have ended --/commit--> experiences of one task --> <place>.json: the place is DONE

Sandboxes, agents and timeouts are those of Harbor's configuration of a trial. Each trial is a guarded process of its
own, ``python -m workers.harbor``, with bounds of memory and of files: Harbor reads what a model has written.

A reward counts beside no error but those that Harbor's error policy takes for the model's own, such as an agent's
timeout; an exit status is not. The agent has a key that opens the model in its session alone: beside it runs what a
model has written, which could reward itself otherwise. Secrets must be out of the environment (``keep_secrets``), of
which a ``task.toml`` can have Harbor put variables into the sandbox.

==============================  ========================================================================================
what fails                      what happens
==============================  ========================================================================================
no Docker, or no such provider  it does not start, nor does it with a wrong configuration, key or address
sandbox, agent's installation,  the attempt fails with Harbor's reason, and never counts as a reward of 0
verifier, timeout
a process of a trial            the attempt fails; it is killed with its family at the task's limit, or after a day
a folder that is no task        the task counts as one whose runs have all failed
an agent that asks nothing      the attempt fails: the gateway knows no such session
the gateway                     it is asked for a minute; then the attempt, or the start, fails
all runs of a task              the task is passed over until the next start; ``_MOST_FAILED`` of them one after the
                                other end the process with the last reason
the coordinator refuses         said in the log and in the place's file; the place is done
this process                    places without a file are run again by the next one; what was committed is refused then
==============================  ========================================================================================
"""

import asyncio
import itertools
import json
import logging
import math
import os
import resource
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

import aiohttp
import msgspec
import yaml
from harbor import Trial, TrialConfig
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import TaskConfig
from harbor.models.task.verifier_mode import task_has_any_shared_verifier
from harbor.models.trial.error_policy import ERROR_POLICIES

from schemas.errors import printable
from schemas.task import Task
from trinity_bus import awake
from trinity_bus.config import Settings
from trinity_bus.config.sources import MAX_TOML_BYTES
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.runtime.execution import STOP_FAMILY, Executed, Process, execute, guarded, kill
from trinity_bus.runtime.http import session_key
from trinity_bus.runtime.plain_files import read_plain, write_plain
from workers.preconditions import dataset, gateway_keys
from workers.taskset.dataset import Dataset, load
from workers.taskset.description import DatasetError
from workers.taskset.harbor import NAME, task_folder

log = logging.getLogger("workers.harbor")

_MOST_FAILED: Final = 8
# An agent ends with an error, too, where the model could not be reached.
_POLICIES: Final = {"NonZeroAgentExitCodeError": {"has_valid_reward": False}}
_ANSWER_S: Final = 60.0
_PAUSE_S: Final = 1.0
_ANSWERED: Final = frozenset({200, 409})
_LATER: Final = frozenset({429, 503})  # statuses, and below refusals, that a later request may not get
_LATER_REFUSALS: Final = ("over_limit", "timeout")
_MOST_BYTES: Final = 1 << 20
_WHY_CHARS: Final = 500
_MEMORY_BYTES: Final = 4 << 30  # of addresses, of each process of a trial
_FILE_BYTES: Final = 4 << 30  # of a file that one of them writes
_LONGEST_S: Final = 86_400.0
_END_S: Final = 60.0  # how long a trial that is to end may take to remove its sandbox


class TrialError(TrinityError):
    """A trial has left no reward that counts."""


class NoRewardsError(TrinityError):
    """Task after task has no reward."""


@dataclass(frozen=True, slots=True)
class GatewayClient:
    url: str
    key: str
    http: aiohttp.ClientSession

    async def feedback(self, session: str, reward: float, task_id: str) -> None:
        # A session is a run of its task, too beside those that a killed process has left at the gateway.
        await self._post("/feedback", session=session, reward=reward, task_id=task_id)

    async def commit(self, *task_ids: str) -> Mapping[str, str]:
        """Contribute what has a reward of these tasks; return which are refused, and as what."""
        refused: Mapping[str, str] = (await self._post("/commit", task_ids=task_ids))["refused"]
        return refused

    async def _post(self, path: str, **body: Any) -> Any:
        until = awake.now() + _ANSWER_S
        while True:
            try:
                async with self.http.post(f"{self.url}{path}", json=body, headers={"x-api-key": self.key}) as answer:
                    said = await answer.json()
                    later = [one for one in said.get("refused", {}).values() if one.startswith(_LATER_REFUSALS)]
                    if answer.status in _ANSWERED and not later:
                        return said
                    why, final = f"status {answer.status}: {said}", not later and answer.status not in _LATER
            except (aiohttp.ClientError, AttributeError, TimeoutError, ValueError) as error:
                why, final = f"{type(error).__name__}: {error}", False
            if final or awake.now() > until:
                raise TrialError(f"the gateway at {self.url} does not take {path}: {why}"[:_WHY_CHARS])
            await asyncio.sleep(_PAUSE_S)


class Trials:
    """Trials of one configuration of Harbor's, a file of YAML or JSON; ConfigError where it is none, or cannot be had.

    ``folder`` is where they leave their files.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._config = yaml.safe_load(read_plain(path, _MOST_BYTES)) or {}
            whole = TrialConfig.model_validate({**self._config, "task": {"path": "."}})
            of = whole.environment
            EnvironmentFactory.run_preflight(of.type, of.import_path, of.kwargs)
        # This is how Harbor says that there is no Docker.
        except (OSError, SystemExit, TypeError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: there can be no trials: {error}") from error
        self.folder = Path(whole.trials_dir)

    async def run(self, task: Path, folder: Path, session: str, url: str, key: str) -> float:
        """Run a trial, and return its reward; TrialError where it has none that counts."""
        own = self._config.get("agent") or {}
        variables = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
        }
        config = {
            **self._config,
            "task": {"path": str(task)},
            "trial_name": session,
            "trials_dir": str(folder),
            "agent": {**own, "env": {**(own.get("env") or {}), **variables}},
            "override_error_policy": {**_POLICIES, **(self._config.get("override_error_policy") or {})},
        }
        try:
            done = await _executed(json.dumps(config, default=str).encode())
            said = msgspec.json.decode(done.stdout, type=_Said) if done.returncode == 0 else _Said()
        except (OSError, msgspec.MsgspecError) as error:
            raise TrialError(f"the trial's process has told no reward: {error}") from error
        if said.reward is None:
            last = done.stderr.strip()[-_WHY_CHARS:]
            raise TrialError(said.flaw or f"the trial's process has ended with status {done.returncode}: {last}")
        return said.reward


class _Said(msgspec.Struct, omit_defaults=True):
    """What the process of a trial says, in a line."""

    reward: float | None = None
    flaw: Annotated[str, msgspec.Meta(max_length=_WHY_CHARS)] = ""


async def _executed(config: bytes) -> Executed:
    running: set[Process] = set()
    async with guarded([sys.executable, "-m", "workers.harbor"]) as (command, descriptors):
        executing = asyncio.ensure_future(
            execute(
                command,
                stdin=config,
                wall_s=_LONGEST_S,
                output_bytes=8 * _WHY_CHARS,
                env={**os.environ},
                pass_fds=descriptors,
                stop=STOP_FAMILY,
                running=running,
            )
        )
        try:
            return await asyncio.shield(executing)
        except asyncio.CancelledError:
            for process in running:
                # Harbor removes the sandbox, if it can.
                kill(process, signal.SIGTERM)
            if running:
                await awake.wait({executing}, _END_S)
            raise
        finally:
            executing.cancel()
            await asyncio.wait({executing})


def main() -> None:
    """Run one trial, whose configuration is at standard input."""
    for limit, most in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_FSIZE, _FILE_BYTES)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    told = os.dup(1)
    # What agents print is not what is told.
    os.dup2(2, 1)
    said = asyncio.run(_trial(json.load(sys.stdin)))
    os.write(told, msgspec.json.encode(said))


async def _trial(config: Any) -> _Said:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - for types
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        trial = await Trial.create(TrialConfig.model_validate(config))
        result = await trial.run()
        flaw = _flaw(result) or _rewarded_twice(trial.paths)
        if flaw is None:
            return _Said(reward=reward_of(result.verifier_result.rewards))
    # Providers and agents raise what they like, and all of it is about this trial.
    except Exception as error:  # noqa: BLE001
        flaw = f"{type(error).__name__}: {error}"
    return _Said(flaw=printable(flaw)[:_WHY_CHARS])


def _rewarded_twice(paths: Any) -> str | None:
    # Of both Harbor reads the JSON, which a process that the agent has left behind may have written.
    for folder in (paths.verifier_dir, *paths.steps_dir.glob("*/verifier")):
        if all(os.path.lexists(folder / name) for name in ("reward.txt", "reward.json")):
            return "there is a reward.json beside reward.txt: one of them may be the model's"
    return None


def reward_of(rewards: Mapping[str, float]) -> float:
    """Return the reward among what a verifier gives: ``reward``, or the only one; TrialError where it is no number."""
    value = rewards.get("reward", next(iter(rewards.values())) if len(rewards) == 1 else None)
    if value is None:
        raise TrialError(f"the verifier gave {', '.join(rewards)[:_WHY_CHARS]}, and none of them is called reward")
    try:
        reward = float(value)
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise TrialError("the verifier's reward is no finite number")
    return reward


def _flaw(result: Any) -> str | None:
    """Return why a trial has no reward that counts, if it has none."""
    for error in result.recorded_exceptions():
        # To Harbor a reward counts beside an error that it does not know.
        known = error.exception_type in ERROR_POLICIES or error.policy_override is not None
        if not known or not error.policy.has_valid_reward:
            return f"{error.exception_type}: {error.exception_message}"
    return None if result.reward_valid else "the verifier gave no reward"


async def run(settings: Settings, trial: Path, url: str, *, concurrent: int, attempts: int) -> None:
    """Run all tasks of ``taskset.path`` that this task set has not run yet; ConfigError where that cannot be begun.

    NoRewardsError: there is something wrong with all of them.
    """
    own, path = settings.taskset, dataset(settings)
    key = next(iter(gateway_keys(settings)))
    # What Harbor has to say of each trial is in its folder.
    logging.getLogger("harbor").propagate = False
    trials = Trials(trial)
    train = load(path, taskset=own.name, seed=own.seed, order=own.order).train
    if train is None:
        raise DatasetError(f"{path} has nothing to train on: no [[train]]")
    async with aiohttp.ClientSession() as http:
        gateway = GatewayClient(url.rstrip("/"), key, http)
        # Whether it is there, and knows the key.
        await gateway.commit()
        runs = settings.coordinator.group_size
        await HarborRuns(
            train, trials, gateway, path.parent, name=own.name, runs=runs, concurrent=concurrent, attempts=attempts
        ).run(own.epochs)


@dataclass(eq=False)
class HarborRuns:
    """The tasks of one task set, below a root; ``runs`` of each that says nothing, ``concurrent`` trials at a time."""

    train: Dataset
    trials: Trials
    gateway: GatewayClient
    root: Path
    _: KW_ONLY
    name: str
    runs: int
    concurrent: int
    attempts: int

    def __post_init__(self) -> None:
        self._folder = (self.trials.folder / self.name).resolve()
        self._free = asyncio.Semaphore(self.concurrent)
        self._failed = 0  # tasks without a reward, one after the other
        self._warned = False

    async def run(self, epochs: int | None) -> None:
        """Run the tasks of all places that are not done; without epochs, there is no end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._is_the_same()
        size = self.train.size
        places = itertools.count() if epochs is None or size is None else range(epochs * size)
        open_tasks = asyncio.Semaphore(self.concurrent)
        async with asyncio.TaskGroup() as group:
            for place in places:
                if not self._done(place).exists():
                    await open_tasks.acquire()
                    group.create_task(self._task(place)).add_done_callback(lambda _: open_tasks.release())

    def _is_the_same(self) -> None:
        # What is done counts places of one data set, in one order.
        path = self._folder / "taskset.json"
        if path.exists() and json.loads(read_plain(path, _MOST_BYTES)) != self.train.fingerprint:
            raise DatasetError(
                f"{self._folder} has trials of another data set or in another order; give this one a name of its own "
                "(TRINITY_BUS_TASKSET__NAME)"
            )
        write_plain(path, json.dumps(self.train.fingerprint))

    def _done(self, place: int) -> Path:
        return self._folder / f"{place}.json"

    async def _task(self, place: int) -> None:
        task = self.train.task(self.name, place)
        ended: list[float | str] = []
        try:
            folder = task_folder(self.root, task.data.get(NAME))
        except DatasetError as error:
            ended = [str(error)]
        else:
            self._warn_of(folder)
            async with asyncio.TaskGroup() as group:
                runs = [
                    group.create_task(self._run(task, folder, f"{place}-{number}"))
                    for number in range(task.repeat_times or self.runs)
                ]
            ended = [one.result() for one in runs]
        rewards = [one for one in ended if isinstance(one, float)]
        failed = [one for one in ended if isinstance(one, str)]
        try:
            refused = (await self.gateway.commit(task.task_id)).get(task.task_id) if rewards else None
        except TrialError as error:
            rewards, failed = [], [str(error)]
        if not rewards:
            self._failed += 1
            log.error("task %s is passed over: no run has a reward", task.task_id)
            if self._failed >= _MOST_FAILED:
                raise NoRewardsError(f"{self._failed} tasks one after the other have no reward; the last: {failed[-1]}")
            return
        self._failed = 0
        self.train.saw(task.task_id.removeprefix(f"{self.name}/").partition("/")[2], fmean(rewards))
        done = {"task_id": task.task_id, "rewards": rewards, "failed": failed, "refused": refused}
        write_plain(self._done(place), json.dumps(done))
        log.info("task %s: %d runs have a mean reward of %.3g", task.task_id, len(rewards), fmean(rewards))
        if refused is not None:
            log.warning("the contribution of task %s is refused: %s", task.task_id, printable(refused))

    def _warn_of(self, folder: Path) -> None:
        try:
            config = TaskConfig.model_validate_toml(read_plain(folder / "task.toml", MAX_TOML_BYTES).decode())
        except (OSError, ValueError):
            # Harbor says it of the trial.
            return
        if not self._warned and task_has_any_shared_verifier(config):
            self._warned = True
            log.warning(
                "the verifier of task %s, and maybe of others, runs in the agent's sandbox, where the agent's "
                "processes can write its reward: set verifier.environment_mode to separate",
                folder.name,
            )

    async def _run(self, task: Task, folder: Path, name: str) -> float | str:
        """Return the reward of a run, or why it has none; ``name`` is what its sessions, and trials, begin with."""
        why = ""
        for attempt in range(1, self.attempts + 1):
            session = f"{name}-{secrets.token_hex(8)}"
            url, key = f"{self.gateway.url}/sessions/{session}", session_key(self.gateway.key, session)
            async with self._free:
                try:
                    async with awake.timeout(task.timeout_s):
                        reward = await self.trials.run(folder, self._folder, session, url, key)
                    await self.gateway.feedback(session, reward, task.task_id)
                except TrialError as error:
                    why = str(error)
                except TimeoutError:
                    why = f"the trial had not ended after {task.timeout_s:g} s"
                else:
                    return reward
            # It may quote what a program has printed in the sandbox.
            log.warning("task %s, attempt %d of run %s failed: %s", task.task_id, attempt, name, printable(why))
        return why


if __name__ == "__main__":
    main()
