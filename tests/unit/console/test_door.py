"""Who comes in: real HTTP, no broker. Every page says that the broker is away, and is there all the same."""

import asyncio
import contextlib
import re
import sqlite3
import threading
from contextlib import closing
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from tests.support.console.site import TOKEN, VIEWERS, Client, console, settings_of, status_of, with_tokens
from tests.support.mesh.waiting import until
from trinity_bus.bus import Bus
from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings
from trinity_bus.console.index.files import explained, store_folder
from trinity_bus.console.index.store import Store
from workers.console.mesh_watcher import IndexSide
from workers.console.service import Console
from workers.preconditions import problems

PAGE = {"Accept": "text/html"}


async def log_in(client: Client, token: str = TOKEN) -> SimpleCookie:
    async with client.post("/login", data={"token": token}, allow_redirects=False) as answer:
        assert answer.status == 303, await answer.text()
        return answer.cookies


async def proof_of(client: Client) -> str:
    async with client.get("/versions/1/serve") as answer:
        found = re.search(r'name="proof" value="([0-9a-f]{64})"', await answer.text())
    assert found is not None
    return found[1]


async def test_every_answer_forbids_what_is_not_ours(tmp_path: Path) -> None:
    async with console(tmp_path) as client:
        for path in ("/", "/live", "/login", "/static/console.js", "/no-such-page", "/samples/1-2-3"):
            async with client.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                html = "" if path in {"/live", "/static/console.js"} else await answer.text()
            assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|https?://", html), path
            assert set(re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)) <= {""}


PROXY = {"user_header": "X-User", "roles_header": "X-Roles", "proxy_key": SecretStr("the-key-of-the-proxy")}
TOKENS = {"token": SecretStr(TOKEN), "viewer_token": SecretStr(VIEWERS)}
SERVE = "/versions/1/serve"


def by_proxy(**headers: str) -> dict[str, str]:
    return {"X-Proxy-Key": "the-key-of-the-proxy", **{name.replace("_", "-"): said for name, said in headers.items()}}


@pytest.mark.parametrize(
    ("own", "asked", "headers", "status"),
    [
        # A page of another site has had its own name lead here.
        ({}, "GET /", {"Host": "evil.test"}, 421),
        ({}, "GET /", {"Host": "localhost:8900"}, 200),
        # Without a token everybody looks, and nobody acts.
        ({}, f"GET {SERVE}", {}, 403),
        ({}, f"POST {SERVE}", {}, 403),
        ({}, "GET /versions/newest", {}, 403),
        ({}, "POST /versions/newest", {}, 403),
        # Strangers.
        (TOKENS, "GET /steps", PAGE, 303),
        (TOKENS, "GET /live", {}, 401),
        (TOKENS, "GET /samples/1-2-3.json", {}, 401),
        (TOKENS, "GET /", {}, 401),
        # Programs show the token itself.
        (TOKENS, "GET /", {"Authorization": f"Bearer {VIEWERS}"}, 200),
        (TOKENS, "GET /", {"Authorization": f"Bearer {TOKEN}x"}, 401),
        (TOKENS, f"GET {SERVE}", {"Authorization": f"Bearer {VIEWERS}"}, 403),
        # A proxy says who it is.
        (PROXY, f"GET {SERVE}", by_proxy(), 401),
        (PROXY, f"GET {SERVE}", by_proxy(X_User="eve<script>"), 401),
        (PROXY, f"GET {SERVE}", by_proxy(X_User="ann@example.test"), 403),
        (PROXY, f"GET {SERVE}", by_proxy(X_User="ann@example.test", X_Roles="viewer"), 403),
        (PROXY, f"GET {SERVE}", by_proxy(X_User="bob", X_Roles="viewer, operator"), 200),
    ],
)
async def test_who_is_let_in(
    own: dict[str, Any], asked: str, headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    method, path = asked.split()
    async with console(tmp_path, **own) as client:
        assert await status_of(client, path, method, headers=headers) == status


async def test_a_login_is_a_cookie_that_scripts_and_other_sites_do_not_have_until_logging_out(tmp_path: Path) -> None:
    async with with_tokens(tmp_path) as client:
        for token in ("wrong", "", TOKEN[:-1], f"{TOKEN}x"):
            async with client.post("/login", data={"token": token}, allow_redirects=False) as answer:
                assert (answer.status, dict(answer.cookies)) == (401, {})
        (cookie,) = (await log_in(client)).values()
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        async with client.get("/", headers=PAGE) as answer:
            assert 'class="who" title="operator"' in await answer.text()
        assert await status_of(client, "/logout", "POST", data={"proof": await proof_of(client)}) == 303
        assert await status_of(client, "/", headers=PAGE) == 303


async def test_a_form_needs_its_proof_and_its_origin(tmp_path: Path) -> None:
    async with with_tokens(tmp_path) as client:
        await log_in(client)
        proof = await proof_of(client)
        for data, headers in (
            ({}, {}),
            ({"proof": "0" * 64}, {}),
            ({"proof": proof}, {"Origin": "http://evil.test"}),
            ({"proof": proof}, {"Origin": "null"}),
        ):
            told = {"data": data, "headers": headers}
            assert await status_of(client, "/versions/1/serve", "POST", **told) == 403, told
        # It is let in, and finds no broker.
        origin = {"Origin": f"http://{client.host}:{client.port}"}
        assert await status_of(client, "/versions/1/serve", "POST", data={"proof": proof}, headers=origin) == 503
        # The proof of one login is none of another.
        await log_in(client)
        assert await status_of(client, "/versions/1/serve", "POST", data={"proof": proof}) == 403


ODD_LINKS = [
    *(f"/?until={at}" for at in ("tomorrow", "nan", "1e300", "<script>")),
    *(f"/steps{rest}" for rest in ("/x", "/99999999999999999999", '?x="><script>alert(1)</script>')),
    *(f"/samples{rest}" for rest in ("/1-2", "?low=x", "?step=-1", f"?text={'x' * 3000}")),
    *(f"/compare?run={run}" for run in ("../../etc", "<script>alert(1)</script>")),
    "/versions/x/serve",
]


async def test_a_link_that_no_page_can_show_is_told_in_a_line_of_text(tmp_path: Path) -> None:
    async with console(tmp_path) as client:
        for path in ODD_LINKS:
            async with client.get(path) as answer:
                text = await answer.text()
            assert answer.status in {400, 403, 404}, path
            assert "Traceback" not in text, path
            assert "<script>" not in text, path


@pytest.mark.parametrize(("limit", "others"), [("MAX_STREAMS", 503), ("MAX_OF_ONE", 200)])
async def test_streams_are_bounded_for_one_visitor_and_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, others: int
) -> None:
    monkeypatch.setattr(f"workers.console.service.{limit}", 1)
    async with with_tokens(tmp_path) as client:
        operator, viewer = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, VIEWERS))
        async with client.get("/live", headers=viewer) as first, client.get("/live", headers=viewer) as second:
            assert (first.status, first.headers["Content-Type"], second.status) == (200, "text/event-stream", 503)
            async with client.get("/live", headers=operator) as other:
                assert other.status == others


