"""The section ``gateway``: where agents' requests come in, and how many of them."""

from pydantic import Field, SecretStr

from schemas.record import Identifier, Port
from trinity_bus.config.mesh import TemplateOptions, of_mesh
from trinity_bus.config.values import Count, HostName, InstanceName, Seconds, Section


class GatewaySettings(Section):
    """The gateway, which sends agents' HTTP requests to explorers. See docs/gateway.md."""

    name: InstanceName = "gateway-0"
    """Its name on the log, as the producer of contributions. ``{host}`` is replaced by the host's name."""
    host: HostName = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0: any free one."""
    api_keys: SecretStr | None = None
    """Keys of its clients, separated by blanks or commas, each as ``name:key`` or only a key. A client cannot see
    another's sessions. At least one, of 16 characters or more."""
    model: Identifier = of_mesh("model")
    pool: Identifier | None = None
    """The pool whose explorers it uses; the model's name for its clients. Unset: that of the trained model."""
    model_path: str | None = None
    """Folder of the Hugging Face model of its pool, for the tokenizer. Unset: that of ``mesh``."""
    temperature: float = Field(default=1.0, ge=0, le=10)
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
