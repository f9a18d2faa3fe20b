"""The topics of the mesh, as data. Topics are created from this table and documented from it.

Sizes: ``max_message_bytes`` is Kafka's limit for one batch of records. Where it is not given, it is the largest record
plus room for its key, its headers and Kafka's own framing, so whatever the codec lets a writer encode, the broker
accepts.

Compaction: a topic is compacted only where the last record of a key replaces all earlier ones. Closed segments wait
for ``min_compaction_lag_ms``, so that live readers see every transition. Tombstones outlast any restart. The
coordinator writes tombstones for ended batches and old versions, which bounds these topics.

Retention: unread and untrained records have no time limit. Kafka deletes no record by time where a topic has
``keep_ms``. The coordinator deletes records that are older than that *and* no longer needed; see
:mod:`trinity_bus.coordination.retention`. Above the budget ``retention_bytes`` Kafka deletes the oldest records in
any case; an alert fires before. Timestamps are the brokers', not the writers'.

Rights: brokers grant rights on whole topics. Each topic's writers may write every record type of that topic; a record
type with other writers has another topic.
"""

from dataclasses import replace
from functools import partial

from schemas.batch import BatchRecord, BatchSkipped, TaskResult
from schemas.command import (
    STATE_TOPIC,
    AbortBatch,
    CancelTasks,
    CommandReply,
    Contribute,
    FinalizeBatch,
    FinalizeUpgrade,
    PublishVersion,
    RollBack,
    SkipBatch,
    SubmitBatch,
)
from schemas.event import (
    CoordinatorHeartbeat,
    ExplorerHeartbeat,
    ExplorerLeft,
    RolloutFinished,
    RunnersReport,
    StepTrained,
    Superseded,
    TrainerHeartbeat,
    VersionRefused,
    VersionWanted,
    WeightsSynced,
)
from schemas.examples import Demonstration, Preference
from schemas.experience import ExperienceGroup
from schemas.model_version import ModelVersion, PublishedVersion
from schemas.rollout import Cancel, Dispatch, SetPace
from schemas.step import StepBegun, StepEnded
from schemas.task import Task
from schemas.taskset import TasksetPosition
from schemas.token_figures import TokenFigures
from schemas.topic import DAY_MS, MIB, ROOM, Topic
from schemas.turn import PartialResponses, Turn

_HOUR_MS = DAY_MS // 24
_kept_a_day = partial(Topic, keep_ms=DAY_MS, retention_bytes=1 << 30)
_compacted = partial(Topic, cleanup="compact", segment_ms=DAY_MS, segment_bytes=16 * MIB)

