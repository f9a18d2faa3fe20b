"""A stranger at the console's port sends a form that takes minutes to be read, or says to be the proxy before it.

On the loopback interface that is any page that a browser of this machine looks at: its site has its own name lead there
(DNS rebinding), and then it may send whatever headers it likes.
"""

import asyncio
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict
from pydantic import SecretStr, ValidationError

from tests.support.console.site import TOKEN, console, with_tokens
from trinity_bus.config import ConsoleSettings

KEY = "the-key-of-the-proxy"
ANN = {"X-User": "ann", "X-Roles": "operator"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("X-Proxy-Key", "guessed")], 401),
        ([("X-Proxy-Key", "")], 401),
        ([("X-Proxy-Key", f"{KEY}x"), ("X-Proxy-Key", KEY)], 401),
        # The proxy added its header behind the one that came from outside.
        ([("X-Proxy-Key", KEY), ("X-User", "bob")], 401),
        ([("X-Proxy-Key", KEY), ("X-Roles", "viewer")], 401),
        ([("X-Proxy-Key", KEY)], 200),
    ],
)
async def test_only_who_shows_the_proxys_key_says_who_asks(
    headers: list[tuple[str, str]], status: int, tmp_path: Path
) -> None:
    own = {"user_header": "X-User", "roles_header": "X-Roles", "proxy_key": SecretStr(KEY)}
    async with console(tmp_path, **own) as client:
        sent = CIMultiDict([("Host", "evil.test"), *ANN.items(), *headers])
        async with client.get("/versions/1/serve", headers=sent) as answer:
            assert answer.status == status


async def test_a_token_is_good_beside_a_proxy(tmp_path: Path) -> None:
    own = {"user_header": "X-User", "proxy_key": SecretStr(KEY), "token": SecretStr(TOKEN)}
    async with console(tmp_path, **own) as client:
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {TOKEN}"}, 200)):
            async with client.get("/versions/1/serve", headers={**ANN, **headers}) as answer:
                assert answer.status == status


@pytest.mark.parametrize("own", [{}, {"proxy_key": SecretStr("short")}])
def test_without_a_key_no_proxy_is_believed(own: dict[str, SecretStr]) -> None:
    with pytest.raises(ValidationError, match=r"console\.proxy_key"):
        ConsoleSettings(user_header="X-User", **own)


FORM = "application/x-www-form-urlencoded"
HALF_A_CHARACTER = (
    b'--B\r\nContent-Disposition: form-data; name="token"\r\nContent-Type: text/plain; charset=unicode_escape\r\n\r\n'
    b"\\ud800\r\n--B--\r\n"
)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        # Reading punycode takes the square of its length: eight MiB would have held the console for half an hour.
        pytest.param(f"{FORM}; charset=punycode", b"a" * 5000 + b"-" + b"b9" * 5000, 413, id="punycode"),
        pytest.param(f"{FORM}; charset=punycode", b"token=x-b9", 401, id="a little of it"),
        pytest.param(f"{FORM}; charset=none-such", b"token=x", 401, id="an encoding that there is not"),
        pytest.param(FORM, b"token=%ff%ed%a0%80", 401, id="what is no text"),
        pytest.param(FORM, b"&".join(b"%d=" % i for i in range(600)), 400, id="many fields"),
        pytest.param("multipart/form-data; boundary=B", HALF_A_CHARACTER, 415, id="half a character"),
        pytest.param("multipart/form-data; boundary=B", b"--B\r\n" * 100, 415, id="parts"),
        pytest.param(f"{FORM}; charset=utf-16", f"token={TOKEN}".encode(), 303, id="read as all forms are"),
    ],
)
async def test_no_form_is_read_as_its_sender_says(kind: str, body: bytes, status: int, tmp_path: Path) -> None:
    async with (
        with_tokens(tmp_path) as client,
        client.post("/login", data=body, headers={"Content-Type": kind}, allow_redirects=False) as answer,
    ):
        assert answer.status == status


async def test_a_form_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.console.access_control.FORM_S", 0.1)
    async with with_tokens(tmp_path) as client:
        assert isinstance(client.server, TestServer)
        reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
        head = f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\nContent-Length: 99\r\n\r\n"
        writer.write(f"{head}to".encode())
        async with asyncio.timeout(60):
            assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
