"""What brokers say of a client's credentials: no outage, so it is not waited for like one. Pure.

::

    a connection --is let in--------------------------> LET IN
                 '--its credentials are refused-------> REFUSED; again and again for REFUSED_S: GIVEN UP, one line
                 '--gets no answer, or another error--> as before: who is away says nothing of credentials

Not at once, because a refusal may be a matter of moments: a broker that starts, or one of several, may not have read
yet which users there are, and a user or its new password may be set beside the service that logs in with it. Nor once
nobody refuses them any more: a client whose connections to the other brokers stand opens none that could be let in, so
a refusal holds for ``LULL_S``, and two with more between them do not belong together.

A broker that does not take a client's certificate hangs up without a word: that is no refusal here, and is waited for.
"""

import ssl
from typing import Final

from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from trinity_bus.config import env_name

REFUSED_S: Final = 10.0  # how long credentials may be refused: brokers of a cluster know of a new user within a second
# how long after a refusal it counts: a client that needs the broker asks again sooner, also where others hang
LULL_S: Final = 3 * REFUSED_S
_LOGIN = (AuthenticationFailedError, SaslAuthenticationFailed)
_MECHANISM = (AuthenticationMethodNotSupported, IllegalSaslStateError, UnsupportedSaslMechanismError)


def doubtful_settings(error: BaseException) -> str | None:
    """Return the settings that a refusal lets one doubt, as a question; None where it is not one of credentials."""
    if isinstance(error, _LOGIN):
        return _question("sasl_username", "sasl_password", "sasl_mechanism")
    if isinstance(error, _MECHANISM):
        return _question("sasl_mechanism")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _question("ssl_cafile", "bootstrap_servers")
    return None


def _question(*names: str) -> str:
    *most, last = [env_name(f"kafka.{name}") for name in names]
    return f"are {', '.join(most)} and {last} right?" if most else f"is {last} right?"


class Refusals:
    def __init__(self) -> None:
        self._since: float | None = None
        self._last = 0.0
        self._reason = ""

    def refused(self, now: float, reason: str) -> None:
        if self._since is None or now - self._last > LULL_S:
            self._since = now
        self._last, self._reason = now, reason

    def forget(self) -> None:
        self._since = None

    @property
    def last(self) -> str | None:
        # None where a broker has let the client in since.
        return None if self._since is None else self._reason

    def given_up(self, now: float) -> str | None:
        # The last refusal, where they have gone on for as long as they may, and still do.
        if self._since is None or self._last - self._since < REFUSED_S or now - self._last > LULL_S:
            return None
        return self._reason
