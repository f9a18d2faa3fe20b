"""Refused credentials are borne for moments, since the last time that a broker let the client in."""

import ssl

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from trinity_bus.bus.credentials import REFUSED_S, Refusals, doubtful_settings


def test_refusals_count_from_the_first_since_a_client_was_let_in() -> None:
    refusals = Refusals()

    def told(now: float) -> tuple[str | None, str | None]:
        return refusals.last, refusals.given_up(now)

    assert told(1000.0) == (None, None)
    refusals.refused(0.0, "wrong")
    assert told(REFUSED_S / 2) == ("wrong", None)
    refusals.forget()
    assert told(1000.0) == (None, None)
    refusals.refused(1000.0, "wrong")
    refusals.refused(1000.0 + REFUSED_S, "wrong again")
    assert told(1000.0 + REFUSED_S - 0.1) == ("wrong again", None)
    assert told(1000.0 + REFUSED_S) == ("wrong again", "wrong again")


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (SaslAuthenticationFailed("no"), "SASL_USERNAME, _SASL_PASSWORD and _SASL_MECHANISM"),
        (UnsupportedSaslMechanismError("no"), "is _SASL_MECHANISM"),
        (ssl.SSLCertVerificationError("no"), "SSL_CAFILE and _BOOTSTRAP_SERVERS"),
        (KafkaConnectionError("no"), None),
        (ConnectionResetError("no"), None),
        (TimeoutError("no"), None),
    ],
)
def test_only_a_refusal_of_credentials_names_settings(error: Exception, names: str | None) -> None:
    doubt = doubtful_settings(error)
    if names is None:
        assert doubt is None
    else:
        assert doubt is not None
        assert names in doubt.replace("TRINITY_BUS_KAFKA_", "")
