import os
import signal
import sys
from pathlib import Path

from schemas.topics import TURNS
from tests.support.gateway.rig import rig, say
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.runtime.process import Child


async def test_a_stream_outlives_its_explorer(tmp_path: Path) -> None:
    log = tmp_path / "explorer.log"
    command = [sys.executable, "-m", "tests.support.gateway.lone_explorer"]
    with Child(command, env={**os.environ, "PYTHONPATH": "."}, output=log) as child:
        await until(lambda: log.exists() and log.read_text().endswith("\n"), 60)
        async with rig() as here, here.client() as client:
            here.engines["explorer-0"].answer, here.engines["explorer-0"].model_version = "abcdef", 2
            await here.heard("explorer-0", state="draining")
            await here.heard("lone", address=log.read_text().strip(), model_version=1)
            text = ""
            async for chunk in await say(client, stream=True):
                text += chunk.choices[0].delta.content or ""
                if text == "abc":
                    await here.heard("explorer-0", model_version=2)
                    os.kill(child.pid, signal.SIGKILL)
                    await until(lambda: child.poll() is not None)
            assert text == "abcdef"
            await until(lambda: bool(here.log.all(TURNS)))
            (turn,) = [record_of(received) for received in here.log.all(TURNS)]
            (response,) = turn.answers[0].responses
            assert response.versions == [[0, 1], [3, 2]]
