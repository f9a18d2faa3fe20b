"""The section ``gateway``: where agents' requests come in, and how many of them."""

from pydantic import Field, SecretStr

from schemas.numbers import Port
from schemas.record import Identifier
from trinity_bus.config.mesh import TemplateOptions, of_mesh
from trinity_bus.config.section import Section
from trinity_bus.config.values import Count, HostName, InstanceName, Seconds


class GatewaySettings(Section):
    """Where agents' requests come in over HTTP, and go straight to explorers. See docs/gateway.md."""

    name: InstanceName = "gateway-0"
    """Its name on the log: whose contributions these are. ``{host}`` in it is the host's name."""
    host: HostName = "127.0.0.1"
    """Address that it listens on."""
    port: Port = 8000
    """Port of it; 0: any that is free."""
    api_keys: SecretStr | None = None
    """Keys of its clients, separated by blanks or commas, each as ``name:key`` or a key alone. What one has said is not
    known to the others. At least one, of 16 characters or more."""
    model: Identifier = of_mesh("model")
    pool: Identifier | None = None
    """The pool whose explorers it asks; what its clients call the model. Unset: that of the model that is trained."""
    model_path: str | None = None
    """Folder of the Hugging Face model of its pool, for the tokenizer. Unset: that of ``mesh``."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """At which all is drawn, whatever clients ask for: what is contributed was drawn as the trainer takes it to be."""
    max_model_len: Count = of_mesh("max_model_len")
    max_tokens: Count = of_mesh("max_tokens")
    chat_template_options: TemplateOptions = of_mesh("chat_template_options")
    parse_special_tokens: bool = of_mesh("parse_special_tokens")
    renderer: str | None = of_mesh("renderer")
    timeout_s: Seconds = 600.0
    """How long an answer may take."""
    engine_wait_s: Seconds = 2.0
    """How long a request waits for an explorer when there is none, before it is refused."""
    explorer_silence_s: Seconds = 10.0
    """After which an explorer that is not heard of is asked no more."""
    max_requests: Count = 256
    """Requests of one client at once; one more is refused, with ``Retry-After``."""
    max_body_mib: Count = 16
    """Largest request."""
    max_waiting_mib: Count = 64
    """What requests of all clients may take together until they are written as tokens, those of up to 64 KiB aside; a
    client's at most half of it. Others wait, and are refused after ``body_timeout_s``."""
    body_timeout_s: Seconds = 60.0
    """How long a request may take to come whole, before it is refused."""
    max_sessions: Count = 10_000
    """Conversations that are remembered for feedback; beyond, who has most forgets the one that was idle longest."""
    session_s: Seconds = 3600.0
    """How long a conversation is remembered that nobody goes on with."""

    @property
    def served(self) -> str:
        """What its model is called."""
        return self.model if self.pool is None else self.pool
