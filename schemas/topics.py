"""The topics of the mesh, as data: topics are created from this table, and documented from it.

Sizes: ``max_message_bytes`` is Kafka's limit for one batch of records. It is the largest record plus room for its key,
its headers and Kafka's own framing, so whatever the codec lets a writer encode, the broker accepts.

Compaction loses nothing that matters: a topic is compacted only where the last record of a key tells all that the
earlier ones told. Closed segments wait for ``min_compaction_lag_ms``, so that live readers see every step of the way,
and tombstones outlast any restart. The coordinator writes tombstones for ended batches and old versions, so that these
topics are bounded too.

What is unread or untrained has no time limit. Where a topic names a ``keep_ms`` no time of Kafka's deletes its records:
the coordinator does, those that are older than that *and* that nobody needs any more; see
:mod:`trinity_bus.coordination.retention`. ``retention_bytes`` is the budget above which Kafka deletes the oldest in any
case; there is an alert before. Times are those of the brokers, not of whoever writes: a task that says it is a month
old is kept like any other.

Rights on a cluster are on whole topics. So a topic has the writers that may say *all* that its records say, and what
others may say has a topic of its own.
"""

from schemas.batch import BatchRecord, BatchSkipped
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
from schemas.result import TaskResult
from schemas.rollout import Cancel, Dispatch, SetPace
from schemas.step import StepBegun, StepEnded
from schemas.task import Task
from schemas.taskset import TasksetPosition
from schemas.token_figures import TokenFigures
from schemas.topic import DAY_MS, MIB, ROOM, Topic
from schemas.turn import Turn

_HOUR_MS = DAY_MS // 24

