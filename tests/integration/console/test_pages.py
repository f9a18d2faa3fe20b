"""Every page, from a small log on a real broker: what is on it, that links lead on, and that hostile text is text."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from schemas import Position, PublishVersion, Task
from schemas.topics import DEAD_LETTERS, OPERATOR_COMMANDS, TASKS, TOPICS
from tests.support.console.small_log import FIRST_TASK, HOSTILE, SAMPLES, write_small_log
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings
from workers.console.service import Console

pytestmark = pytest.mark.integration

TOKEN = "the-token-of-operators"  # noqa: S105 - of a test

type Client = TestClient[Any, Any]


class Site:
    """A console over the small log."""

    def __init__(self, client: Client, bus: Bus, places: dict[str, Position], console: Console) -> None:
        self.client, self.bus, self.places, self.console = client, bus, places, console

    async def page(self, path: str, status: int = 200) -> str:
        async with self.client.get(path) as answer:
            text = await answer.text()
            assert answer.status == status, f"{path}: {text}"
            return text


@pytest.fixture
async def site(kafka: KafkaSettings, tmp_path: Path) -> AsyncIterator[Site]:
    own = ConsoleSettings(folder=tmp_path, port=0, token=SecretStr(TOKEN))
    log = kafka.model_copy(update={"namespace": f"console-{uuid4().hex[:8]}"})
    console = Console(Settings(kafka=log, console=own))
    async with Bus(log, client_id="test") as bus:
        await bus.ensure_topics(TOPICS)
        places = await write_small_log(bus)
        async with TestClient(TestServer(console.app())) as client:
            following = asyncio.create_task(console.feed.run())
            try:
                feed = console.feed
                await until(lambda: following.done() or (feed.index.extent is not None and not feed.trouble), 60)
                await until(lambda: following.done() or (feed.index.extent or 0).dead_letters == 1, 60)  # type: ignore[union-attr]
                async with client.post("/login", data={"token": TOKEN}) as answer:
                    assert answer.status == 200
                yield Site(client, bus, places, console)
            finally:
                following.cancel()
                await asyncio.wait([following])


async def test_every_page_and_every_link_of_it(site: Site) -> None:
    """One log and one console for all pages: what makes them costs more than they do."""
    place = site.places[FIRST_TASK]
    group = f"{place.partition}-{place.offset}"
    wanted = {
        "/": ["held_out", "explorer-0", "0.5"],
        "/batches": ["train-1", "train-2", "eval-after", "step 2"],
        "/batches?type=eval": ["eval-after"],
        "/batches/train-1": ["task/1/0", "finalized", "running", "8 samples"],
        "/steps": ["train-2", "0.50 s"],
        "/steps/2": ["train-2", "loss", "not_finite", "task/2/0", "8 samples"],
        "/steps/1?teach=nothing": ["None."],
        "/samples": [f"{SAMPLES} samples", "0.67"],
        "/samples?low=0.5&high=0.8": ["0.67"],
        f"/samples?task={FIRST_TASK}": [group],
        f"/groups/{group}": ["run 3", "0.67", "+0.4", "math", "step 1", "42"],
        f"/samples/{group}-0": ["0.67", "trained on it", "log-probability", "42", "next run"],
        f"/samples/{group}-0?by=version&ids=1": ["drawn by version 0"],
        f"/tasks/{FIRST_TASK}": ["completed", "dispatched", "attempt 1", "step 1", "42"],
        "/versions": ["step", "served", "train-2", "Serve"],
        "/dead-letters": ["not_json", "bad-1"],
        "/dead-letters?reason=other": ["No dead letters like that"],
        "/compare": ["rollout/reward/mean", "loss", site.bus.settings.namespace],
        "/versions/1/serve": ["Serve version 1?"],
    }
    links: set[str] = set()
    for path, parts in wanted.items():
        html = await site.page(path)
        for part in parts:
            assert part in unescape(html), f"{path} lacks {part!r}"
        assert HOSTILE not in html, path
        assert not re.search(r"\sstyle=|\son\w+=|<script(?! src=)", html), path
        links |= {unescape(link) for link in re.findall(r'(?:href|data-href)="(/[^"]*)"', html)}
    for link in sorted(links):
        await site.page(link)
    # What was written is there to be read, though.
    assert HOSTILE in unescape(await site.page(f"/tasks/{FIRST_TASK}"))
    assert "alert(1)" in unescape(await site.page("/steps/2"))

    found = json.loads(await site.page(f"/samples/{group}-0.json"))
    assert found["reward"] == pytest.approx(0.67)
    assert len(found["response_token_ids"]) == len(found["logprobs"]) == len(found["mask"])

    for path in ("/steps/99", "/batches/none", "/samples/0-999-0", "/tasks/none", "/groups/0-999"):
        await site.page(path, 404)
    await _the_past(site)
    await _news(site)
    await _a_letter_put_back(site)
    await _a_version_that_is_asked_for(site)


async def _the_past(site: Site) -> None:
    extent = site.console.feed.index.extent
    assert extent is not None
    assert extent.first_at is not None
    before = extent.first_at - 10
    for path in ("/", "/batches", "/steps", "/samples", "/versions", "/dead-letters", "/compare"):
        html = await site.page(f"{path}?until={before:.0f}")
        assert "as of" in html
        assert "train-1" not in html
    await site.page(f"/steps/1?until={before:.0f}", 404)


async def _news(site: Site) -> None:
    """An open page is told, and asks for what is inside it alone."""
    async with site.client.get("/live") as stream:
        async with site.bus.producer() as producer:
            await (await producer.send(TASKS, "new", Task(task_id="new", workflow="w", prompt="p")))
        async with asyncio.timeout(30):
            assert (await stream.content.readline()).startswith(b"event: changed")
    async with site.client.get("/steps", headers={"X-Part": "1"}) as answer:
        part = await answer.text()
    assert "<html" not in part
    assert "train-2" in part


async def _proof(site: Site, path: str) -> str:
    found = re.search(r'name="proof" value="([0-9a-f]{64})"', await site.page(path))
    assert found is not None
    return found[1]


async def _a_letter_put_back(site: Site) -> None:
    ends = await site.bus.end_offsets(DEAD_LETTERS)
    path = f"/dead-letters/dead-letters/0/{ends[0] - 1}"
    assert "bad-1" in await site.page(path)
    proof = await _proof(site, path)
    async with site.client.post(path, data={"proof": proof, "value": '{"task_id": "bad-1"}'}) as answer:
        assert "would not take this" in await answer.text()
    mended = '{"task_id": "mended-1", "workflow": "math", "prompt": "2 + 2 ="}'
    async with site.client.post(path, data={"proof": proof, "value": mended}) as answer:
        assert answer.status == 200, await answer.text()
    async with site.bus.reader(TASKS, start="beginning") as reader:
        assert "mended-1" in [record_of(received).task_id async for received in reader.replay()]


async def _a_version_that_is_asked_for(site: Site) -> None:
    """No coordinator is there to answer: the command is on the log, with who sent it."""
    proof = await _proof(site, "/versions/1/serve")
    async with site.bus.reader(OPERATOR_COMMANDS, start="end") as reader:
        asking = asyncio.create_task(_post(site, "/versions/1/serve", proof))
        try:
            async with asyncio.timeout(30):
                command = record_of((await reader.batch(30))[0])
        finally:
            asking.cancel()
            await asyncio.wait([asking])
    assert isinstance(command, PublishVersion)
    assert command.version == 1
    assert command.client.startswith("console-operator-")


async def _post(site: Site, path: str, proof: str) -> int:
    async with site.client.post(path, data={"proof": proof}) as answer:
        return answer.status