async def test_a_broker_that_is_away_is_said_on_every_page(tmp_path: Path) -> None:
    there = Console(settings_of(tmp_path))
    following = asyncio.create_task(there.feed.run())
    try:
        async with TestClient(TestServer(there.app())) as client:
            await until(lambda: "The broker is away" in there.feed.trouble or following.done(), 60)
            for path in ("/", "/steps", "/samples", "/steps/x"):
                async with client.get(path) as answer:
                    assert "The broker is away" in await answer.text(), path
    finally:
        following.cancel()
        await asyncio.wait([following])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "mesh.example.test"])  # noqa: S104
def test_beyond_loopback_it_asks_who_it_is(host: str) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    (problem,) = problems("console", Settings(kafka=kafka, console=ConsoleSettings(host=host)))
    assert "TRINITY_BUS_CONSOLE__TOKEN" in problem
    with_token = ConsoleSettings(host=host, token=SecretStr(TOKEN))
    assert problems("console", Settings(kafka=kafka, console=with_token)) == []
    assert problems("console", Settings(kafka=kafka, console=ConsoleSettings(host="::1"))) == []


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


NO_TEXTS = "no tokenizer"


async def test_what_is_being_opened_when_it_ends_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowStore(Store):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            begun.set()
            assert go_on.wait(60)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("workers.console.mesh_watcher.Store", SlowStore)
    settings = settings_of(tmp_path)
    side = IndexSide(settings, lambda: Bus(settings.kafka, client_id="test"))
    running = asyncio.create_task(side.run(lambda: None))
    await asyncio.to_thread(begun.wait, 60)
    running.cancel()
    go_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    Store(store_folder(settings), texts=NO_TEXTS).close()


async def test_a_full_disk_is_a_line_on_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullStore(Store):
        def __init__(self, folder: Path, **_: object) -> None:
            with explained(folder), closing(sqlite3.connect(":memory:")) as db:
                db.execute("PRAGMA max_page_count = 1")
                db.execute("CREATE TABLE one (x)")
                db.execute("CREATE TABLE two (x)")

    monkeypatch.setattr("workers.console.mesh_watcher.Store", FullStore)
    there = Console(settings_of(tmp_path))
    keeping = asyncio.create_task(there.feed.index.run(lambda: None))
    try:
        async with TestClient(TestServer(there.app())) as client:
            await until(lambda: "cannot be kept" in there.feed.trouble or keeping.done(), 60)
            for path in ("/", "/steps"):
                async with client.get(path) as answer:
                    assert "the disk is full: make room, and it goes on by itself" in await answer.text(), path
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
