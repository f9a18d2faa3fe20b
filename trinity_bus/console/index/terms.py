"""What the index can be asked, how much at once, and what it answers; each error is one line for people.

Times are seconds since the Unix epoch, by the log. Texts were written by models and by strangers: whoever shows one
escapes it. Each is cut at ``HEAD_CHARS``; all of it is where the row says that the record lies on the log.
"""

from typing import Final, Literal, Self

from msgspec import Struct

from schemas.batch import BatchRecord, TaskStatus
from schemas.errors import TrinityError, shown
from schemas.model_version import PublishedVersion
from schemas.record import MAX_COUNT, BatchType, Metrics
from schemas.step import LeftOut

HEAD_CHARS: Final = 200  # Characters of a text that the index keeps

type EventKind = Literal["sent", "dispatched", "cancelled", "finished", "experience", "begun", "result", "dead_letter"]


class Place(Struct, frozen=True):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


class SamplePlace(Struct, frozen=True, order=True):
    """Which sample: its group's place in ``experiences``, and its number in it. For ever the same, so fit for links."""

    partition: int
    offset: int
    number: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raise ValueError where ``text`` is no place."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            raise ValueError(f"{text[:80]!r} is no sample; expected partition-offset-number")
        return cls(*map(int, parts))


class RowPage[R](Struct, frozen=True):
    rows: list[R]
    after: str | None = None  # To ask for the rows behind these; None: there are none
    # Where a search took too long to fill the page: it got back to this time. ``after`` goes on from there.
    searched_back_to: float | None = None


class PassedOver(Struct, frozen=True):
    """Records of the log that are in no answer."""

    unreadable: dict[str, int]  # By topic: those that could not be read
    lost: int  # Those that retention had deleted before they were read

    @property
    def line(self) -> str:
        """One line for people; empty where there are none."""
        told = [f"{count:,} of {topic} could not be read" for topic, count in sorted(self.unreadable.items())]
        if self.lost:
            told.append(f"{self.lost:,} were deleted by retention before they were read")
        return f"Records that are not shown: {', '.join(told)}." if told else ""


class Extent(Struct, frozen=True):
    first_at: float | None  # Time of the oldest record; None: the index is empty
    last_at: float | None
    samples: int
    dead_letters: int


class BatchRow(Struct, frozen=True):
    record: BatchRecord  # Its last, without what it lists
    reward: float | None  # Mean over its tasks, once it is finalized
    changed_at: float
    trained_as: int | None  # The step that was begun with it
    trained_by: str | None  # The trainer that began it


class BatchDetail(Struct, frozen=True):
    row: BatchRow
    transitions: list[tuple[str, float]]  # States, and when: as far as the log had kept them when they were read


class TrainerRow(Struct, frozen=True):
    trainer: str
    follows: str | None  # The trainer whose steps it takes once more
    step: int  # The last one
    last_at: float  # Of its last word on a step


class StepName(Struct, frozen=True):
    step: int
    trainer: str
    follows: str | None


class StepRow(Struct, frozen=True):
    step: int
    model: str
    trainer: str
    run: str | None  # None where only its end is on the log
    batch_id: str | None
    sequence: int | None
    begun_at: float | None
    trained_at: float | None  # None: it is under way, or it was ended
    seconds: float | None
    groups: int
    samples: int  # Trained on
    left_out: int  # Samples that are not
    replayed: int  # Groups of earlier batches
    examples: int  # Demonstrations and preferences
    skipped: str | None  # Why it changes nothing
    follows: str | None
    reward: float | None  # Mean reward of the samples of its groups


class StepDetail(Struct, frozen=True):
    row: StepRow
    metrics: Metrics
    left_out: list[LeftOut]  # The first ``MAX_LIMIT``
    checksum: str | None


class GroupRow(Struct, frozen=True):
    """What one attempt at a task yielded: one record of ``experiences``."""

    partition: int
    offset: int
    at: float
    task_id: str
    attempt: int
    batch_id: str
    batch_type: BatchType
    workflow: str
    model: str
    explorer: str
    samples: int
    reward_mean: float | None  # Over those that have a reward
    reward_min: float | None
    reward_max: float | None
    version_min: int
    version_max: int
    prompt_tokens: int  # Of the first sample
    response_tokens: int  # Of all
    prompt: str | None  # Beginning of the first sample's; None without a tokenizer
    trace_id: str | None
    # Whether all runs of the task have the same reward, those of other parts too, so that none is better
    teaches_nothing: bool
    trained_in: list[StepName]  # Steps that were begun with it


class SampleRow(Struct, frozen=True):
    place: SamplePlace
    at: float
    task_id: str
    run_id: int
    reward: float | None
    version_min: int
    version_max: int
    prompt_tokens: int
    response_tokens: int
    logprob: float | None  # Mean over the response tokens that are the model's own
    finish_reason: str
    response: str | None  # Its beginning; None without a tokenizer


class SampleUse(Struct, frozen=True):
    step: StepName
    begun_at: float
    replayed: bool
    left_out: str | None  # The reason; None: it was trained on
    detail: str
    # Where what the step has told of its tokens lies: see ``PastRecords``. None: it has told nothing.
    figures: Place | None = None


class GroupUse(Struct, frozen=True):
    step: StepName
    begun_at: float
    left_out: list[LeftOut]  # What it does not train on, of the whole group


