"""Sandboxes in containers: refused where there is no Docker; else like those in processes. With a FAKE Docker, too."""

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.mesh.waiting import until
from trinity_bus.sandbox import ContainerSandbox, SandboxError, SandboxLimits, SandboxPlace

FAKE = """#!/bin/sh
# A FAKE docker: `run` does in the sandbox's folder what would be done in a container, `kill` what kills one.
if [ "$1" = kill ]; then kill -9 -"$(cat {pid})"; exit; fi
for part; do
  case "$part" in
    --cidfile=*) echo made >"${{part#*=}}" ;;
    --volume=*:/sandbox) folder="${{part#*=}}"; cd "${{folder%%:*}}" ;;
    --volume=*:/input:ro) input="${{part#*=}}"; input="${{input%%:*}}" ;;
  esac
done
printf '%s\\n' "$@" >{said}
while [ "$1" != an-image ]; do shift; done
shift 4
setsid sh -c 'echo $$ >{pid}; exec "$@"' sh "$@" <"$input"
"""


def docker_images() -> list[str]:
    if shutil.which("docker") is None:
        return []
    listed = subprocess.run(
        ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return [name for name in listed.stdout.splitlines() if name.startswith("python:")]


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    program = tmp_path / "docker"
    program.write_text(FAKE.format(pid=tmp_path / "pid", said=tmp_path / "said"))
    program.chmod(0o755)
    return program


async def test_without_docker_nothing_is_run() -> None:
    async with ContainerSandbox("an-image", docker="/no/docker") as box:
        with pytest.raises(SandboxError, match=r"/no/docker cannot be run: .*; containers need Docker"):
            await box.exec(["true"])


async def test_a_docker_that_makes_no_container_says_why(tmp_path: Path) -> None:
    refuses = tmp_path / "docker"
    refuses.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 125\n")
    refuses.chmod(0o755)
    async with ContainerSandbox("an-image", docker=str(refuses)) as box:
        with pytest.raises(SandboxError, match="no container can be had here: Cannot connect to the Docker daemon"):
            await box.exec(["true"])


async def test_a_command_has_files_input_and_limits_and_no_network(fake: Path, tmp_path: Path) -> None:
    limits = SandboxLimits(memory_bytes=64 << 20, processes=5)
    async with ContainerSandbox("an-image", limits, docker=str(fake)) as box:
        await box.write_file("in/a", "hello")
        done = await box.exec(["sh", "-c", "cat in/a; cat; echo b >b; exit 125"], stdin="you")
        assert (done.returncode, done.stdout) == (125, "helloyou")
        assert await box.read_file("b") == b"b\n"
        folder = box.folder
    said = (tmp_path / "said").read_text().splitlines()
    for option in (
        "--network=none", "--read-only", "--cap-drop=ALL", "--pull=never", f"--memory={64 << 20}", "--pids-limit=8",
        f"--user={os.getuid()}:{os.getgid()}", f"--volume={folder}:/sandbox",
    ):  # fmt: skip
        assert option in said
    assert not folder.exists()


async def test_what_takes_too_long_is_killed(fake: Path) -> None:
    async with ContainerSandbox("an-image", SandboxLimits(wall_s=2), docker=str(fake)) as box:
        done = await box.exec(["sh", "-c", "echo so; sleep 1000"])
    assert (done.timed_out, done.returncode, done.stdout) == (True, -1, "so\n")


async def test_a_docker_that_does_not_answer_when_it_is_to_kill_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trinity_bus.sandbox.container._KILL_S", 0.2)
    hangs = tmp_path / "docker"
    hangs.write_text('#!/bin/sh\n[ "$1" = kill ] || exec cat\nexec sleep 1000\n')
    hangs.chmod(0o755)
    async with asyncio.timeout(60), ContainerSandbox("an-image", SandboxLimits(wall_s=0.2), docker=str(hangs)) as box:
        assert (await box.exec(["true"])).timed_out
    assert "kill does not answer for 0.2 s; it may have left sandbox-" in caplog.text


async def test_a_docker_that_is_gone_when_it_is_to_kill_keeps_no_place_locked(fake: Path) -> None:
    box, place = ContainerSandbox("an-image", docker=str(fake)), SandboxPlace.claim(str(fake))
    box.take(place)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(box.exec(["sleep", "60"]))
        pid = fake.with_name("pid")
        await until(lambda: pid.exists() and pid.read_text().strip().isdigit())
        kept = fake.rename(fake.with_name("away"))
        with pytest.raises(FileNotFoundError):
            await box.terminate()
        kept.rename(fake)
        os.killpg(int(pid.read_text()), signal.SIGKILL)
        await running
    again = SandboxPlace.claim(str(fake))
    assert again.path == place.path
    again.remove()


@pytest.mark.skipif(not docker_images(), reason="not run: no Docker that answers, or no image python:*")
async def test_in_a_container_of_this_machine() -> None:
    async with ContainerSandbox(docker_images()[0], SandboxLimits(wall_s=60)) as box:
        await box.write_file(
            "main.py", "import os, sys\nprint(sys.stdin.read(), os.getcwd())\nopen('out', 'w').write('x')"
        )
        done = await box.exec(["python3", "main.py"], stdin="3 4")
        assert (done.returncode, done.stdout, done.stderr) == (0, "3 4 /sandbox\n", "")
        assert await box.read_file("out") == b"x"
        assert (await box.exec(["sh", "-c", "echo >/x"])).returncode != 0
        assert (await box.exec(["no-such-program"])).returncode == 127
        late = await box.exec(["sleep", "1000"], wall_s=8)
        assert late.timed_out
    left = subprocess.run(
        ["docker", "ps", "--quiet", "--filter", "name=sandbox-"], capture_output=True, text=True, check=True
    )
    assert left.stdout == ""
