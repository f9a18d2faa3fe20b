"""What comes of a draft: files of settings without secrets, and the processes of a mesh."""

from collections.abc import Sequence
from dataclasses import dataclass

from trinity_bus.config.sections import Sections
from trinity_bus.config.template import rendered, toml_value
from trinity_bus.console.configuration.questions import TASKS, Draft, TaskRows, fields
from trinity_bus.sizing.hardware import Hardware


def mesh_file(draft: Draft, tasks: str = TASKS) -> str:
    head = (
        "Settings of a mesh, as the console has written them: `trinity-bus --config mesh.toml config check` checks "
        "them. Paths count from the folder that a service is started in. Secrets go into the environment."
    )
    values = {path: value for path, value in draft.values.items() if not fields()[path].is_secret}
    return rendered(head, values | ({} if draft.rows is None else {"taskset.path": tasks}))


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