class WholeGroup(Struct, frozen=True):
    """All that the attempts at a task have yielded that count together: the trainer's group."""

    parts: list[GroupRow]  # In their order; one but for a task that was split
    missing: int  # Parts that are not there: not yet, or not any more
    uses: list[GroupUse]  # Those of live trainers first

    def first_of(self, partition: int, offset: int) -> int:
        """Return the place of a part's first sample in the whole."""
        first = 0
        for part in self.parts:
            if (part.partition, part.offset) == (partition, offset):
                return first
            first += part.samples
        raise ValueError(f"{partition}-{offset} is no part of it")


class SampleDetail(Struct, frozen=True):
    """One sample, its group and what became of it. Its tokens are on the log: see ``PastRecords``."""

    row: SampleRow
    group: GroupRow
    fates: list[SampleUse]


class TaskEvent(Struct, frozen=True):
    at: float
    kind: EventKind
    attempt: int | None
    who: str | None  # The producer, explorer or trainer that it was
    text: str  # For people: a status, an error, a reason
    place: Place  # The record that says so


class TaskTimeline(Struct, frozen=True):
    task_id: str
    workflow: str | None
    batch_id: str | None
    producer: str | None
    prompt: str | None  # Its beginning, of conversations that of the last message
    answer: str | None
    status: TaskStatus | None  # None: it has no result yet
    error: str | None
    events: list[TaskEvent]  # In the order of time, the first ``MAX_LIMIT``
    groups: list[GroupRow]  # Of all attempts, also those that do not count


class Bin(Struct, frozen=True):
    """A bar of a histogram: ``low`` counts to it, and ``high`` to the next, but for the last."""

    low: float
    high: float
    count: int


class Histogram(Struct, frozen=True):
    bins: list[Bin]
    samples: int
    without_reward: int
    newest_only: bool  # There are more than ``MAX_HISTOGRAM_SAMPLES``: these are the newest of them


class Point(Struct, frozen=True):
    """One point of a chart, of one value or of several that lie side by side."""

    x: float  # By step or time, as was asked
    value: float  # Their mean
    count: int


class SyncRow(Struct, frozen=True):
    """An explorer has taken a version, or could not."""

    at: float
    explorer: str
    version: int
    ok: bool
    transfer_s: float
    pause_s: float


class PublishedRow(Struct, frozen=True):
    record: PublishedVersion  # Its trainer is who has told of the step
    published_at: float
    announced: bool  # Whether it was the one to be served
    pinned: bool
    synced: int  # Explorers that took it
    skipped: list[str]  # Batches that were passed over on the way to it from the one before


class ExplorerRow(Struct, frozen=True):
    """An explorer as it last said, to the minute."""

    explorer: str
    heard_at: float
    state: str
    version: int
    slots: int
    running: int
    tokens_per_s: float | None  # Over its last two minutes on the log; None: not known
    pool: str | None


class SettingsRow(Struct, frozen=True):
    service: str
    name: str
    at: float
    settings: dict[str, str]  # By their paths, as TOML writes them; empty where one is not set


class DeadLetterRow(Struct, frozen=True):
    """A record that could not be taken. All of it is on the log: see ``PastRecords``."""

    place: Place
    at: float
    reason: str  # One word
    detail: str
    source: str  # Where it came from, ``topic/partition@offset``
    key: str


class QuestionError(TrinityError, ValueError):
    """The index cannot be asked this."""


class StoreBusyError(TrinityError, RuntimeError):
    """Another process writes the store."""


class StoreError(TrinityError, RuntimeError):
    """The store cannot be read or written: the disk is full, or its files are damaged."""


class UnreadableError(TrinityError, ValueError):
    """What lies at a place of the log is not what it is taken for."""


MAX_LIMIT: Final = 500  # Rows of one page
MAX_TEXT_CHARS: Final = 200
MAX_HISTOGRAM_SAMPLES: Final = 50_000

type Axis = Literal["step", "time"]


class PageAsk(Struct, frozen=True):
    limit: int = 50
    after: str | None = None  # What the page before says; None: the first

    @property
    def rows(self) -> int:
        if not 1 <= self.limit <= MAX_LIMIT:
            raise QuestionError(f"limit = {self.limit}: a page has 1 to {MAX_LIMIT} rows")
        return self.limit

    @property
    def before(self) -> int | None:
        """The number that all rows of the page are below; None: any."""
        if self.after is None:
            return None
        number = int(self.after) if self.after.isascii() and self.after.isdigit() and len(self.after) < 20 else -1
        if not 0 <= number <= MAX_COUNT:
            raise QuestionError(f"after = {shown(self.after)} is nothing that a page said")
        return number


class SampleFilter(Struct, frozen=True):
    """Which samples. What is None restricts nothing."""

    task_id: str | None = None
    batch_id: str | None = None
    step: int | None = None  # Begun with their group,
    trainer: str | None = None  # by this trainer; None: by the live one that spoke last
    # All of its words, in any order, in the response, or all of them in the prompt. ``"in quotes"``: one behind the
    # other. Needs a tokenizer.
    text: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    version_min: int | None = None  # Some token was drawn by this version or a newer one,
    version_max: int | None = None  # and some by this one or an older one
    teaches_nothing: bool | None = None  # Whether all rewards of their group are the same


FIRST_PAGE: Final = PageAsk()
ALL_SAMPLES: Final = SampleFilter()
