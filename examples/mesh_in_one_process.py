"""The whole loop in one process: follow four tasks to the weights that they change. Read from ``main``, at the end.

Every decision is the product's own. A ``Log`` stands in for Kafka (it encodes and decodes records), ``ScriptedEngine``
for vLLM, a table of odds for the model. Each printed line is a record, after the name of its topic.
"""

import asyncio
import math
import random
from collections import Counter, defaultdict
from functools import partial, reduce
from typing import Any

import schemas
from schemas import codec, topics
from schemas.groups import trainable
from schemas.topic import Topic
from trinity_bus.bus import Received
from trinity_bus.config import CoordinatorSettings, TrainerSettings
from trinity_bus.coordination import CoordinatorMachine, EventArrived, Origin, SyncPolicy, TaskArrived, Write
from trinity_bus.rollout import answer, registry, workflow
from trinity_bus.testing import CharacterTokenizer, ScriptedEngine
from trinity_bus.training import checkpoint
from trinity_bus.training.objectives.advantages import GRPO
from trinity_bus.training.steps import choice, samples, step_plan
from workers.explorer import outcome
from workers.explorer.executor import OrderFilter
from workers.explorer.weights import membership
from workers.trainer import batch_schedule

type Odds = dict[str, float]  # of each question with each of its answers: the model's weights
QUESTIONS, ANSWERS = {"2 + 3 = ": "5", "4 + 4 = ": "8"}, ("5", "8")
EXPLORER: dict[str, Any] = {"explorer": "explorer-0", "incarnation": "life-1"}
TRAINER: dict[str, Any] = {"trainer": "trainer-0", "incarnation": "life-1", "model": "policy"}
BOUNDS, RANDOM, SETTINGS = trainable.Bounds(0x110000, 1024), random.Random(1), TrainerSettings()  # noqa: S311
text: Any = partial(CharacterTokenizer().decode, skip_special_tokens=True)


class Log:
    def __init__(self) -> None:
        self.topics: dict[str, list[Any]] = defaultdict(list)
        self._read: Counter[tuple[str, str]] = Counter()

    def append(self, topic: Topic, record: Any) -> schemas.Position:
        raw, records = codec.encode(record), self.topics[topic.name]
        if (shown := SHOWN.get(type(record))) is not None:
            print(f"{topic.name:<16} {shown(record)}")
        records.append(Received(codec.decode(raw, *topic.records), topic, 0, len(records), None, raw, (), None, 0))
        return schemas.Position(partition=0, offset=len(records) - 1)

    def unread(self, reader: str, *wanted: Topic) -> list[Any]:
        found = [received for topic in wanted for received in self.topics[topic.name][self._read[reader, topic.name] :]]
        self._read.update((reader, received.topic.name) for received in found)
        return found


def coordinator(log: Log, machine: CoordinatorMachine) -> bool:
    events = log.unread("coordinator", topics.EXPLORER_EVENTS, topics.TRAINER_EVENTS)
    arrived = [TaskArrived(task.record, Origin(0, task.offset)) for task in log.unread("coordinator", topics.TASKS)]
    for effect in machine.handle_all([*(EventArrived(received.record) for received in events), *arrived], now=0.0):
        if isinstance(effect, Write):
            log.append(effect.topic, effect.record)
    return bool(events or arrived)


async def explorer(log: Log, engine: ScriptedEngine, orders: OrderFilter, weights: dict[int, Odds]) -> bool:
    received = log.unread("explorer", topics.MODEL_VERSIONS, topics.ROLLOUTS)
    for record in (item.record for item in received):
        if isinstance(record, schemas.ModelVersion) and membership(record, **EXPLORER):
            engine.version = version = record.version
            synced = {"version": version, "epoch": record.epoch, "checksum": str(hash(str(weights[version])))}
            log.append(topics.EXPLORER_EVENTS, schemas.WeightsSynced(**EXPLORER, model="policy", ok=True, **synced))
        elif isinstance(order := orders.handle(record), schemas.Dispatch):
            ctx = workflow.RolloutContext(engine=engine, tokenizer=engine.tokenizer, repeat_times=order.repeat_times)
            rollouts = await registry.get_workflow(order.task.workflow).run(order.task, ctx)
            encoded = answer.encode_answer(order, rollouts, "policy", asked=ctx.asked)
            group = answer.decode_answer(order, encoded, "policy")
            outcome.check_trainable(group, BOUNDS)
            position = log.append(topics.EXPERIENCES, group)
            log.append(topics.EXPLORER_EVENTS, outcome.finished(order, group, experience=position, seconds=0.0))
    return bool(received)


