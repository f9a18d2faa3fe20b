"""The wheel alone, in an environment of its own, is the whole of trinity-bus: code, types, locks, tasks, commands."""

import importlib.metadata
import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import trinity_bus
from schemas.topics import TOPICS
from trinity_bus.broker.jars import read_lock

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
PACKAGES = ("schemas", "trinity_bus", "workers")
LOOK = """
import importlib, importlib.metadata, importlib.resources, json, pathlib
import schemas.topics, trinity_bus.broker.jars, trinity_bus.client, workers.cli.app
files = {name: pathlib.Path(importlib.import_module(name).__file__) for name in ("schemas", "trinity_bus", "workers")}
tasks = importlib.resources.files("workers.demo") / "tasks"
print(json.dumps({
    "folders": sorted({str(path.parents[1]) for path in files.values()}),
    "typed": all((path.parent / "py.typed").is_file() for path in files.values()),
    "topics": len(schemas.topics.TOPICS),
    "jars": len(trinity_bus.broker.jars.read_lock()),
    "tasks": sorted(entry.name for entry in tasks.iterdir()),
    "plugins": [e.name for e in importlib.metadata.entry_points(group="vllm.general_plugins") if "trinity" in e.value],
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stale = ROOT / "build" / "lib" / "trinity_bus" / "gone.py"
    stale.parent.mkdir(parents=True, exist_ok=True)
    stale.write_text("")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([ROOT / "tools" / "wheel.sh", folder], check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it, and of all that is installed here what the wheel asks for; no more."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    script = 'source tools/env.sh; find_uv; "$UV" pip install --quiet --offline --no-deps --python "$1" "$2"'
    install: list[str | Path] = ["bash", "-euc", f"ROOT={ROOT}; {script}", "install", folder / "bin" / "python", wheel]
    subprocess.run(install, check=True, cwd=ROOT, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    for entry in sorted({Path(str(file)).parts[0] for name in base_packages() for file in installed_files(name)}):
        if entry != ".." and not (packages / entry).exists():
            (packages / entry).symlink_to(here / entry)
    return folder


def base_packages() -> list[str]:
    lines = (ROOT / "requirements" / "images" / "base.lock").read_text().splitlines()
    return [found[1] for line in lines if (found := re.match(r"([\w.-]+)==", line))]


def installed_files(name: str) -> Sequence[importlib.metadata.PackagePath]:
    """What a package has put beside the others, or nothing where this platform does not need it."""
    try:
        return importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def tracked() -> Iterator[str]:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return (name for name in listed.splitlines() if (ROOT / name).exists())


def test_it_has_every_file_of_the_packages_and_none_that_is_gone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert set(tracked()) <= inside
    assert {name for name in inside if not (ROOT / name).exists()} == set()


def test_it_works_without_the_checkout(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "python", "-I", "-c", LOOK], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    (folder,) = found.pop("folders")
    assert Path(folder).is_relative_to(environment)
    assert found == {
        "typed": True,
        "topics": len(TOPICS),
        "jars": len(read_lock()),
        "tasks": sorted(Path(name).name for name in tracked() if name.startswith("workers/demo/tasks/")),
        "plugins": ["trinity_bus_weights"],
    }


def test_every_public_name_needs_no_extra(environment: Path, tmp_path: Path) -> None:
    program = "from trinity_bus import *; import trinity_bus; print(len(trinity_bus.__all__))"
    asked: list[str | Path] = [environment / "bin" / "python", "-I", "-c", program]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(trinity_bus.__all__)


def test_its_command_runs(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "trinity-bus", "topics", "--help"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert "List, create and grow the topics" in done.stdout
