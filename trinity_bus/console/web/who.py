"""Who looks at the console, and what they may do. Pure: times are arguments, keys are given.

::

    no token set              everybody who reaches it is a viewer; it listens on the loopback interface alone
    a token                   whoever knows it logs in once, and has a cookie that this process knows
    a header of a proxy       who the proxy says it is; of whoever shows the proxy's key alone

A *viewer* sees everything and changes nothing; an *operator* may also pin versions and put records back. A cookie is a
random text, of which this process knows the role and until when it holds; it ends with the logout or the process. Forms
carry a proof that is made of it with a key that nobody else has, so that another site cannot know it.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final, Literal

from trinity_bus.runtime.ports import is_loopback

type Role = Literal["viewer", "operator"]

SESSION_S: Final = 12 * 3600.0  # How long a login holds
MAX_LOGINS: Final = 1000  # At once: the oldest ends for the next
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
    """Logins of one process, and the proofs that its forms carry."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, tuple[Role, float]] = {}  # By the cookie: the role, and until when

    def begin(self, role: Role, now: float) -> str:
        """Return the cookie of somebody who logs in."""
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = role, now + SESSION_S
        while len(self._known) > MAX_LOGINS:
            del self._known[next(iter(self._known))]
        return cookie

    def end(self, cookie: str) -> None:
        self._known.pop(cookie, None)

    def visitor(self, cookie: str, now: float) -> Visitor | None:
        """Return whose cookie it is; None where it is none of ours, or has ended."""
        role, until = self._known.get(cookie, (None, now))
        return None if role is None or now >= until else Visitor(role, role, self.proof(cookie))

    def proof(self, of: str) -> str:
        """Return what forms carry, of a visitor who is known by this."""
        return hmac.new(self._key, of.encode(), hashlib.sha256).hexdigest()


def host_is_ours(header: str) -> bool:
    """Whether a request, by its ``Host``, was made under a name of this machine alone: of the loopback interface.

    A page of another site that has its own name lead to this address (DNS rebinding) sends its own name.
    """
    match = _HOST.fullmatch(header)
    return match is not None and is_loopback(match[1].lower())


def is_name(name: str) -> bool:
    """Whether a proxy's header names somebody."""
    return _NAME.fullmatch(name) is not None