TASKS = Topic(
    name="tasks",
    key="task id",
    partitions=8,
    cleanup="delete",
    keep_ms=7 * DAY_MS,
    retention_bytes=4 << 30,
    max_message_bytes=Task.MAX_BYTES + ROOM,
    description="What the mesh is asked to do. Anyone may write here, msgpack or JSON.",
    records=(Task,),
    writers=("producer", "operator", "taskset"),
    readers=("coordinator", "operator"),
)
COMMANDS = Topic(
    name="commands",
    key="batch id, or task id",
    partitions=1,
    cleanup="delete",
    keep_ms=DAY_MS,
    retention_bytes=1 << 30,
    description="What producers ask of the coordinator: submit a batch, finalize or abort one of theirs, count "
    "experiences that they have made; msgpack or JSON. One partition, so that commands are carried out in the order of "
    "their sending.",
    records=(SubmitBatch, FinalizeBatch, AbortBatch, CancelTasks, Contribute),
    writers=("gateway", "producer", "operator"),
    readers=("coordinator",),
)
OPERATOR_COMMANDS = Topic(
    name="operator-commands",
    key="batch id, model name, or coordinator-state",
    partitions=1,
    cleanup="delete",
    keep_ms=DAY_MS,
    retention_bytes=1 << 30,
    description="What only operators may ask: abort anybody's batch or cancel its tasks, skip a batch, say which "
    "version is served, roll back, end an upgrade; msgpack or JSON.",
    records=(AbortBatch, CancelTasks, SkipBatch, PublishVersion, RollBack, FinalizeUpgrade),
    writers=("operator",),
    readers=("coordinator",),
)
REPLIES = Topic(
    name="replies",
    key="client",
    partitions=1,
    cleanup="delete",
    retention_ms=_HOUR_MS,
    description="The answer to each command.",
    records=(CommandReply,),
    writers=("coordinator",),
    readers=("gateway", "producer", "operator"),
)
ROLLOUTS = Topic(
    name="rollouts",
    key="explorer name; the partition is its lane",
    partitions=16,
    lanes=True,
    cleanup="delete",
    retention_ms=DAY_MS,
    max_message_bytes=Dispatch.MAX_BYTES + ROOM,
    description="Orders to one explorer: run this task now, stop it, send fewer heartbeats, or end because another has "
    "your name.",
    records=(Dispatch, Cancel, SetPace, Superseded),
    writers=("coordinator",),
    readers=("explorer", "operator"),
)
EXPERIENCES = Topic(
    name="experiences",
    key="task id",
    partitions=8,
    any_partition=True,
    cleanup="delete",
    keep_ms=7 * DAY_MS,
    retention_bytes=8 << 30,
    max_message_bytes=ExperienceGroup.MAX_BYTES + ROOM,
    description="The samples of one attempt at one task: token ids, logprobs, masks, rewards, versions.",
    records=(ExperienceGroup,),
    writers=("explorer", "gateway", "producer", "operator"),
    readers=("coordinator", "trainer", "producer", "operator"),
)
TURNS = Topic(
    name="turns",
    key="task id",
    partitions=8,
    cleanup="delete",
    keep_ms=_HOUR_MS,
    retention_bytes=4 << 30,
    max_message_bytes=Turn.MAX_BYTES + ROOM,
    description="Completed turns of attempts that take several: what the engine drew and what tools returned, for the "
    "next attempt should this one be lost.",
    records=(Turn,),
    writers=("explorer", "gateway"),
    readers=("explorer", "gateway"),
)
EXPLORER_EVENTS = Topic(
    name="explorer-events",
    key="explorer name",
    partitions=8,
    cleanup="delete",
    keep_ms=DAY_MS,
    retention_bytes=1 << 30,
    description="What explorers say happened: heartbeats, rollouts finished, weights taken, states of runners.",
    records=(ExplorerHeartbeat, ExplorerLeft, RolloutFinished, RunnersReport, WeightsSynced),
    sender="explorer",
    writers=("explorer",),
    readers=("coordinator", "explorer", "trainer", "gateway", "producer", "operator"),
)
TRAINER_EVENTS = Topic(
    name="trainer-events",
    key="trainer name",
    partitions=1,
    cleanup="delete",
    keep_ms=DAY_MS,
    retention_bytes=1 << 30,
    description="What the trainer says happened: heartbeats, steps trained, versions that can be had, or cannot.",
    records=(TrainerHeartbeat, StepTrained, VersionRefused),
    sender="trainer",
    writers=("trainer",),
    readers=("coordinator", "operator"),
)
COORDINATOR_EVENTS = Topic(
    name="coordinator-events",
    key="coordinator name, model name, or trainer name",
    partitions=1,
    cleanup="delete",
    retention_ms=DAY_MS,
    description="What the coordinator says: heartbeats with its figures, which version it wants of the trainer, and "
    "that a trainer is to end because another has its name.",
    records=(CoordinatorHeartbeat, VersionWanted, Superseded),
    writers=("coordinator",),
    readers=("trainer", "producer", "operator"),
)
EVENTS = (EXPLORER_EVENTS, TRAINER_EVENTS, COORDINATOR_EVENTS)
"""What happened. A topic for each author, because rights are on topics: what moves the model, for one, only the trainer
may say."""
BATCHES = Topic(
    name="batches",
    key="batch id, or skip and batch id",
    partitions=1,
    cleanup="compact",
    max_message_bytes=BatchRecord.MAX_BYTES + ROOM,
    min_compaction_lag_ms=_HOUR_MS,
    segment_ms=DAY_MS,
    segment_bytes=64 * MIB,
    description="A batch after each transition; a finalized one names the experiences that count. Their order is the "
    "order of training, hence the one partition. Of those that have ended and are trained, the last ones are kept.",
    records=(BatchRecord, BatchSkipped),
    writers=("coordinator",),
    readers=("trainer", "producer", "operator"),
)
STEPS = Topic(
    name="steps",
    key="trainer name/step, with stages trainer name/stage/step, and /ended behind it",
    partitions=1,
    cleanup="compact",
    max_message_bytes=StepBegun.MAX_BYTES + ROOM,
    min_compaction_lag_ms=_HOUR_MS,
    segment_ms=DAY_MS,
    segment_bytes=64 * MIB,
    description="What each step is about to train on, and what it leaves out and why, written before it begins: the "
    "last thousand of each trainer. A step that is taken again after a crash obeys it. Behind it, the figures of steps "
    "that make no version.",
    records=(StepBegun, StepEnded),
    writers=("trainer",),
    readers=("trainer", "operator"),
)
TOKEN_FIGURES = Topic(
    name="token-figures",
    key="task id",
    partitions=1,
    cleanup="delete",
    retention_ms=7 * DAY_MS,
    retention_bytes=2 << 30,
    max_message_bytes=TokenFigures.MAX_BYTES + ROOM,
    segment_bytes=256 * MIB,
    description="What the trainer computes at single tokens, of some groups of each step: the entropy, and how far its "
    "log-probability is from the engine's. For people who look: nothing in the mesh needs it.",
    records=(TokenFigures,),
    writers=("trainer",),
    readers=("operator",),
)
DEMONSTRATIONS = Topic(
    name="demonstrations",
    key="example id",
    partitions=1,
    cleanup="delete",
    retention_bytes=8 << 30,
    max_message_bytes=Demonstration.MAX_BYTES + ROOM,
    description="How prompts are to be answered, for a trainer that is told to learn from them; msgpack or JSON.",
    records=(Demonstration,),
    writers=("producer", "operator"),
    readers=("trainer", "operator"),
)
PREFERENCES = Topic(
    name="preferences",
    key="example id",
    partitions=1,
    cleanup="delete",
    retention_bytes=8 << 30,
    max_message_bytes=Preference.MAX_BYTES + ROOM,
    description="Which of two answers to a prompt is the better one, likewise.",
    records=(Preference,),
    writers=("producer", "operator"),
    readers=("trainer", "operator"),
)
RESULTS = Topic(
    name="results",
    key="task id",
    partitions=8,
    any_partition=True,
    cleanup="delete",
    retention_ms=7 * DAY_MS,
    description="The one accepted answer to each task, the moment it is accepted.",
    records=(TaskResult,),
    writers=("coordinator",),
    readers=("taskset", "producer", "operator"),
)
MODEL_VERSIONS = Topic(
    name="model-versions",
    key="model name",
    partitions=1,
    cleanup="compact",
    min_compaction_lag_ms=_HOUR_MS,
    segment_ms=DAY_MS,
    segment_bytes=16 * MIB,
    description="The version to be served, and who takes part in moving its weights.",
    records=(ModelVersion,),
    writers=("coordinator",),
    readers=("explorer", "trainer", "taskset", "operator"),
)
TASKSETS = Topic(
    name="tasksets",
    key="taskset name",
    partitions=1,
    cleanup="compact",
    segment_ms=DAY_MS,
    segment_bytes=16 * MIB,
    description="How far each dataset has been turned into tasks.",
    records=(TasksetPosition,),
    writers=("taskset",),
    readers=("taskset",),
)
VERSION_HISTORY = Topic(
    name="version-history",
    key="model name/version",
    partitions=1,
    cleanup="compact",
    segment_ms=DAY_MS,
    segment_bytes=16 * MIB,
    description="The versions that were published, the last thousand of them: step, metrics, checksum, checkpoint.",
    records=(PublishedVersion,),
    writers=("coordinator",),
    readers=("operator",),
)
DEAD_LETTERS = Topic(
    name="dead-letters",
    key="as it came",
    partitions=1,
    cleanup="delete",
    retention_ms=30 * DAY_MS,
    retention_bytes=4 << 30,
    max_message_bytes=ExperienceGroup.MAX_BYTES + 2 * ROOM,
    description="Records that the coordinator could not take, byte for byte, with reason and origin in headers. Of "
    "what is larger than its topic allows, and of batches that cannot be unpacked, the first KiB, with size and hash. "
    "That of a task ends the task.",
    records=(),
    writers=("coordinator",),
    readers=("taskset", "producer", "operator"),
)
EXPLORER_DEAD_LETTERS = Topic(
    name="explorer-dead-letters",
    key="as it came",
    partitions=1,
    cleanup="delete",
    retention_ms=DEAD_LETTERS.retention_ms,
    retention_bytes=1 << 30,
    max_message_bytes=DEAD_LETTERS.max_message_bytes,
    description="The same of explorers: orders that they could not read.",
    records=(),
    writers=("explorer",),
    readers=("operator",),
)
TRAINER_DEAD_LETTERS = Topic(
    name="trainer-dead-letters",
    key="as it came",
    partitions=1,
    cleanup="delete",
    retention_ms=DEAD_LETTERS.retention_ms,
    retention_bytes=1 << 30,
    max_message_bytes=DEAD_LETTERS.max_message_bytes,
    description="The same of the trainer: batches and versions that it could not read.",
    records=(),
    writers=("trainer",),
    readers=("operator",),
)
ALL_DEAD_LETTERS = (DEAD_LETTERS, EXPLORER_DEAD_LETTERS, TRAINER_DEAD_LETTERS)
"""What could not be taken. A topic for each author, too."""
COORDINATOR_STATE = Topic(
    name=STATE_TOPIC,
    key="entity",
    partitions=1,
    cleanup="compact",
    max_message_bytes=BatchRecord.MAX_BYTES + ROOM,
    delete_retention_ms=7 * DAY_MS,
    segment_ms=_HOUR_MS,
    segment_bytes=64 * MIB,
    description="The coordinator's changelog, from which it rebuilds its state. Private: its records are no contract.",
    records=(),
    writers=("coordinator",),
    readers=("coordinator",),
)

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
"""All of them, in the order of the way of the data."""

COORDINATOR_INPUTS = (TASKS, COMMANDS, OPERATOR_COMMANDS, EXPLORER_EVENTS, TRAINER_EVENTS)
"""What the coordinator decides upon. Its positions in them are part of its state."""
