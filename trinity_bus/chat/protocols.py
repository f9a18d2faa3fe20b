"""What conversations need of a tokenizer, and of what an engine gives back."""

from collections.abc import Sequence
from typing import Any, Protocol

from schemas.experience import UInt8, VersionSpan


class Completion(Protocol):
    """One response of an engine, as token ids."""

    @property
    def token_ids(self) -> Sequence[int]:
        """[tokens] what was drawn, the end-of-sequence token included where one was drawn."""
        ...

    @property
    def logprobs(self) -> Sequence[float]:
        """[tokens] natural logarithm of each token's probability under the policy that drew it."""
        ...

    @property
    def finish_reason(self) -> str:
        """``stop`` at an end token or stop string, ``length`` at a limit."""
        ...

    @property
    def versions(self) -> Sequence[VersionSpan]:
        """Ascending; the first span starts at 0."""
        ...

    @property
    def routes(self) -> UInt8 | None:
        """[prompt + tokens - 1, layers, k] the experts that each MoE layer chose; None where nobody has noted them."""
        ...


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that workflows use."""

    chat_template: Any

    @property
    def all_special_ids(self) -> Sequence[int]:
        """Tokens that are marks and no text, such as the end of a turn."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **options: Any,
    ) -> Any:
        """Token ids of a conversation; its text where ``tokenize`` is False."""
        ...


class EndingTokenizer(Tokenizer, Protocol):
    """A tokenizer that also says how a response to a plain prompt ends."""

    @property
    def eos_token_id(self) -> int | None:
        """None where the model has none."""
        ...
