"""Checkpoint folders that are either whole or absent.

::

    checkpoint_dir/
        .lock                       held by the one trainer that writes here
        .rollback                   the last rollback: see ``begin_rollback``
        discarded-step-00000012/    what it has discarded; to be looked at, and removed by hand
        .run                        the name of the run, given at its first start: see ``run_name``
        .follows                    on whose steps a shadow or a replay trains: see ``note_follows``
        .told                       steps that were told of before they were in a checkpoint: see ``note_told``
        .mirror                     of what ``trainer.checkpoint_url`` was a copy: see ``mirror``
        .partial-step-00000012/     being written; worthless after a crash, removed at the next start
        step-00000011/              whole, durable
            progress.json           steps, version, the offset of the next batch, of which run; size and digest of
                                    every other file, and a seal over all that
            config.json, tokenizer  \
            model.safetensors       / a Hugging Face model folder: transformers and vLLM read it as it is
            optimizer.safetensors   state of optimizer and random generators
        published/                  what explorers need to take weights from here; ``weights.checkpoint``

A checkpoint is written into a ``.partial`` folder, every file and the folder are flushed to the disk, and one rename
makes it visible. After a crash at any instant the newest ``step`` folder is therefore whole, and it holds the weights
*and* the offset that belong together. Older ones go only after the new one is durable, and never the last. An explorer
that reads one holds it by a shared lock (``held``): it goes when the next one is written. A reader that comes as it
goes is refused, and takes the newest. Only safetensors and JSON are written and read; nothing in it can run code.

Many ranks: rank 0 gathers all and alone writes. Weights and the optimizer's state are whole, under the weights' Hugging
Face names, so a checkpoint is read in any layout. Every file has a digest, which rank 0 compares before it is used.

A checkpoint says which log, namespace and base model it belongs to; a trainer of another run refuses it. It says with
which settings it was trained, and a trainer says what is different now. All these are absent from
checkpoints of the first programs, and then not compared. This package imports no torch.
"""

from trinity_bus.training.checkpoint.folders import (
    PROGRESS,
    folder_of,
    held,
    latest,
    of_step,
    step_of,
    steps,
)
from trinity_bus.training.checkpoint.manifest import (
    RunIdentity,
    TrainingProgress,
    WrittenBy,
    check_run,
    read_progress,
    verify,
)
from trinity_bus.training.checkpoint.notes import (
    AnnouncedSteps,
    Follows,
    begin_rollback,
    finish_rollback,
    note_follows,
    note_told,
    read_follows,
    read_run,
    read_told,
    run_name,
)
from trinity_bus.training.checkpoint.writing import begin, commit, exclusive

__all__ = [
    "PROGRESS",
    "AnnouncedSteps",
    "Follows",
    "RunIdentity",
    "TrainingProgress",
    "WrittenBy",
    "begin",
    "begin_rollback",
    "check_run",
    "commit",
    "exclusive",
    "finish_rollback",
    "folder_of",
    "held",
    "latest",
    "note_follows",
    "note_told",
    "of_step",
    "read_follows",
    "read_progress",
    "read_run",
    "read_told",
    "run_name",
    "step_of",
    "steps",
    "verify",
]
