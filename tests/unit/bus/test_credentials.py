"""Refused credentials are borne for moments, since the last time that a broker let the client in."""

import ssl

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed, UnsupportedSaslMechanismError

from trinity_bus.bus.client.credentials import LULL_S, REFUSED_S, Refusals, doubtful_settings


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
    refusals.refused(1000.0 + REFUSED_S - 0.1, "wrong again")
    assert told(1000.0 + REFUSED_S) == ("wrong again", None)
    refusals.refused(1000.0 + REFUSED_S, "still wrong")
    assert told(1000.0 + REFUSED_S) == ("still wrong", "still wrong")


def test_a_refusal_that_is_not_repeated_is_none_of_credentials() -> None:
    refusals = Refusals()
    # One of several brokers, which nobody asks any more: connections to the others stand, and no new one is let in.
    refusals.refused(0.0, "wrong")
    assert refusals.given_up(REFUSED_S + 1) is None
    refusals.refused(LULL_S + 1, "wrong, long after")
    assert refusals.given_up(LULL_S + 1) is None
    refusals.refused(LULL_S + 1 + REFUSED_S, "wrong")
    assert refusals.given_up(LULL_S + 1 + REFUSED_S) == "wrong"
    assert refusals.given_up(LULL_S + 1 + REFUSED_S + LULL_S + 1) is None


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
