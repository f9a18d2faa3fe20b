"""Which processes a mesh on this machine is made of. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from trinity_bus.config.sections import Sections
from trinity_bus.sizing import Hardware


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
