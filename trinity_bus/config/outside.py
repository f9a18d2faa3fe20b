"""The sections ``gateway``, ``console``, ``health`` and ``telemetry``: what others ask, see and measure of a mesh."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from schemas.record import Identifier, Port
from trinity_bus.config.mesh import TemplateOptions, of_mesh
from trinity_bus.config.values import MIN_KEY_CHARS, Count, HostName, InstanceName, Seconds, Section, conflict

type HeaderName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9-]+$")]
type HttpAddress = Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")]


class GatewaySettings(Section):
    """The gateway, which sends agents' HTTP requests to explorers. See docs/gateway.md."""

    name: InstanceName = "gateway-0"
    """Its name on the log, as the producer of contributions. ``{host}`` is replaced by the host's name."""
    host: HostName = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0: any free one."""
    public_url: HttpAddress | None = None
    """Address that agents get, such as ``http://gateway:8000``: how they reach it from containers, from other machines
    or through a proxy. Without ``/v1``. Unset: ``http://`` with ``host`` and ``port``."""
    api_keys: SecretStr | None = None
    """Keys of its clients, separated by blanks or commas, as ``name:key`` or a key; 16 characters or more."""
    model: Identifier = of_mesh("model")
    pool: Identifier | None = None
    """The pool whose explorers it uses; the model's name for its clients. Unset: that of the trained model."""
    model_path: str | None = None
    """Folder of the Hugging Face model of its pool, for the tokenizer. Unset: that of ``mesh``."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Temperature of all responses, whatever clients request, because the trainer has to know it."""
    max_model_len: Count = of_mesh("max_model_len")
    max_tokens: Count = of_mesh("max_tokens")
    chat_template_options: TemplateOptions = of_mesh("chat_template_options")
    parse_special_tokens: bool = of_mesh("parse_special_tokens")
    renderer: str | None = of_mesh("renderer")
    timeout_s: Seconds = 600.0
    """Timeout of a response."""
    engine_wait_s: Seconds = 2.0
    """How long a request waits for an explorer before it is refused."""
    explorer_silence_s: Seconds = 10.0
    """Silence after which an explorer is not used any more."""
    max_requests: Count = 256
    """Concurrent requests of one client; more are refused with ``Retry-After``."""
    max_body_mib: Count = 16
    """Largest request."""
    max_waiting_mib: Count = 64
    """Memory of all requests that are not tokenized yet, except those of up to 64 KiB; one client may use half of it.
    Others wait, and are refused after ``body_timeout_s``."""
    body_timeout_s: Seconds = 60.0
    """How long a request's body may take to arrive."""
    max_sessions: Count = 10_000
    """Conversations that are remembered for feedback; then the client with the most loses its oldest idle one."""
    session_s: Seconds = 3600.0
    """How long an idle conversation is remembered."""

    @property
    def served(self) -> str:
        return self.model if self.pool is None else self.pool

    def reached_at(self, listens: str | None = None) -> str:
        """Return the address that agents get, of a gateway that listens at ``host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.public_url or f"http://{listens or f'{host}:{self.port}'}").rstrip("/")


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
    """Folder of its index, which is rebuilt from the log. Unset: ``trinity-bus/console`` in ``XDG_DATA_HOME``."""
    jaeger_url: HttpAddress | None = None
    """Address of Jaeger's pages, such as ``http://localhost:16686``, to link traces. Unset: ids are shown."""
    model_path: str | None = None
    """Folder of the Hugging Face model whose tokenizer converts samples to text. Unset: that of ``mesh``; without one,
    samples are shown as token ids and have no text search."""
    search_tokens: Annotated[int, Field(ge=0)] = 2048
    """Tokens of each prompt and response for text search: the first and the last half of them. 0: no text search."""

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


class HealthSettings(Section):
    """Where a service answers ``/livez`` and ``/readyz``."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port of the endpoint. Unset: none."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    wedged_s: Seconds = 15.0
    """A process whose event loop is blocked for this long is not alive."""
    start_s: Seconds = 900.0
    """How long a process may take to start."""
    unread_s: Seconds = 60.0
    """A service that has read nothing for this long, although there is something to read, is not ready."""


class TelemetrySettings(Section):
    """Spans and metrics without an OTLP endpoint. See docs/telemetry.md."""

    run_dir: Path | None = None
    """Folder of this run: spans go to ``traces/``, metrics to ``metrics/``. Unset: they are not stored."""
    run_id: Identifier | None = None
    """Name of this run, for a telemetry system with several runs. Unset: the name of ``run_dir``."""
    metrics_interval_s: Seconds = 10.0
    """How often metrics are written."""
    record_content: bool = False
    """Whether spans may contain messages, responses, tool calls, and texts of workflow errors, which may quote them."""
