"""The section ``console``: where it listens, who may look, and where its index lies."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from schemas.record import Port
from trinity_bus.config.values import MIN_KEY_CHARS, Count, HostName, Section, conflict

type HeaderName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9-]+$")]


class ConsoleSettings(Section):
    """The console, which shows every rollout from the log. See docs/console.md."""

    host: HostName = "127.0.0.1"
    """Address to listen on. Any but a loopback address requires a token, or a proxy that names the user."""
    port: Port = 8900
    """Port to listen on; 0: any free one."""
    token: SecretStr | None = None
    """Token to look and act; 16 characters or more. Without it and the next, all may look, and nobody may act."""
    viewer_token: SecretStr | None = None
    """Token to look without changing anything."""
    user_header: HeaderName | None = None
    """Header in which a proxy names the user after asking an identity provider (OIDC), such as ``X-Forwarded-User``.
    The proxy must remove it from incoming requests. Unset: users have no names."""
    proxy_key: SecretStr | None = None
    """Secret of that proxy, in the header ``X-Proxy-Key``; 16 characters or more. Others cannot name a user."""
    roles_header: HeaderName | None = None
    """Header in which that proxy lists the user's roles, ``viewer`` or ``operator``. Unset: all are viewers."""
    folder: Path | None = None
    """Folder of its index, which can be deleted at any time: it is rebuilt from the log. Unset: ``trinity-bus/console``
    in ``XDG_DATA_HOME`` (``~/.local/share``)."""
    jaeger_url: Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")] | None = None
    """Address of Jaeger's pages, such as ``http://localhost:16686``, to link traces. Unset: ids are shown."""
    model_path: str | None = None
    """Folder of the Hugging Face model whose tokenizer converts samples to text. Unset: that of ``mesh``; without one,
    samples are shown as token ids and have no text search."""
    search_tokens: Annotated[int, Field(ge=0)] = 2048
    """Tokens of each prompt and response for text search: the first and the last half of them. 0: no text search."""
    read_mib_s: Count = 64
    """Maximum MiB a second that the index reads from the log."""

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