TASKS = Topic(
    name="tasks",
    key="task id",
    partitions=8,
    keep_ms=7 * DAY_MS,
    retention_bytes=4 << 30,
    description="Tasks for the mesh. Any producer may write here, msgpack or JSON.",
    records=(Task,),
    writers=("producer", "operator", "taskset"),
    readers=("coordinator", "operator"),
)
COMMANDS = _kept_a_day(
    name="commands",
    key="batch id, or task id",
    description="Commands of producers: submit a batch, finalize or abort one of their own, contribute experiences; "
    "msgpack or JSON. One partition, so that commands are executed in the order in which they were sent.",
    records=(SubmitBatch, FinalizeBatch, AbortBatch, CancelTasks, Contribute),
    writers=("gateway", "producer", "operator"),
    readers=("coordinator",),
)
OPERATOR_COMMANDS = _kept_a_day(
    name="operator-commands",
    key="batch id, model name, or coordinator-state",
    description="Commands of operators alone: abort any batch or cancel its tasks, skip a batch, choose the version "
    "that is served, roll back, finalize an upgrade; msgpack or JSON.",
    records=(AbortBatch, CancelTasks, SkipBatch, PublishVersion, RollBack, FinalizeUpgrade),
    writers=("operator",),
    readers=("coordinator",),
)
REPLIES = Topic(
    name="replies",
    key="client",
    retention_ms=_HOUR_MS,
    description="The reply to each command.",
    records=(CommandReply,),
    writers=("coordinator",),
    readers=("gateway", "producer", "operator"),
)
ROLLOUTS = Topic(
    name="rollouts",
    key="explorer name; the partition is its lane",
    partitions=16,
    lanes=True,
    retention_ms=DAY_MS,
    description="Orders to one explorer: run a part of a task, cancel it, change the pace of heartbeats, or end "
    "because another explorer has the same name.",
    records=(Dispatch, Cancel, SetPace, Superseded),
    writers=("coordinator",),
    readers=("explorer", "operator"),
)
EXPERIENCES = Topic(
    name="experiences",
    key="task id",
    partitions=8,
    any_partition=True,
    keep_ms=7 * DAY_MS,
    retention_bytes=8 << 30,
    description="The samples of one attempt at a task: token ids, log-probabilities, masks, rewards, versions.",
    records=(ExperienceGroup,),
    writers=("explorer", "gateway", "producer", "operator"),
    readers=("coordinator", "trainer", "producer", "operator"),
)
TURNS = Topic(
    name="turns",
    key="task id",
    partitions=8,
    keep_ms=_HOUR_MS,
    retention_bytes=4 << 30,
    description="Completed turns of conversations: the engine's responses and the tools' results; and the first tokens "
    "of long responses that are not complete. The next attempt continues from them if this one is lost.",
    records=(Turn, PartialResponses),
    writers=("explorer", "gateway"),
    readers=("explorer", "gateway"),
)
EXPLORER_EVENTS = _kept_a_day(
    name="explorer-events",
    key="explorer name",
    partitions=8,
    description="Events of explorers: heartbeats, finished rollouts, synced weights, states of runners.",
    records=(ExplorerHeartbeat, ExplorerLeft, RolloutFinished, RunnersReport, WeightsSynced),
    sender="explorer",
    writers=("explorer",),
    readers=("coordinator", "explorer", "trainer", "gateway", "producer", "operator"),
)
TRAINER_EVENTS = _kept_a_day(
    name="trainer-events",
    key="trainer name",
    description="Events of the trainer: heartbeats, trained steps, versions that are available or refused.",
    records=(TrainerHeartbeat, StepTrained, VersionRefused),
    sender="trainer",
    writers=("trainer",),
    readers=("coordinator", "operator"),
)
COORDINATOR_EVENTS = Topic(
    name="coordinator-events",
    key="coordinator name, model name, or trainer name",
    retention_ms=DAY_MS,
    description="Events of the coordinator: heartbeats with its counts, the version that it wants from the trainer, "
    "and orders to a trainer to end because another trainer has the same name.",
    records=(CoordinatorHeartbeat, VersionWanted, Superseded),
    writers=("coordinator",),
    readers=("trainer", "producer", "operator"),
)
# one topic for each author, because rights are on topics: only the trainer may report a new version
EVENTS = (EXPLORER_EVENTS, TRAINER_EVENTS, COORDINATOR_EVENTS)
BATCHES = _compacted(
    name="batches",
    key="batch id, or skip and batch id",
    cloud_events=True,
    min_compaction_lag_ms=_HOUR_MS,
    segment_bytes=64 * MIB,
    description="A batch after each transition; a finalized one names the experiences that count. One partition, "
    "because the order of batches is the order of training. Of the batches that have ended and are "
    "trained, the newest are kept.",
    records=(BatchRecord, BatchSkipped),
    writers=("coordinator",),
    readers=("trainer", "producer", "operator"),
)
STEPS = _compacted(
    name="steps",
    key="trainer name/step, with stages trainer name/stage/step, and /ended behind it",
    min_compaction_lag_ms=_HOUR_MS,
    segment_bytes=64 * MIB,
    description="What each step trains on, what it leaves out and why, written before the step begins: the last "
    "thousand steps of each trainer. A step that is repeated after a crash obeys it. Also the metrics of "
    "steps that publish no version.",
    records=(StepBegun, StepEnded),
    writers=("trainer",),
    readers=("trainer", "operator"),
)
TOKEN_FIGURES = Topic(
    name="token-figures",
    key="task id",
    retention_ms=7 * DAY_MS,
    retention_bytes=2 << 30,
    segment_bytes=256 * MIB,
    description="Metrics of single tokens, for some groups of each step: the entropy, and the difference between the "
    "trainer's and the engine's log-probability. For the console; nothing else in the mesh needs it.",
    records=(TokenFigures,),
    writers=("trainer",),
    readers=("operator",),
)
DEMONSTRATIONS = Topic(
    name="demonstrations",
    key="example id",
    retention_bytes=8 << 30,
    description="Prompts with the responses to learn, for supervised fine-tuning; msgpack or JSON.",
    records=(Demonstration,),
    writers=("producer", "operator"),
    readers=("trainer", "operator"),
)
PREFERENCES = Topic(
    name="preferences",
    key="example id",
    retention_bytes=8 << 30,
    description="Prompts with a chosen and a rejected response, for preference training; msgpack or JSON.",
    records=(Preference,),
    writers=("producer", "operator"),
    readers=("trainer", "operator"),
)
RESULTS = Topic(
    name="results",
    key="task id",
    cloud_events=True,
    partitions=8,
    any_partition=True,
    retention_ms=7 * DAY_MS,
    description="The one accepted result of each task, written as soon as it is accepted.",
    records=(TaskResult,),
    writers=("coordinator",),
    readers=("taskset", "producer", "operator"),
)
MODEL_VERSIONS = _compacted(
    name="model-versions",
    key="model name",
    cloud_events=True,
    min_compaction_lag_ms=_HOUR_MS,
    description="The version to serve, and the members that take part in its weight sync.",
    records=(ModelVersion,),
    writers=("coordinator",),
    readers=("explorer", "trainer", "taskset", "operator"),
)
TASKSETS = _compacted(
    name="tasksets",
    key="taskset name",
    description="The position of each task set in its dataset.",
    records=(TasksetPosition,),
    writers=("taskset",),
    readers=("taskset",),
)
VERSION_HISTORY = _compacted(
    name="version-history",
    key="model name/version",
    description="The last thousand published versions: step, metrics, checksum, checkpoint.",
    records=(PublishedVersion,),
    writers=("coordinator",),
    readers=("operator",),
)
DEAD_LETTERS = Topic(
    name="dead-letters",
    key="unchanged",
    cloud_events=True,
    retention_ms=30 * DAY_MS,
    retention_bytes=4 << 30,
    max_message_bytes=ExperienceGroup.MAX_BYTES + 2 * ROOM,
    description="Records that the coordinator refused, byte for byte, with reason and origin in headers. Of a record "
    "that is larger than its topic allows, and of a Kafka batch that cannot be unpacked, the first KiB "
    "with size and hash. A task's dead letter ends the task.",
    writers=("coordinator",),
    readers=("taskset", "producer", "operator"),
)
EXPLORER_DEAD_LETTERS = replace(
    DEAD_LETTERS,
    name="explorer-dead-letters",
    retention_bytes=1 << 30,
    description="Orders that an explorer could not decode.",
    writers=("explorer",),
    readers=("operator",),
)
TRAINER_DEAD_LETTERS = replace(
    DEAD_LETTERS,
    name="trainer-dead-letters",
    retention_bytes=1 << 30,
    description="Batches and versions that the trainer could not decode.",
    writers=("trainer",),
    readers=("operator",),
)
# refused records, one topic for each author
ALL_DEAD_LETTERS = (DEAD_LETTERS, EXPLORER_DEAD_LETTERS, TRAINER_DEAD_LETTERS)
COORDINATOR_STATE = Topic(
    name=STATE_TOPIC,
    key="entity",
    cleanup="compact",
    max_message_bytes=BatchRecord.MAX_BYTES + ROOM,
    delete_retention_ms=7 * DAY_MS,
    segment_ms=_HOUR_MS,
    segment_bytes=64 * MIB,
    description="The coordinator's changelog, from which it rebuilds its state. Private: its records are no contract.",
    writers=("coordinator",),
    readers=("coordinator",),
)

# in the order of the data flow
TOPICS = (
    TASKS,
    COMMANDS,
    OPERATOR_COMMANDS,
    REPLIES,
    ROLLOUTS,
    EXPERIENCES,
    TURNS,
    *EVENTS,
    RESULTS,
    BATCHES,
    STEPS,
    TOKEN_FIGURES,
    DEMONSTRATIONS,
    PREFERENCES,
    MODEL_VERSIONS,
    TASKSETS,
    VERSION_HISTORY,
    *ALL_DEAD_LETTERS,
    COORDINATOR_STATE,
)

# its positions in them are part of the coordinator's state
COORDINATOR_INPUTS = (TASKS, COMMANDS, OPERATOR_COMMANDS, EXPLORER_EVENTS, TRAINER_EVENTS)
