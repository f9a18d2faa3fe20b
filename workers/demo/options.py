"""What a user may choose of the demo. Imports little: nothing of a run begins before it is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.demo.subjects import COPY, MAX_STEPS, DemoSubject

CONSOLE_PORT: Final = 8900  # Where the console listens, where nobody else does


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    run_dir: Path
    subject: DemoSubject = COPY
    seed: int = 0
    steps: int = MAX_STEPS  # Most steps of training
    explorers: int = 2
    max_staleness: int = 0  # 0: strictly on-policy; 1: one step off
    early_stop: bool = True  # End when the model has learned, see ``stopping``
    limit_s: float = COPY.limit_s  # Give up after this many seconds
    console_port: int = CONSOLE_PORT  # Where the console listens
    pretrained: Path | None = None  # The model that is taught. None: one of random weights.

    @property
    def model_dir(self) -> Path:
        return self.pretrained or self.run_dir / "initial-model"

    @property
    def mesh_file(self) -> Path:
        return self.run_dir / "mesh.toml"

    @property
    def checkpoint_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.run_dir / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @property
    def explorer_names(self) -> list[str]:
        return [f"explorer-{i}" for i in range(self.explorers)]
