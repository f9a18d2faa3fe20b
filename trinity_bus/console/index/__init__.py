"""The console's index: a database for searching the log, which can be rebuilt from the log at any time.

::

    log --IndexFollower--> Store (SQLite, files) <--Index-- pages, `trinity-bus export`
     ^                                                         |
     '------------------------PastRecords----------------------'   the tokens of what somebody looks at

:class:`Index` is what pages ask; ``answers`` and ``questions`` say in which terms. One process has the ``Store``.
"""

from trinity_bus.console.index.answers import (
    BatchDetail,
    BatchRow,
    BatchTransition,
    Bin,
    ChoiceRow,
    DeadLetterRow,
    ExplorerRow,
    Extent,
    GroupRow,
    GroupUse,
    Histogram,
    IndexStanding,
    LeftOutRow,
    PassedOver,
    Place,
    Point,
    PublishedRow,
    RowPage,
    SampleDetail,
    SamplePlace,
    SampleRow,
    SampleUse,
    Series,
    SettingsRow,
    StepDetail,
    StepName,
    StepRow,
    SyncRow,
    TaskEvent,
    TaskTimeline,
    TrainerRow,
    VersionDetail,
    WholeGroup,
)
from trinity_bus.console.index.errors import QuestionError, StoreBusyError, StoreError, UnreadableError
from trinity_bus.console.index.files import store_folder
from trinity_bus.console.index.follower import IndexFollower
from trinity_bus.console.index.group_rows import Texts, Tokens
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.past_records import PastRecords
from trinity_bus.console.index.questions import Axis, DeadLetterFilter, PageAsk, SampleFilter
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.tokens import ModelTexts, load_texts

__all__ = [
    "Axis",
    "BatchDetail",
    "BatchRow",
    "BatchTransition",
    "Bin",
    "ChoiceRow",
    "DeadLetterFilter",
    "DeadLetterRow",
    "ExplorerRow",
    "Extent",
    "GroupRow",
    "GroupUse",
    "Histogram",
    "Index",
    "IndexFollower",
    "IndexStanding",
    "LeftOutRow",
    "ModelTexts",
    "PageAsk",
    "PassedOver",
    "PastRecords",
    "Place",
    "Point",
    "PublishedRow",
    "QuestionError",
    "RowPage",
    "SampleDetail",
    "SampleFilter",
    "SamplePlace",
    "SampleRow",
    "SampleUse",
    "Series",
    "SettingsRow",
    "StepDetail",
    "StepName",
    "StepRow",
    "Store",
    "StoreBusyError",
    "StoreError",
    "SyncRow",
    "TaskEvent",
    "TaskTimeline",
    "Texts",
    "Tokens",
    "TrainerRow",
    "UnreadableError",
    "VersionDetail",
    "WholeGroup",
    "load_texts",
    "store_folder",
]
