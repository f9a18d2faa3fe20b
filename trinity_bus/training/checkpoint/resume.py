"""What of the settings shapes training, and what has become of it since a checkpoint was written. Pure.

::

    settings --shaping--> names and plain values, in every checkpoint of the run (``TrainingProgress.settings``)
    a checkpoint's, and ours --differences--> a line for each, said before anything is loaded; or a refusal

Every setting of ``trainer`` counts but those that are listed here with a reason, so a new one counts until somebody
says that it does not. What optimizer, layout and run depend on is compared beside this and refused
(``checkpoint.WrittenBy``, ``checkpoint.RunIdentity``).

===================================  =================================================================================
a checkpoint ...                     gets
===================================  =================================================================================
of other settings                    a line for each; training goes on with the new ones
of a model of another name           refused: its versions are known by that name
of adapters with another alpha       refused: what they add to the weights would be something else
without a setting that there is now  a line, ``not recorded -> value``; likewise one that there was
without settings                     a line; nothing is compared
===================================  =================================================================================

No secret is kept: the one of ``trainer`` is left out, and of the texts in ``trainer.objective_options`` and
``trainer.optimizer_options``, which are for programs that are not known here, a checkpoint holds digests.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from trinity_bus.config import MeshSettings, TrainerSettings
from trinity_bus.training.checkpoint.folders import text_digest
from trinity_bus.training.errors import CheckpointError

type Value = bool | int | float | str | None
type Shaping = dict[str, Value]

_MODEL = "mesh.model"
_OPTIONS = ("objective_options", "optimizer_options")
_RANK, _ALPHA = "trainer.lora_rank", "trainer.lora_alpha"
_MESH = {"model", "max_model_len", "max_tokens"}
_TELLS_WHERE_AND_WHEN = {
    "stages",  # what a stage says is in its own settings
    "name",
    "role",
    "shadows",
    "checkpoint_dir",
    "publish",
    "adapter_rank",
    "checkpoint_interval",
    "keep_checkpoints",
    "save_as_hf",
    "export_dir",
    "total_steps",
    "heartbeat_s",
    "token_figures",
    "host",
    "weights_port",
    "ranks_host",
    "ranks_port",
    "ranks_key",
    "bucket_mib",
}
_COMPARED_ELSEWHERE = {
    "model_path",  # by its content, in the run's identity
    "max_tokens",  # as ``mesh.max_tokens``
    "dtype",  # as it was resolved; with all below, in ``WrittenBy``
    "engine",
}


def shaping(mesh: MeshSettings, trainer: TrainerSettings) -> Shaping:
    own = trainer.model_dump(mode="json", exclude={*_TELLS_WHERE_AND_WHEN, *_COMPARED_ELSEWHERE, *_OPTIONS})
    return {
        **{f"mesh.{name}": value for name, value in mesh.model_dump(mode="json", include=_MESH).items()},
        **{f"trainer.{name}": value for name, value in own.items()},
        **{
            f"trainer.{options}.{name}": _option(value)
            for options in _OPTIONS
            for name, value in sorted(getattr(trainer, options).items())
        },
    }


def _option(value: Any) -> Value:
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, str):
        return f"text {text_digest(value)[:12]}"
    # JSON has no word for what is not finite.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def differences(written: Mapping[str, Value], ours: Mapping[str, Value]) -> list[str]:
    """Return a line for each; CheckpointError where the checkpoint cannot be gone on from with ours."""
    names = [*ours, *(name for name in written if name not in ours)]
    lines = [
        f"{name}: {_shown(name, written)} -> {_shown(name, ours)}"
        for name in names
        if (name in written) != (name in ours) or written[name] != ours[name]
    ]
    if written.get(_RANK) and written.get(_ALPHA) != ours.get(_ALPHA):
        raise CheckpointError(
            f"{_ALPHA}: {_shown(_ALPHA, written)} -> {_shown(_ALPHA, ours)}: the adapters were trained with the "
            "former: set it again, or start with an exported model as TRINITY_BUS_TRAINER__MODEL_PATH and an empty "
            "checkpoint_dir"
        )
    if _MODEL in written and written[_MODEL] != ours[_MODEL]:
        raise CheckpointError(
            f"{lines[0]}: the versions of this run are known by the former name; set it again, or give the new model "
            "its own TRINITY_BUS_MESH__NAMESPACE and an empty TRINITY_BUS_TRAINER__CHECKPOINT_DIR"
        )
    return lines


def _shown(name: str, settings: Mapping[str, Any]) -> str:
    if name not in settings:
        return "unset" if name.startswith(tuple(f"trainer.{options}." for options in _OPTIONS)) else "not recorded"
    value = settings[name]
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)
