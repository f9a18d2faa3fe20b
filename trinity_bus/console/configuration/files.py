"""What comes of a draft: files of settings without secrets, what they would change, and the processes of a mesh."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trinity_bus.config.sections import Sections
from trinity_bus.config.settings import read_given
from trinity_bus.config.template import rendered, toml_value
from trinity_bus.console.configuration.questions import TASKS, Draft, TaskRows, fields
from trinity_bus.sizing.hardware import Hardware

# Where the containers of compose.gpu.yaml see what is elsewhere on the machine
_OF_COMPOSE: Final = {"mesh.model_path": "/models/own", "trainer.checkpoint_dir": "/checkpoints"}
_QUOTAS: Final = ("producer_write_bytes_s", "producer_read_bytes_s", "producer_request_percent")
# What variables of the stack say
_COMPOSE_SAYS: Final = frozenset({"mesh.namespace", "kafka.bootstrap_servers", "taskset.path"})


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    before: str  # As in a file; empty: unset
    after: str


def mesh_file(draft: Draft, tasks: str = TASKS) -> str:
    head = (
        "Settings of a mesh, as the console has written them: `trinity-bus --config mesh.toml config check` checks "
        "them. Paths count from the folder that a service is started in. Secrets go into the environment."
    )
    return rendered(head, _open_values(draft) | ({} if draft.rows is None else {"taskset.path": tasks}))


def compose_mesh_file(draft: Draft) -> str:
    """Return the file of settings that containers read: paths are theirs, and :func:`compose_env` says the rest."""
    head = (
        "Settings of the compose stack with compose.gpu.yaml, in the place of its mesh.gpu.toml. The namespace is in "
        "its .env, and compose.yaml says what tasks are produced."
    )
    values = {path: value for path, value in _open_values(draft).items() if path not in _COMPOSE_SAYS}
    return rendered(head, values | {path: there for path, there in _OF_COMPOSE.items() if path in values})


def _open_values(draft: Draft) -> dict[str, object]:
    return {path: value for path, value in draft.values.items() if not fields()[path].is_secret}


def tasks_file(rows: TaskRows) -> str:
    """Return the description of tasks: docs/tasksets.md."""
    lines = [
        "# What is trained on: `trinity-bus tasks tasks.toml --show 2` reads and checks every row.",
        "[[train]]",
        f"path = {toml_value(rows.path)}",
        f"workflow = {toml_value(rows.workflow)}",
        f"prompt = {toml_value('${' + rows.prompt + '}')}",
    ]
    if rows.answer:
        lines.append(f"answer = {toml_value('${' + rows.answer + '}')}")
    return "\n".join(lines) + "\n"


def compose_env(settings: Sections, hardware: Hardware) -> str:
    """Return the variables of the compose stack that follow from settings, to go over those of its ``.env``."""
    lines = [
        "# Over the stack's own .env, which has the secrets, with mesh.gpu.toml as it was written beside:",
        "#   docker compose -f compose.yaml -f compose.gpu.yaml --env-file .env --env-file mesh.env up --wait",
    ]
    if hardware.trainer_gpus > 1 or settings.explorer.tensor_parallel_size > 1:
        lines.append(
            "# compose.gpu.yaml gives the trainer one GPU, and each explorer one: they need more device_ids there."
        )
    values = {
        "NAMESPACE": settings.mesh.namespace,
        "MODEL_DIR": settings.mesh.model_path,
        "TRAINER_GPU": 0 if hardware.trainer_gpus else None,
        "EXPLORER_GPU": hardware.trainer_gpus if hardware.explorer_gpus else None,
        **{name.upper(): getattr(settings.access, name) for name in _QUOTAS},
    }
    lines += [f"{name}={_quoted(value)}" for name, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _quoted(value: object) -> str:
    # A value as compose reads it: in single quotes nothing has a meaning but a backslash and a quote
    text = str(value)
    if re.fullmatch(r"[A-Za-z0-9_./-]*", text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def differences(before: Sections, after: Sections) -> Sequence[Difference]:
    """Return the settings that differ, but for those that follow from others. Of secrets nothing is said."""
    somebodys = {*changed_values(before), *changed_values(after)}
    paths = (path for path in _differing(before, after) if path in somebodys)
    return [Difference(path, _written(before, path), _written(after, path)) for path in paths]


def changed_values(settings: Sections) -> Mapping[str, object]:
    """Return the settings that are not as they would be if nobody had set them. Secrets are left out."""
    of_mesh = {path: _value(settings, path) for path in fields() if path.startswith("mesh.")}
    # What other sections take from the mesh follows from that.
    bare, _ = read_given({path: value for path, value in of_mesh.items() if value is not None})
    untouched, _ = read_given({})
    assert bare is not None  # noqa: S101 - it was read before
    assert untouched is not None  # noqa: S101
    paths = [path for path in _differing(untouched, settings) if path.startswith("mesh.")]
    paths += [path for path in _differing(bare, settings) if not path.startswith("mesh.")]
    return {path: value for path in paths if (value := _value(settings, path)) is not None}


def _differing(one: Sections, other: Sections) -> list[str]:
    return [
        path for path, field in fields().items() if not field.is_secret and _written(one, path) != _written(other, path)
    ]


def _value(settings: Sections, path: str) -> object:
    section, _, name = path.partition(".")
    return getattr(getattr(settings, section), name)


def _written(settings: Sections, path: str) -> str:
    value = _value(settings, path)
    return "" if value is None or fields()[path].is_secret else toml_value(value)


@dataclass(frozen=True, slots=True)
class PlannedService:
    name: str
    arguments: Sequence[str]  # Of ``trinity-bus``, behind the file of settings
    gpus: Sequence[int] = ()  # That it sees. None: it is not told.
    stage: int = 1  # Higher ones stop first
    work_ends: bool = False  # Whether it ends by itself, with status 0, when its work is done


def planned(services: Sequence[str], settings: Sections, hardware: Hardware) -> list[PlannedService]:
    """Return the processes of a mesh: the trainer has the first GPUs, and each explorer the next ones."""
    found = [PlannedService("coordinator", ["run", "coordinator"], stage=0)]
    if "trainer" in services:
        found.append(PlannedService("trainer", ["run", "trainer"], range(hardware.trainer_gpus), work_ends=True))
    if "explorer" in services:
        size = settings.explorer.tensor_parallel_size if hardware.explorer_gpus else 0
        for number in range(hardware.explorers(settings)):
            name, first = f"explorer-{number}", hardware.trainer_gpus + number * size
            arguments = ["--set", f"explorer.name={name}", "run", "explorer"]
            found.append(PlannedService(name, arguments, range(first, first + size)))
    if "taskset" in services:
        found.append(PlannedService("taskset", ["run", "taskset"], stage=2, work_ends=True))
    return found
