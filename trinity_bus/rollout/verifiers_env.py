"""Environments of ``verifiers`` (its v1) as workflows, and their tasksets as tasks.

::

    task --number, hash--> the taskset's own task --> an episode of the environment --> its trace: reward, metrics
                                                        |  ^                               '--> all samples of the run
                                   OpenAI's API, by its interception server
                                                        v  |
                                                      Endpoint --token ids--> the engine

A workflow's code names the environment, as ``verifiers`` configures one; a task says no more than which of its
taskset's tasks is meant. That is looked up by its number, and has to have the hash that it had when it was produced:
nothing of what an environment does (images, programs, paths) comes off the wire. Each run has an instance of the
environment, and what it serves, to itself; the taskset is loaded once in a runner, as far as it is asked for.

Failures, of the run: a task that names no task of the taskset (``WorkflowError``); an episode that is not ok, that no
reward function has judged, or that several agents have played, whose rewards would be mixed up (``VerifiersError``). An
engine that fails fails the run as itself.

Importing this needs the package ``verifiers``.
"""

import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import verifiers.v1 as vf

from schemas.task import Task
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.agents import AgentWorkflow, Endpoint, Outcome
from trinity_bus.rollout.threads import in_thread
from trinity_bus.rollout.workflow import WorkflowError

_RUNS: Final = itertools.count()


class VerifiersError(TrinityError, RuntimeError):
    """An episode gave no reward; the message says why."""


class _Tasks:
    # Of a taskset, by their numbers; read in threads. All up to the last that was asked for are kept.

    def __init__(self, taskset: Any, size: int) -> None:
        self._taskset = taskset
        self._size = size
        self._lock = threading.Lock()
        self._rest: Iterator[Any] | None = None
        self._known: list[Any] = []

    def find(self, number: int) -> Any:
        """Return a task of the taskset; None where there is none."""
        with self._lock:
            if self._rest is None:
                self._rest = iter(self._taskset)
            if number < self._size:
                self._known += itertools.islice(self._rest, max(0, number + 1 - len(self._known)))
            return self._known[number] if 0 <= number < len(self._known) else None


class VerifiersWorkflow(AgentWorkflow):
    """Episodes of an environment that one agent plays. Register the subclass, with its ``environment``.

    ``environment`` is what ``verifiers`` calls an environment's config: ``{"taskset": {"id": ...}, "agent": {...}}``.
    """

    environment: ClassVar[Mapping[str, Any]]
    size: ClassVar[int] = 10_000  # so many of its taskset's tasks are used, from the first; a taskset may have no end

    def __init__(self) -> None:
        self._config = vf.resolve_env_config(dict(self.environment))
        self._tasks = _Tasks(vf.load_taskset(self._config.taskset), self.size)

    def tasks(self) -> Iterator[Task]:
        """Yield those of the taskset, as tasks for this workflow."""
        for number in range(self.size):
            if (theirs := self._tasks.find(number)) is None:
                return
            yield Task(
                task_id=f"{self.name}-{number}",
                workflow=self.name,
                # For people; what the model is asked is up to the environment.
                prompt=theirs.data.prompt_text or None,
                data={"verifiers": {"number": number, "hash": theirs.hash}},
            )

    def _theirs(self, task: Task) -> Any:
        named = task.data.get("verifiers")
        number = named.get("number") if isinstance(named, dict) else None
        if not isinstance(named, dict) or not isinstance(number, int):
            raise WorkflowError(f"task {task.task_id!r} does not say which task of the taskset it is (data.verifiers)")
        theirs = self._tasks.find(number)
        if theirs is None or theirs.hash != named.get("hash"):
            raise WorkflowError(
                f"task {task.task_id!r} was made of another taskset, or another version of it: number {number} of "
                f"{self._config.taskset.id!r} is {'another' if theirs is not None else 'none'} here"
            )
        return theirs

    async def act(self, task: Task, model: Endpoint) -> Outcome:
        theirs = await in_thread(self._theirs, task)
        environment = vf.load_environment(self._config)
        # Its client reads keys from the environment alone; programs of its harnesses are not given this one.
        variable = f"TRINITY_BUS_RUN_{next(_RUNS)}_API_KEY"
        os.environ[variable] = model.api_key
        client = vf.EvalClientConfig(base_url=model.base_url, api_key_var=variable)
        try:
            async with environment.serving():
                episode = await environment.run_episode(theirs, vf.ModelContext(model="policy", client=client))
        finally:
            del os.environ[variable]
        if model.failure is not None:
            raise model.failure
        return _outcome(task, episode)


def _outcome(task: Task, episode: Any) -> Outcome:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        why = "; ".join(f"{error.type}: {error.message}" for error in errors[:4])
        raise VerifiersError(f"the episode of task {task.task_id!r} has failed: {why[:1000] or 'nobody says why'}")
    if len(episode.traces) != 1:
        raise VerifiersError(f"{len(episode.traces)} agents have played task {task.task_id!r}, only one may")
    (trace,) = episode.traces
    rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    if not rewards:
        raise VerifiersError(f"no reward function has judged the episode of task {task.task_id!r}")
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    return trace.reward, {**metrics, **{f"reward/{name}": value for name, value in rewards.items()}}
