"""Somebody reaches the port of a console that stands behind a proxy, and says who they are: nobody believes it.

On the loopback interface that is any page that a browser of this machine looks at: its site has its own name lead there
(DNS rebinding), and then it may send whatever headers it likes.
"""

from pathlib import Path

import pytest
from multidict import CIMultiDict
from pydantic import SecretStr, ValidationError

from tests.support.console.site import TOKEN, console
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
