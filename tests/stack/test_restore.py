"""The stack's backup, ten days old and brought back by one command: training goes on where it was."""

import os
import subprocess
import tarfile
import time
from io import BytesIO
from pathlib import Path, PurePosixPath

import pytest

from tests.support.faults.raw_batches import aged_segment
from tests.support.mesh.compose import UP_LIMIT_S, ComposeStack
from tests.support.mesh.compose_files import FOLDER
from trinity_bus.view import MeshState

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2700)]

TEN_DAYS_S = 10 * 24 * 3600


def run(stack: ComposeStack, script: str, archive: Path) -> None:
    """One of the scripts beside the compose file, for this project."""
    told = {"COMPOSE_PROJECT_NAME": stack.project, "COMPOSE_FILE": ":".join(map(str, stack.files))}
    done = subprocess.run(
        [FOLDER / script, archive],
        env={**os.environ, **told, **{name: str(port) for name, port in stack.ports.items()}},
        capture_output=True,
        text=True,
        timeout=2 * UP_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{stack.complaints()}"


def age(archive: Path, target: Path) -> int:
    """Copies a backup, all records of its log older by ten days; how many segments it has."""
    segments = 0
    with tarfile.open(archive) as source, tarfile.open(target, "w:gz", compresslevel=1) as made:
        for member in source:
            path = PurePosixPath(member.name)
            data = source.extractfile(member)
            of_a_topic = path.parts[0] == "kafka" and not path.parent.name.startswith("__")
            if of_a_topic and path.suffix == ".timeindex":
                continue
            if data is not None and of_a_topic and path.suffix == ".log":
                older = aged_segment(data.read(), 1000 * TEN_DAYS_S)
                member.size, member.mtime = len(older), member.mtime - TEN_DAYS_S
                made.addfile(member, BytesIO(older))
                segments += 1
            else:
                made.addfile(member, data)
    return segments


def test_a_backup_of_ten_days_ago_comes_back_and_training_goes_on(
    stack: ComposeStack, tmp_path: Path, figures: dict[str, str]
) -> None:
    before = stack.watch(lambda view: len(view.trained) >= 2, "second step", 900)
    archive, old = tmp_path / "mesh.tar.gz", tmp_path / "old.tar.gz"
    run(stack, "backup.sh", archive)
    assert age(archive, old) > 10
    began = time.time()
    run(stack, "restore.sh", old)
    figures["a backup brought back"] = f"healthy after {time.time() - began:.1f} s"

    def goes_on(view: MeshState) -> bool:
        return any(step.trained_at > began for step in view.trained)

    view = stack.watch(goes_on, "step after the backup was brought back", 900)
    figures["a backup brought back, the next step"] = f"after {time.time() - began:.1f} s"
    steps = [step.step for step in view.trained]
    assert steps == list(range(1, len(steps) + 1)), "none is missing, none is trained again"
    assert len(steps) > len(before.trained)
    first = next(step for step in view.trained if step.trained_at > began)
    # Those of the backup are as old as it is.
    assert all(began - step.trained_at > TEN_DAYS_S / 2 for step in view.trained if step.step < first.step)