def trainer(log: Log, schedule: batch_schedule.BatchSchedule, weights: dict[int, Odds]) -> bool:
    for received in log.unread("trainer", topics.BATCHES):
        schedule.take(received)
    version, advantage = max(weights), GRPO(SETTINGS)
    if (due := schedule.next(version)) is None:
        return False
    entries = batch_schedule.entries_to_train(due.batch)
    fetched = [log.topics["experiences"][at.offset] for at in batch_schedule.positions_of(due.batch, entries)]
    groups = batch_schedule.groups_of(due.batch, entries, fetched)
    left_out = choice.left_out(groups, BOUNDS, train_limited=False, wants_greedy=advantage.wants_greedy)
    named = [schemas.StepGroup(task_id=entry.task_id, parts=entry.parts) for entry in entries]
    batch = {"batch_id": due.batch.batch_id, "sequence": due.batch.sequence, "next_offset": due.next_offset}
    step: dict[str, Any] = {**TRAINER, **batch, "run": "run-1", "step": version + 1, "seed": SETTINGS.seed}
    log.append(topics.STEPS, schemas.StepBegun(**step, groups=named, left_out=left_out))
    prepared = samples.prepare(choice.without(groups, left_out), version=version, advantage=advantage)
    plan = step_plan.plan_step(prepared, SETTINGS, step=version)
    weights[version + 1] = reduce(trained, plan.updates, weights[version])
    publish(log, version + 1, weights[version + 1], metrics=plan.metrics)
    return True


def trained(odds: Odds, update: step_plan.Update) -> Odds:
    after = odds.copy()
    for sample in update.samples:  # the gradient of REINFORCE, with the plan's advantages
        question, drawn = text(sample.tokens[: sample.prompt_length]), text(sample.tokens)
        weight = sample.scale * float(sample.advantages[sample.mask].sum()) / update.divisor
        total = sum(odds[question + end] for end in ANSWERS)
        for possible in (question + end for end in ANSWERS):
            after[possible] *= math.exp(4 * weight * ((possible == drawn) - odds[possible] / total))
    return after


def publish(log: Log, version: int, odds: Odds, **metrics: Any) -> None:
    address: dict[str, Any] = {"master_address": "127.0.0.1", "master_port": 1, "checksum": str(hash(str(odds)))}
    step = {**TRAINER, **address, "step": version, "version": version, "publish": SyncPolicy().publishes(version)}
    log.append(topics.TRAINER_EVENTS, schemas.StepTrained(**step, **metrics))


SHOWN: dict[type, Any] = {
    schemas.Task: lambda r: f"{r.task_id}: {r.prompt}?",
    schemas.Dispatch: lambda r: f"{r.task.task_id}: {r.repeat_times} runs on {r.explorer}, by version {r.min_version}",
    schemas.ExperienceGroup: lambda r: f"{r.task_id}: {[(text(s.tokens), s.reward) for s in r.samples()]}",
    schemas.TaskResult: lambda r: f"{r.task_id}: {r.status}, reward {r.metrics['reward']:g}",
    schemas.BatchRecord: lambda r: " ".join([r.batch_id, r.state.upper(), *(entry.task_id for entry in r.manifest)]),
    schemas.StepBegun: lambda r: f"step {r.step} trains on {r.batch_id}",
    schemas.StepTrained: lambda r: f"step {r.step} is trained: version {r.version} is available",
    schemas.ModelVersion: lambda r: f"version {r.version} for {' '.join(member.explorer for member in r.members)}",
    schemas.WeightsSynced: lambda r: f"{r.explorer} serves version {r.version}",
}


async def main() -> None:
    log, machine = Log(), CoordinatorMachine(CoordinatorSettings(batch_size=2, group_size=4))
    orders, schedule = OrderFilter(**EXPLORER), batch_schedule.BatchSchedule(checkpoint.AnnouncedSteps())
    weights = {0: {question + end: 1.0 for question in QUESTIONS for end in ANSWERS}}
    engine = ScriptedEngine(lambda q: RANDOM.choices(ANSWERS, [weights[engine.version][q + end] for end in ANSWERS])[0])
    alive = schemas.ExplorerHeartbeat(**EXPLORER, state="ready", slots=4, workflows=["math"])
    log.append(topics.EXPLORER_EVENTS, alive)
    publish(log, 0, weights[0])
    for number, (question, right) in enumerate([*QUESTIONS.items()] * 2, 1):
        log.append(topics.TASKS, schemas.Task(task_id=f"sum-{number}", workflow="math", prompt=question, answer=right))
    while coordinator(log, machine) or await explorer(log, engine, orders, weights) or trainer(log, schedule, weights):
        pass


if __name__ == "__main__":
    asyncio.run(main())
