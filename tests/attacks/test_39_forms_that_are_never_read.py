"""A stranger sends the console's login a form that takes minutes, or for ever, to be read: nobody waits for it."""

import asyncio
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from tests.support.console.site import TOKEN, with_tokens

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
        async with asyncio.timeout(10):
            assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
