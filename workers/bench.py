"""Every checkpoint of a run answers the same evaluations, one checkpoint after the other.

::

    broker, coordinator --> for each checkpoint: an explorer that serves it, in a pool of its own
                                      |
                                      '--> each evaluation, a batch that asks for the pool --> metrics --> bench.json
                                                                                                |
                                      next, once the explorer has ended <-----------------------'

Nothing is trained, and no version moves: all tokens of an evaluation are of its checkpoint. The topics are in a
namespace of their own. A checkpoint is held while it is served, so a trainer that goes on beside does not remove it.

Failures: a service that is given up (``trinity_bus.runtime.supervisor``), or an evaluation of which a task has failed,
ends the bench with one line; what was found out by then is in ``bench.json``, and a bench in the same folder goes on
after it.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from schemas.record import Metrics
from trinity_bus.client import Client
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.runtime.plain_files import read_plain, write_plain
from trinity_bus.runtime.supervisor import ServiceSpec, Supervisor
from trinity_bus.training.checkpoint import held, of_step
from workers.demo.report import chart
from workers.demo.settings import demo_namespace
from workers.local import broker, supervised, while_watched
from workers.runs import command
from workers.taskset.dataset import EvalSet

RESULTS: Final = "bench.json"
PLOT: Final = "bench.png"

type Results = dict[int, Metrics]  # Step of a checkpoint to the metrics of all its evaluations

_RESULTS: Final = TypeAdapter[Results](dict[int, Metrics])
_MAX_BYTES: Final = 64 << 20
_SERVICES: Final = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class BenchError(TrinityError):
    """A checkpoint could not be evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    checkpoints: Path  # Folder of a trainer's checkpoints
    steps: Sequence[int]  # Of the checkpoints
    evals: Sequence[EvalSet]
    run_dir: Path  # Where results and logs go


async def run_bench(settings: Settings, bench: Bench, note: Callable[[str], None]) -> Results:
    """Evaluate all checkpoints that are not in the results yet."""
    results = read_results(bench.run_dir)
    todo = [step for step in bench.steps if step not in results]
    if not todo:
        return results
    own = settings.model_copy(update={"kafka": demo_namespace(settings.kafka, bench.run_dir.name)})
    async with (
        broker(own, bench.run_dir, note) as found,
        supervised(bench.run_dir, note, [_spec("coordinator", "coordinator", found.kafka)]) as supervisor,
        Client(settings.model_copy(update={"kafka": found.kafka}), name="bench") as client,
    ):
        for number, step in enumerate(todo, 1):
            note(f"step {step}: checkpoint {number} of {len(todo)}")
            examination = _examine(client, supervisor, bench, step, found.kafka)
            results[step] = await while_watched(examination, found.check, supervisor.check)
            write_results(bench.run_dir, results)
    return results


async def _examine(client: Client, supervisor: Supervisor, bench: Bench, step: int, kafka: KafkaSettings) -> Metrics:
    name = f"step-{step}"
    metrics: Metrics = {}
    with _kept(bench.checkpoints, step) as folder:
        own = {
            "explorer.name": name,
            "explorer.pool": name,
            "explorer.follows": "none",
            "explorer.model_path": str(folder.resolve()),
        }
        supervisor.launch(_spec(name, "explorer", kafka, **own))
        for evaluation in bench.evals:
            tasks = [task.model_copy(update={"pool": name}) for task in evaluation.of_version("bench", step)]
            handle = await client.submit(tasks, batch_id=f"{step}/{evaluation.name}", batch_type="eval")
            async for result in handle:
                if result.status != "completed":
                    raise BenchError(f"step {step}: task {result.task_id} is {result.status}: {result.error}")
            metrics |= (await handle.result()).metrics
        await asyncio.to_thread(supervisor.stop_one, name)
    return metrics


@contextmanager
def _kept(checkpoints: Path, step: int) -> Iterator[Path]:
    folder = of_step(checkpoints, step)
    if folder is None:
        raise BenchError(f"{checkpoints} has no checkpoint of step {step} any more: see trainer.keep_checkpoints")
    with held(folder):
        yield folder


def _spec(name: str, service: str, kafka: KafkaSettings, **own: str) -> ServiceSpec:
    told = {
        "mesh.mode": "bench",
        "mesh.namespace": kafka.namespace,
        "kafka.bootstrap_servers": str(kafka.bootstrap_servers),
        **own,
    }
    options = [part for path, value in told.items() for part in ("--set", f"{path}={value}")]
    env = {name: value for name, value in os.environ.items() if name != "TRINITY_BUS_HEALTH__PORT"}
    return ServiceSpec(name=name, command=command(*options, "run", service), env=env | _SERVICES, again=True)


def read_results(folder: Path) -> Results:
    """Return what an earlier bench in this folder has found out; nothing where there was none."""
    path = folder / RESULTS
    try:
        return _RESULTS.validate_json(read_plain(path, _MAX_BYTES))
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise ConfigError(f"{path} is not what a bench has written: {error.errors()[0]['msg']}") from error


def write_results(folder: Path, results: Mapping[int, Metrics]) -> None:
    """Write what is known, in one rename."""
    text = json.dumps({str(step): results[step] for step in sorted(results)}, indent=2)
    write_plain(folder / RESULTS, text + "\n")


def rewards(results: Results) -> list[str]:
    """Return the names of rewards, ``eval/<set>/reward/mean@n`` and its like."""
    first = next(iter(results.values()), {})
    return [name for name in first if "/reward/" in name]


def table(results: Results) -> Table:
    names = rewards(results)
    found = Table("step", *(name.removeprefix("eval/").replace("/reward/", " ") for name in names))
    for step in sorted(results):
        values = (results[step].get(name) for name in names)
        found.add_row(str(step), *("" if value is None else f"{value:.3f}" for value in values))
    return found


def plot(results: Results, path: Path) -> None:
    """Draw the mean reward of each set over steps, with the best and the worst of the most runs around it."""
    steps = sorted(results)
    with chart(path) as axes:
        for mean in (name for name in rewards(results) if "/mean@" in name):
            (line,) = axes.plot(steps, [results[step][mean] for step in steps], "o-", label=mean.removeprefix("eval/"))
            best, worst = mean.replace("/mean@", "/best@"), mean.replace("/mean@", "/worst@")
            if best in results[steps[0]]:
                low, high = ([results[step][name] for step in steps] for name in (worst, best))
                axes.fill_between(steps, low, high, alpha=0.15, color=line.get_color())
        axes.set(xlabel="step", ylabel="reward")
