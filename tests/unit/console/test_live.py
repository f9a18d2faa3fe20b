"""A page that is open for a day: the console holds no more for it than at its first news."""

import asyncio
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from tests.support.console.site import settings_of
from workers.console.service import Console


async def test_news_by_the_hundred_leave_nothing_behind(tmp_path: Path) -> None:
    made = Console(settings_of(tmp_path))

    async def news(times: int) -> int:
        for _ in range(times):
            async with made.feed._news:
                made.feed.serial += 1
                made.feed._news.notify_all()
            for line in (b"event: changed\n", b"data: "):
                assert (await stream.content.readline()).startswith(line)
            await stream.content.readline()
            # Two pages that look at the same, and one that does not.
            for path in ("/configuration/mesh", "/configuration/mesh", "/"):
                async with client.get(path, headers={"X-Part": "1"}) as answer:
                    await answer.read()
        return len(asyncio.all_tasks())

    async with TestClient(TestServer(made.app())) as client, client.get("/live") as stream:
        before = await news(2)
        assert await news(100) <= before


async def test_a_record_is_not_called_live(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    for is_record in (False, True):
        made = Console(settings, is_record=is_record)
        async with TestClient(TestServer(made.app())) as client, client.get("/") as answer:
            text = await answer.text()
        assert ("record of a run" in text, "</i> live" in text) == (is_record, not is_record)
