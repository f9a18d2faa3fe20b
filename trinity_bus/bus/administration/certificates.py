"""When certificates end: those that brokers show, and those in this process's files.

Python's own parser tells that only of a certificate that it has verified, and one that has ended is not verified any
more, which is when it must be told. So the one field is read here, out of the certificate's DER (RFC 5280, 4.1):
``SEQUENCE { tbs SEQUENCE { [0] version, serial, algorithm, issuer, validity SEQUENCE { begin, end }, ... } ... }``.
"""

import asyncio
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

from trinity_bus import awake

_SEQUENCE = 0x30
_VERSION = 0xA0
_UTC_TIME = 0x17
_GENERALIZED_TIME = 0x18
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAX_FILE_BYTES = 4 << 20


def expiry(der: bytes) -> float:
    """Return when a certificate ends, in seconds since the epoch. Raises ValueError: it is no certificate."""
    certificate, _ = _element(der, 0, _SEQUENCE)
    tbs, _ = _element(certificate, 0, _SEQUENCE)
    at = 0
    if tbs[:1] == bytes([_VERSION]):
        _, at = _element(tbs, at)
    for _ in ("serial", "algorithm", "issuer"):
        _, at = _element(tbs, at)
    validity, _ = _element(tbs, at, _SEQUENCE)
    _, at = _element(validity, 0)
    if at >= len(validity):
        raise ValueError("no certificate: it has no end")
    if (kind := validity[at]) not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"no certificate: its end is an element of kind {kind:#x}")
    end, _ = _element(validity, at)
    try:
        text = end.decode("ascii")
        if kind == _UTC_TIME:
            # Two digits of a year: 50 and more are of the last century.
            text = ("19" if int(text[:2]) >= 50 else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise ValueError(f"no certificate: its end cannot be read ({error})") from error


def _element(data: bytes, at: int, kind: int | None = None) -> tuple[bytes, int]:
    # The content of the element at this place, and where the next one begins.
    if at + 2 > len(data) or (kind is not None and data[at] != kind):
        raise ValueError(f"no certificate: unexpected content at byte {at}")
    size, begin = data[at + 1], at + 2
    if size & 0x80:
        digits = size & 0x7F
        if not 1 <= digits <= 4:
            raise ValueError(f"no certificate: unexpected length at byte {at}")
        size, begin = int.from_bytes(data[begin : begin + digits]), begin + digits
    if begin + size > len(data):
        raise ValueError(f"no certificate: it ends within the element at byte {at}")
    return data[begin : begin + size], begin + size


def file_expiries(path: Path) -> list[float]:
    """Return when each certificate of a PEM file ends, in the file's order. Raises OSError or ValueError."""
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MAX_FILE_BYTES)
    return [expiry(ssl.PEM_cert_to_DER_cert(found)) for found in _PEM.findall(text)]


async def shown_expiry(host: str, port: int, timeout_s: float) -> float:
    """Return when the certificate ends that a server shows. Nothing is sent to it, nothing of it is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # One that has ended must be seen too; this connection carries nothing.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with awake.timeout(timeout_s):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if not der:
        raise ValueError(f"{host}:{port} shows no certificate")
    return expiry(der)
