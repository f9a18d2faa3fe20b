"""Options of chat templates, such as ``enable_thinking=False``, of a setting or of a request (pure)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from trinity_bus.chat.messages import ChatError

type TemplateOptions = Mapping[str, bool | int | float | str]

MAX_OPTIONS: Final = 32
MAX_OPTION_CHARS: Final = 1024  # of a name, and of a value that is text
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a tokenizer takes beside them: the template itself, say, which is a program.
NOT_OPTIONS: Final = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        "max_length",
        *("messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "self", "tokenize"),
        *("tokenizer_kwargs", "tools", "truncation"),
    }
)


def read_options(given: Any) -> TemplateOptions:
    """Return options of a chat template as they came; ChatError for what only this side may say."""
    if not isinstance(given, Mapping) or len(given) > MAX_OPTIONS:
        raise ChatError(f"options of the chat template are an object of at most {MAX_OPTIONS} fields")
    for name, value in given.items():
        if not isinstance(name, str) or len(name) > MAX_OPTION_CHARS or not _NAME.fullmatch(name):
            raise ChatError(f"an option of the chat template has a name, not {str(name)[:100]!r}")
        if name in NOT_OPTIONS:
            raise ChatError(f"{name!r} is no option of a chat template")
        if not isinstance(value, bool | int | float | str) or len(str(value)) > MAX_OPTION_CHARS:
            raise ChatError(f"option {name!r} is a number, true, false, or a text of {MAX_OPTION_CHARS} characters")
    return given
