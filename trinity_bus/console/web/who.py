"""Who looks at the console, and what they may do. Pure: times are arguments, keys are given.

::

    no token set              everybody who reaches it is a viewer; it listens on the loopback interface alone
    a token                   whoever knows it logs in once, and has a cookie that this process has signed
    a header of a proxy       who the proxy says it is; of whoever shows the proxy's key alone

A *viewer* sees everything and changes nothing; an *operator* may also pin versions and put records back. A cookie says
the role, until when it holds, and a number of its own, signed; it ends with the process, whose key nobody else has.
Forms carry a proof that is made of that number, which another site cannot know.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final, Literal

from trinity_bus.runtime.ports import is_loopback
from trinity_bus.runtime.secrecy import same_secret

type Role = Literal["viewer", "operator"]

SESSION_S: Final = 12 * 3600.0  # How long a login holds
_NAME: Final = re.compile(r"[A-Za-z0-9@._+ -]{1,100}")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str
    role: Role
    proof: str  # Stands in each form of theirs

    @property
    def may_act(self) -> bool:
        return self.role == "operator"


class Logins:
    """Cookies and proofs of one process."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key

    def cookie(self, name: str, role: Role, now: float) -> str:
        """Return the cookie of somebody who has just logged in."""
        said = f"{role}|{name}|{int(now + SESSION_S)}|{secrets.token_hex(16)}"
        return f"{said.encode().hex()}.{self._sign('cookie', said)}"

    def visitor(self, cookie: str, now: float) -> Visitor | None:
        """Return whose cookie it is; None where it is none of ours, or has ended."""
        said_hex, _, signature = cookie.partition(".")
        try:
            said = bytes.fromhex(said_hex).decode()
        except ValueError:
            return None
        if not same_secret(signature, self._sign("cookie", said)):
            return None
        role, name, until, number = said.split("|")
        if now >= int(until) or role not in {"viewer", "operator"}:
            return None
        return Visitor(name, "operator" if role == "operator" else "viewer", self.proof(number))

    def proof(self, of: str) -> str:
        """Return what forms carry, of a visitor who is known by this."""
        return self._sign("form", of)

    def _sign(self, use: str, said: str) -> str:
        return hmac.new(self._key, f"{use}:{said}".encode(), hashlib.sha256).hexdigest()


def host_is_ours(header: str) -> bool:
    """Whether a request, by its ``Host``, was made under a name of this machine alone: of the loopback interface.

    A page of another site that has its own name lead to this address (DNS rebinding) sends its own name.
    """
    match = _HOST.fullmatch(header)
    return match is not None and is_loopback(match[1].lower())


def is_name(name: str) -> bool:
    """Whether a proxy's header names somebody."""
    return _NAME.fullmatch(name) is not None
