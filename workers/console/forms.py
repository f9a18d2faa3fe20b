"""Forms, as browsers send them, and no larger, slower or otherwise written than these do.

The framework would decode one as its sender says, and there are encodings that take the square of its length.
"""

from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web

from trinity_bus import awake

_FORM: Final = web.RequestKey("form", dict[str, str])
_MOST_FIELDS: Final = 500
ANSWERS: Final = 64 << 10  # Of a visitor who may not act: every setting, with something in it
SMALL: Final = 4096  # Bytes of one with nothing but a token or a proof in it
WHOLE_S: Final = 30.0  # In which it has to come


async def form(request: web.Request, most: int = SMALL) -> dict[str, str]:
    if _FORM not in request:
        request[_FORM] = _fields(request, await _body(request, most))
    return request[_FORM]


async def _body(request: web.Request, most: int) -> bytes:
    body = bytearray()
    try:
        async with awake.timeout(WHOLE_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > most:
                    raise web.HTTPRequestEntityTooLarge(
                        most, len(body), text=f"A form like this has {most} bytes at most."
                    )
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"The form did not come within {WHOLE_S:g} s.") from None
    return bytes(body)


def _fields(request: web.Request, body: bytes) -> dict[str, str]:
    if body and request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType(text="Forms come as application/x-www-form-urlencoded.")
    try:
        told = parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise web.HTTPBadRequest(text=f"A form has {_MOST_FIELDS} fields at most.") from None
    return dict(told)
