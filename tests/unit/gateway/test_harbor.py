"""Real trials of Harbor's against a real gateway; engine, coordinator and sandbox are FAKE."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from schemas.topics import EXPERIENCES
from tests.support.fakes.coordinator import FakeCoordinator
from tests.support.fakes.log import FakeBus
from tests.support.gateway.rig import ASKED, KEY, OTHERS_KEY, Rig, rig, say
from tests.support.mesh.compose import docker, image_is_here, why_not
from tests.support.mesh.processes import children_with
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.config import GatewaySettings, Settings, TasksetSettings
from trinity_bus.runtime.http import session_key

IMAGE = "python:3.12-slim-bookworm"
CHECK = "grep -qx 42 /app/answer && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


async def test_a_sessions_key_opens_the_model_in_its_session_and_nothing_else() -> None:
    import openai

    key = session_key(KEY, "s")
    async with rig() as here:
        async with here.client(key, session="s") as client:
            await say(client)
        for session in (None, "t"):
            async with here.client(key, session=session) as client:
                with pytest.raises(openai.AuthenticationError):
                    await say(client)
        for path in ("/sessions/s/feedback", "/feedback", "/commit"):
            assert (await here.post(path, key, reward=1, session="s"))[0] == 401
        assert (await here.post("/feedback", OTHERS_KEY, reward=1, session="s"))[0] == 404
        assert (await here.post("/feedback", reward=1, session="s"))[1]["counted"] == 1


async def test_a_sessions_key_adds_nothing_to_what_has_its_reward() -> None:
    import openai

    async with rig() as here, here.client(session_key(KEY, "s"), session="s") as agent:
        await say(agent)
        here.hold()
        late = asyncio.create_task(say(agent, [*ASKED, {"role": "assistant", "content": "42"}, *ASKED]))
        await until(lambda: bool(here.waiting))
        assert (await here.post("/feedback", reward=1, session="s"))[1]["counted"] == 1
        here.go_on()
        for asked in (late, say(agent), agent.completions.create(model="policy", prompt="6*7=")):
            with pytest.raises(openai.BadRequestError, match="has its reward"):
                await asked
        ((rollout,),) = [one.rollouts for one in here.gateway._sessions.pending("me")]
        assert rollout.turn_starts == [0]
        async with here.client(session="s") as owner:
            await say(owner)


def task(bench: Path, name: str, check: str = CHECK, config: str = "") -> None:
    (bench / name / "tests").mkdir(parents=True)
    (bench / name / "environment").mkdir()
    (bench / name / "task.toml").write_text(config)
    (bench / name / "instruction.md").write_text("6*7=")
    (bench / name / "tests" / "test.sh").write_text(f"#!/bin/bash\n{check}")


def trial(folder: Path, *, how: str = "", environment: dict[str, Any] | None = None, **sandbox: str) -> Path:
    parts = "tests.support.gateway.harbor_parts"
    config = {
        "trials_dir": str(folder / "trials"),
        "agent": {"import_path": f"{parts}:AskingAgent", "model_name": "openai/policy", "kwargs": {"how": how}},
        "environment": environment or {"import_path": f"{parts}:FakeSandbox", "kwargs": sandbox},
    }
    path = folder / "trial.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def described(folder: Path, more: str = "") -> Path:
    (folder / "sets.toml").write_text(f'[[train]]\npath = "bench"\nrepeat_times = 2\n{more}')
    return folder / "sets.toml"


@asynccontextmanager
async def mesh(**gateway: Any) -> AsyncIterator[Rig]:
    pytest.importorskip("harbor", reason="Harbor has an environment of its own")
    # Its explorer says once that it is there, and Harbor takes long to import.
    async with rig(explorer_silence_s=600.0, **gateway) as here, FakeCoordinator(FakeBus(here.log)).running():
        here.engines["explorer-0"].answer = "42"
        yield here


async def run(here: Rig, sets: Path, trial_file: Path, **options: Any) -> None:
    from workers import harbor

    settings = Settings(
        gateway=GatewaySettings(api_keys=SecretStr(f"me:{KEY}")),
        taskset=TasksetSettings(path=sets, name="h", epochs=1, order="sequential"),
    )
    given = {"concurrent": 2, "attempts": 1, **options}
    await harbor.run(settings, trial_file, here.url, **given)


async def test_the_command_contributes_what_agents_in_sandboxes_have_said(tmp_path: Path) -> None:
    async with mesh() as here:
        task(tmp_path / "bench", "good")
        # Harbor puts variables of this process into sandboxes, if a task asks for them.
        task(tmp_path / "bench", "thief", config='[verifier.env]\nKEY = "${TRINITY_BUS_GATEWAY__API_KEYS}"\n')
        environment = {
            **os.environ,
            "TRINITY_BUS_GATEWAY__API_KEYS": f"me:{KEY}",
            "TRINITY_BUS_GATEWAY__PUBLIC_URL": here.url,
            "TRINITY_BUS_TASKSET__PATH": str(described(tmp_path)),
            "TRINITY_BUS_TASKSET__NAME": "h",
            "TRINITY_BUS_TASKSET__EPOCHS": "1",
        }
        command = [sys.executable, "-m", "workers.cli.app", "harbor", str(trial(tmp_path))]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said
        assert "task h/0/good: 2 runs have a mean reward of 1" in said, said
        assert "Environment variable 'TRINITY_BUS_GATEWAY__API_KEYS' not found" in said
        assert "task h/0/thief is passed over" in said
        assert said.count("runs in the agent's sandbox") == 1, "it is warned of a verifier that is not separate"
        (group,) = map(record_of, here.log.all(EXPERIENCES))
        assert (group.task_id, group.rewards.tolist(), sorted(group.run_ids.tolist())) == (
            "h/0/good",
            [1.0, 1.0],
            [0, 1],
        )
        for sample in group.samples():
            assert "".join(map(chr, sample.tokens)) == "user: 6*7=\nassistant: 42"
        assert not any(KEY in path.read_text() for path in (tmp_path / "trials").rglob("*") if path.is_file())


@pytest.mark.stack
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("separate", [False, True])
async def test_an_agent_in_a_container_of_dockers_asks_the_gateway_and_its_verifier_rewards_it(
    tmp_path: Path, *, separate: bool
) -> None:
    if (reason := why_not() or (None if image_is_here(IMAGE) else f"there is no image {IMAGE}")) is not None:
        pytest.skip(f"not run: a trial in Docker: {reason}")
    bridge = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}").stdout.strip()
    # What a container reaches is the address of its host's bridge, and not its loopback interface.
    async with mesh(host=bridge) as here:
        config = 'artifacts = ["/app/answer"]\n[verifier]\nenvironment_mode = "separate"\n' if separate else ""
        task(tmp_path / "bench", "good", config=config)
        (tmp_path / "bench" / "good" / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
        await run(here, described(tmp_path), trial(tmp_path, environment={"type": "docker"}))
        (group,) = map(record_of, here.log.all(EXPERIENCES))
        assert (group.task_id, group.rewards.tolist()) == ("h/0/good", [1.0, 1.0])
        for sample in group.samples():
            assert "".join(map(chr, sample.tokens)) == "user: 6*7=\nassistant: 42"
        assert not docker("ps", "--all", "--quiet", "--filter", "name=^0-").stdout, "its containers are gone"


# Harbor warns of what it calls itself.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("check", "options", "more", "reason"),
    [
        (CHECK, {"fails": "start"}, "", "RuntimeError: there is no sandbox today"),
        (CHECK, {"fails": "agent"}, "timeout_s = 2", "the trial had not ended after 2 s"),
        ("true\n", {}, "", "RewardFileNotFoundError: No reward file found"),
        ("echo nan > /logs/verifier/reward.txt\n", {}, "", "VerifierOutputParseError: Non-finite reward"),
        ('echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json\n', {}, "", "gave a, b, and none of them"),
        (f"echo '{{\"reward\": 1{'0' * 400}}}' > /logs/verifier/reward.json\n", {}, "", "is no finite number"),
        ("echo 1 > /logs/verifier/reward.txt\n", {"how": "silent"}, "", r"session '0-\d-\w+' is not known"),
        ("echo 0 > /logs/verifier/reward.txt\n", {"how": "breaks"}, "", "RuntimeError: the program has ended with 0"),
        ("true\n", {"how": "fifo"}, "timeout_s = 10", "the trial had not ended after 10 s"),
        ("true\n", {"how": "sparse"}, "", "MemoryError"),
        ("echo 0 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json\n", {}, "", "beside"),
    ],
)
async def test_a_trial_without_a_reward_that_counts_is_a_failed_attempt_and_not_a_reward_of_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, check: str, options: dict[str, Any], more: str, reason: str
) -> None:
    async with mesh() as here:
        from workers import harbor

        monkeypatch.setattr(harbor, "_MOST_FAILED", 1)
        monkeypatch.setattr(harbor, "_END_S", 1.0)
        task(tmp_path / "bench", "bad", check)
        with pytest.raises(ExceptionGroup) as caught:
            await run(here, described(tmp_path, more), trial(tmp_path, **options))
        assert caught.group_contains(harbor.NoRewardsError, match=reason)
        assert not children_with("workers.harbor")
        assert here.log.all(EXPERIENCES) == []
        assert not [*(tmp_path / "trials" / "h").glob("0.json")]


@pytest.mark.filterwarnings("ignore")
async def test_a_failed_attempt_is_followed_by_another_and_what_is_wrong_at_the_start_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh() as here:
        from trinity_bus.errors import ConfigError
        from workers import harbor
        from workers.harbor import TrialError
        from workers.taskset.description import DatasetError

        task(tmp_path / "bench", "good")
        sets = described(tmp_path)
        here.engines["explorer-0"].answer = "41"
        await run(here, sets, trial(tmp_path, fails="start", once=str(tmp_path)), concurrent=1, attempts=2)
        done = json.loads((tmp_path / "trials" / "h" / "0.json").read_text())
        assert done == {"task_id": "h/0/good", "rewards": [0.0, 0.0], "failed": [], "refused": None}
        trials = [*(tmp_path / "trials" / "h").iterdir()]
        await run(here, sets, trial(tmp_path))
        assert [*(tmp_path / "trials" / "h").iterdir()] == trials
        monkeypatch.setattr(harbor, "_MOST_FAILED", 1)
        (tmp_path / "trials" / "h" / "0.json").unlink()
        monkeypatch.setattr(harbor, "NAME", "nothing")
        with pytest.raises(ExceptionGroup) as caught:
            await run(here, sets, trial(tmp_path))
        assert caught.group_contains(harbor.NoRewardsError, match="'None' is no Harbor task"), "a failed task, no more"
        (tmp_path / "bench" / "good" / "instruction.md").write_text("7*7=")
        with pytest.raises(DatasetError, match="has trials of another data set"):
            await run(here, sets, trial(tmp_path))
        wrong = tmp_path / "wrong.yaml"
        for text in ("environment: {type: none}", "- 1", "environment: {import_path: 'nowhere:Nothing'}"):
            wrong.write_text(text)
            with pytest.raises(ConfigError, match=r"wrong.yaml: there can be no trials"):
                await run(here, sets, wrong)
        here.gateway._door._keys.clear()
        with pytest.raises(TrialError, match="does not take /commit: status 401"):
            await run(here, sets, trial(tmp_path))
