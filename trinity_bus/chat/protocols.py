"""What conversations need of a tokenizer."""

from collections.abc import Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that workflows use."""

    chat_template: Any

    @property
    def all_special_ids(self) -> Sequence[int]:
        """Tokens that are marks and no text, such as the end of a turn."""

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


class EndingTokenizer(Tokenizer, Protocol):
    @property
    def eos_token_id(self) -> int | None:
        """None where the model has none."""
