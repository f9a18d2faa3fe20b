"""A stranger opens connections and sends half a request on each: they are closed, and not an hour later."""

import asyncio

import pytest

from tests.support.gateway.rig import rig


@pytest.mark.parametrize("half", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: "])
@pytest.mark.parametrize("whose", ["gateway", "explorer"])
async def test_half_a_request_does_not_hold_a_socket(half: bytes, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.runtime.http._IDLE_S", 0.2)
    async with rig() as here:
        address = here.gateway.address if whose == "gateway" else here.sides["explorer-0"].address
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(half)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
