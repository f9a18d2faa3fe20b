"""The section ``console``: where it listens, who may look, and where its index lies."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from schemas.numbers import Port
from trinity_bus.config.section import Section, conflict
from trinity_bus.config.values import MIN_KEY_CHARS, Count, HostName

type HeaderName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9-]+$")]


class ConsoleSettings(Section):
    """The console: every rollout, seen from the log alone. See docs/console.md."""

    host: HostName = "127.0.0.1"
    """Address that it listens on. On any but a loopback address it needs a token, or a proxy that says who asks."""
    port: Port = 8900
    """Port of it; 0: any that is free."""
    token: SecretStr | None = None
    """Whoever shows this may look and act; 16 characters or more. Unset, this and the next: whoever reaches the address
    may look, and nobody may act."""
    viewer_token: SecretStr | None = None
    """Whoever shows this may look, and change nothing."""
    user_header: HeaderName | None = None
    """Header in which a proxy that has asked an identity provider (OIDC) says who it is, such as
    ``X-Forwarded-User``. The proxy must take it off what comes from outside. Unset: nobody is known by name."""
    proxy_key: SecretStr | None = None
    """What that proxy shows with each request, in the header ``X-Proxy-Key``; 16 characters or more. Whoever else
    reaches the port, and says who it is, is not believed."""
    roles_header: HeaderName | None = None
    """Header in which that proxy says what they may, separated by commas: ``viewer`` or ``operator``. Unset: all whom
    the proxy lets through are viewers."""
    folder: Path | None = None
    """Folder of its index, which can be deleted at any time: it is made anew from the log. Unset:
    ``trinity-bus/console`` in ``XDG_DATA_HOME`` (``~/.local/share``)."""
    jaeger_url: Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")] | None = None
    """Address of Jaeger's pages, such as ``http://localhost:16686``, that a sample's trace is linked to. Unset: its id
    is shown."""
    model_path: str | None = None
    """Folder of the Hugging Face model whose tokenizer turns samples into text. Unset: that of ``mesh``; where there is
    none, samples are shown as token ids, and cannot be searched for text."""
    search_tokens: Annotated[int, Field(ge=0)] = 2048
    """Tokens of each prompt and of each response that text is searched in: of longer ones the first and the last half
    of them. 0: samples cannot be searched for text."""
    read_mib_s: Count = 64
    """Most MiB a second that the index reads off the log."""

    @model_validator(mode="after")
    def _says_who_may_look(self) -> Self:
        for name in ("token", "viewer_token", "proxy_key"):
            secret: SecretStr | None = getattr(self, name)
            if secret is not None and len(secret) < MIN_KEY_CHARS:
                raise conflict(f"console.{name} has {len(secret)} characters, and needs {MIN_KEY_CHARS} or more")
        if (self.user_header is None) != (self.proxy_key is None):
            raise conflict("console.user_header is believed of whoever shows console.proxy_key: set both, or neither")
        if self.roles_header is not None and self.user_header is None:
            raise conflict("console.roles_header says what somebody may; console.user_header must say who it is")
        return self
