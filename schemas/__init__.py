"""The contract of the mesh: every record's type, its codec, its topics and its version rules.

Light on purpose: msgpack, msgspec, pydantic and numpy. A program that produces tasks needs this and a Kafka client.
Each name is imported from where it lives when it is first asked for: who needs an error or a number alone, as commands
do before they begin, does not wait for pydantic and numpy.
"""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.batch import (
        BatchLifecycleState,
        BatchRecord,
        BatchSkipped,
        ManifestEntry,
        ResultPart,
        TaskResult,
        TaskStatus,
    )
    from schemas.command import (
        AbortBatch,
        BatchResult,
        CancelTasks,
        CommandError,
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
        ExperiencePiece,
        ExplorerHeartbeat,
        ExplorerLeft,
        Position,
        RolloutFinished,
        RunnersReport,
        RunnerState,
        RunningAttempt,
        StepTrained,
        Superseded,
        TrainerHeartbeat,
        UnservedPool,
        VersionRefused,
        VersionWanted,
        WeightsSynced,
    )
    from schemas.examples import Demonstration, Preference
    from schemas.experience import ExperienceGroup, Rollout, Sample, SampledWith
    from schemas.groups.grouping import build_group
    from schemas.message import ContentPart, FunctionCall, FunctionSchema, Message, Tool, ToolCall
    from schemas.model_version import Member, ModelVersion, PublishedVersion
    from schemas.record import Record, Rollback, SkippedBatch
    from schemas.rollout import Cancel, Dispatch, SetPace
    from schemas.sampling import Sampling, StructuredOutputs
    from schemas.step import LeftOut, StepBegun, StepEnded, StepGroup
    from schemas.task import Task
    from schemas.taskset import TasksetPosition
    from schemas.token_figures import TokenFigures
    from schemas.turn import Answer, DrawnResponse, PartialResponses, Turn

# fmt: off
__all__ = [
    "AbortBatch", "Answer", "BatchLifecycleState", "BatchRecord", "BatchResult", "BatchSkipped", "Cancel",
    "CancelTasks", "CommandError", "CommandReply", "ContentPart", "Contribute", "CoordinatorHeartbeat",
    "Demonstration", "Dispatch", "DrawnResponse", "ExperienceGroup", "ExperiencePiece", "ExplorerHeartbeat",
    "ExplorerLeft", "FinalizeBatch", "FinalizeUpgrade", "FunctionCall", "FunctionSchema", "LeftOut",
    "ManifestEntry", "Member", "Message", "ModelVersion", "PartialResponses", "Position", "Preference",
    "PublishVersion", "PublishedVersion", "Record", "ResultPart", "RollBack", "Rollback", "Rollout",
    "RolloutFinished", "RunnerState", "RunnersReport", "RunningAttempt", "Sample", "SampledWith", "Sampling",
    "SetPace", "SkipBatch", "SkippedBatch", "StepBegun", "StepEnded", "StepGroup", "StepTrained",
    "StructuredOutputs", "SubmitBatch", "Superseded", "Task", "TaskResult", "TaskStatus", "TasksetPosition",
    "TokenFigures", "Tool", "ToolCall", "TrainerHeartbeat", "Turn", "UnservedPool", "VersionRefused", "VersionWanted",
    "WeightsSynced", "build_group",
]
# fmt: on


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, which import each name when it is first asked for.

    Its names, and where they live, are what it imports for type checkers, below ``if TYPE_CHECKING``.
    """
    # Type checkers must not see the two: they would let every mistyped name pass.
    found = sys.modules[package].__dict__
    source = ast.parse(Path(found["__file__"]).read_text(encoding="utf-8"))
    blocks = [node for node in source.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: node.module for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # As `from ... import` does, which imports a module that is meant.
        value = found[name] = getattr(__import__(str(places[name]), fromlist=[name]), name)
        return value

    return get, lambda: sorted({*found, *places})


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__)
