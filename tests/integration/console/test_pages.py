"""Every page, from a small log on a real broker: what is on it, that links lead on, and that hostile text is text."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from schemas import Position, PublishVersion, RollBack, Task
from schemas.topics import DEAD_LETTERS, EXPERIENCES, OPERATOR_COMMANDS, TASKS, TOPICS
from tests.support.console.small_log import FIRST_TASK, HOSTILE, SAMPLES, write_small_log
from tests.support.mesh.mesh import unused
from tests.support.mesh.records import first, record_of
from tests.support.mesh.waiting import beside, until
from trinity_bus.bus import Bus
from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings
from trinity_bus.console.index.follower import TOPICS as INDEXED
from trinity_bus.health.process import readings
from workers.console.service import Console

pytestmark = pytest.mark.integration

TOKEN = "the-token-of-operators"  # noqa: S105 - of a test
JAEGER = "http://jaeger.test:16686"

type Client = TestClient[Any, Any]


class Site:
    """A console over the small log."""

    def __init__(
        self, client: Client, bus: Bus, places: dict[str, Position], console: Console, settings: Settings
    ) -> None:
        self.client, self.bus, self.places, self.console = client, bus, places, console
        self.settings = settings

    async def page(self, path: str, status: int = 200) -> str:
        async with self.client.get(path) as answer:
            text = await answer.text()
            assert answer.status == status, f"{path}: {text}"
            return text


async def ends_of(bus: Bus) -> dict[tuple[str, int], int]:
    """Where each partition ends in which there is something to be indexed."""
    ends = {topic.name: await bus.end_offsets(topic) for topic in INDEXED}
    return {(name, number): end for name, of_topic in ends.items() for number, end in of_topic.items() if end}


def indexed(folder: Path) -> dict[tuple[str, int], int]:
    """As far as each partition is in the index."""
    with closing(sqlite3.connect(f"{(folder / 'index.sqlite').as_uri()}?mode=ro", uri=True)) as db:
        return {(name, number): end for name, number, end in db.execute("SELECT topic, partition, next FROM offsets")}


@pytest.fixture
async def site(kafka: KafkaSettings, tmp_path: Path) -> AsyncIterator[Site]:
    own = ConsoleSettings(folder=tmp_path, port=0, token=SecretStr(TOKEN), jaeger_url=JAEGER)
    log = unused(kafka)
    settings = Settings(kafka=log, console=own)
    console = Console(settings)
    async with Bus(log, client_id="test") as bus:
        await bus.ensure_topics(TOPICS)
        places = await write_small_log(bus)
        async with (
            TestClient(TestServer(console.app())) as client,
            beside(console.feed.run()) as following,
        ):
            feed = console.feed
            await until(lambda: following.done() or (feed.index.extent is not None and not feed.trouble), 60)
            # Of what is on the log each topic may be indexed by itself.
            ends = await ends_of(bus)
            await until(lambda: following.done() or ends.items() <= indexed(feed.index.folder).items(), 60)
            await until(lambda: following.done() or (feed.index.extent or 0).dead_letters == 1, 60)  # type: ignore[union-attr]
            async with client.post("/login", data={"token": TOKEN}) as answer:
                assert answer.status == 200
            yield Site(client, bus, places, console, settings)


async def test_tokens_by_what_a_trainer_has_told_of_them(site: Site) -> None:
    first, second, third = (
        "/samples/{0.partition}-{0.offset}".format(site.places[task]) for task in (FIRST_TASK, "task/2/0", "task/2/1")
    )

    for sample in (first, second, third):
        async with asyncio.timeout(60):
            while "are not on the log" in await site.page(f"{sample}-0"):  # noqa: ASYNC110 - the page is what tells
                await asyncio.sleep(0.05)
    entropy = await site.page(f"{first}-0?by=entropy")
    assert re.search(r'class="[^"]*\ben3\b[^"]*" title="[^"]*entropy 0\.500', entropy)
    assert all(text in entropy for text in ("tokens by-entropy", "in nats", "before its first update"))
    mismatch = await site.page(f"{first}-1?by=mismatch")
    assert re.search(r'class="[^"]*\bgap3\b[^"]*" title="[^"]*trainer \+0\.250', mismatch)
    assert all(text in mismatch for text in ("tokens by-gap", "after 1 of its updates"))
    of_replay = await site.page(f"{second}-0?by=mismatch")
    assert "trainer +0.500" in of_replay
    assert "/steps/2?trainer=replay-2" in of_replay
    none = await site.page(f"{first}-3?by=entropy")
    assert "--set trainer.token_figures=all" in none
    assert 'href="/samples' in none
    assert "by=mismatch" not in none
    others = unescape(await site.page(f"{third}-0?by=entropy"))
    assert "cannot be had: token-figures/0@2 is of other tokens" in others
    assert " en3" not in others
    await site.page(f"{first}-0?by=nothing", 400)


async def test_every_page_and_every_link_of_it(site: Site) -> None:
    """One log and one console for all pages: what makes them costs more than they do."""
    assert "the mesh" in await readings(), "it is not ready while that stands still"
    place = site.places[FIRST_TASK]
    group = f"{place.partition}-{place.offset}"
    name = site.bus.settings.namespace
    wanted = {
        "/": ["held_out", "explorer-0", "0.5"],
        "/batches": ["train-1", "train-2", "eval-after", "step 2"],
        "/batches?type=eval": ["eval-after"],
        "/batches/train-1": ["task/1/0", "finalized", "running", "8 samples"],
        "/steps": ["train-2", "0.50 s", "once more what trainer-0 did"],
        "/steps?trainer=replay-2": ["train-2", "0.50 s"],
        "/steps/2?trainer=replay-2": ["replay-2", "step 2 of trainer-0", "8 samples", "0.125"],
        "/steps/2": ["train-2", "loss", "not_finite", "task/2/0", "8 samples"],
        "/steps/1?teach=nothing": ["None."],
        "/samples": [f"{SAMPLES} samples", "0.67"],
        "/samples?low=0.5&high=0.8": ["0.67"],
        f"/samples?task={FIRST_TASK}": [group],
        f"/groups/{group}": ["run 3", "0.67", "rloo", "+0.227", "math", "step 1", "42"],
        f"/samples/{group}-0": ["0.67", "+0.227", "trained on.", "log-probability", "42", "next run"],
        f"/samples/{group}-0?by=version&ids=1": ["drawn by version 0"],
        f"/tasks/{FIRST_TASK}": ["completed", "dispatched", "finished", "step 1", "42"],
        "/versions": ["step", "served", "train-2", "Serve", "batches were passed over"],
        "/versions/newest": ["Serve the newest version again?", "Every explorer takes the newest version"],
        "/dead-letters": ["not_json", "bad-1"],
        "/dead-letters?reason=other": ["No dead letters like that"],
        "/compare": [
            "rollout/reward/mean",
            "loss",
            site.bus.settings.namespace,
            "explorer.temperature",
            "0.7",
            "unset",
            f"{site.bus.settings.namespace}/replay-2",
        ],
        f"/compare?run={name}&run={name}/replay-2": [f"{name}/replay-2: nobody has told its settings"],
        "/versions/1/serve": ["Serve version 1?"],
        "/versions/1/go-back": ["Go back to version 1?", "discarded for good", 'name="why"'],
    }
    links: set[str] = set()
    for path, parts in wanted.items():
        html = await site.page(path)
        for part in parts:
            assert part in unescape(html), f"{path} lacks {part!r}"
        assert HOSTILE not in html, path
        assert not re.search(r"\sstyle=|\son\w+=|<script(?! src=)", html), path
        links |= {unescape(link) for link in re.findall(r'(?:href|data-href)="(/[^"]*)"', html)}
    assert "under way" not in await site.page("/steps"), "a replay is no step of the live run's"
    place = site.places["task/2/0"]
    html = await site.page(f"/samples/{place.partition}-{place.offset}-0")
    assert re.findall(r"By <a[^>]*>step (\d)</a>( of replay-2)? trained on", html) == [("2", ""), ("2", " of replay-2")]
    await site.page(f"/compare?run={name}/nobody", 400)
    chart = re.search(
        r"<figcaption>loss.*?</figure>", await site.page(f"/compare?run={name}&run={name}/replay-2"), re.DOTALL
    )
    assert chart is not None
    assert "0.125" in chart[0], "the replay's loss beside the live run's"
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
    await _what_cannot_be_read(site)
    await _what_retention_has_deleted(site)
    await _a_second_console(site)


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


async def _what_cannot_be_read(site: Site) -> None:
    async with site.bus.producer() as producer:
        await (await producer.send_raw(TASKS, b"x", b"nonsense"))
    feed = site.console.feed
    async with asyncio.timeout(60):
        while "Records that are not shown: 1 of tasks could not be read." not in await site.page("/"):
            await feed.news(feed.serial, 5)


async def _what_retention_has_deleted(site: Site) -> None:
    """The row of a sample stays, with a line in place of its tokens."""
    place = site.places[FIRST_TASK]
    await site.bus.delete_before({(EXPERIENCES.name, place.partition): place.offset + 1})
    html = unescape(await site.page(f"/samples/{place.partition}-{place.offset}-0?by=mask"))
    assert "What it said cannot be had: " in html
    assert "retention has deleted" in html
    assert "0.67" in html


async def _a_second_console(site: Site) -> None:
    """Shows what the first one has read, and says whose index it is."""
    second = Console(site.settings)
    async with beside(second.feed.run()), TestClient(TestServer(second.app())) as client:
        shown = ""
        async with asyncio.timeout(60):
            while "train-2" not in shown or "Another console brings the index forward" not in shown:
                await second.feed.news(second.feed.serial, 1)
                async with client.get("/steps", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                    shown = await answer.text()


async def _news(site: Site) -> None:
    """An open page is told, and asks for what is inside it alone."""
    async with site.client.get("/live") as stream:
        async with site.bus.producer() as producer:
            await (await producer.send(TASKS, "new", Task(task_id="new", workflow="w", prompt="p")))
        async with asyncio.timeout(60):
            while not (await stream.content.readline()).startswith(b"event: changed"):
                """It is told that the console lives."""
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


async def _command[R](site: Site, kind: type[R], path: str, proof: str, **fields: str) -> R:
    """Post a form, and return the operator's command that is on the log then."""
    async with (
        site.bus.reader(OPERATOR_COMMANDS, start="end") as reader,
        beside(_post(site, path, proof, **fields)),
    ):
        return await first(reader, kind)


async def _a_version_that_is_asked_for(site: Site) -> None:
    """No coordinator is there to answer: the command is on the log, with who sent it."""
    proof = await _proof(site, "/versions/1/serve")
    served = await _command(site, PublishVersion, "/versions/1/serve", proof)
    assert served.version == 1
    assert served.client.startswith("console-operator-")
    assert served.asked_by == "operator"
    async with site.client.post("/versions/1/go-back", data={"proof": proof, "why": " "}) as answer:
        assert (answer.status, "say why" in await answer.text()) == (400, True)
    command = await _command(site, RollBack, "/versions/1/go-back", proof, why="it diverged")
    assert (command.version, command.reason, command.asked_by) == (1, "it diverged", "operator")


async def _post(site: Site, path: str, proof: str, **fields: str) -> int:
    async with site.client.post(path, data={"proof": proof, **fields}) as answer:
        return answer.status
