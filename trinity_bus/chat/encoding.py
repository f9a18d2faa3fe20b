"""Text as tokens of a model: the one place where text that came from outside is tokenized.

::

    text --longer than any prompt can be--> ChatError, before it is tokenized
      '--long--> counted piece by piece: too many tokens --> ChatError, before it is tokenized as a whole
      '--> tokens

    what others say --hidden--> a placeholder for each mark in it --a template--> the whole text
        --the template's own marks are tokens, those behind placeholders are text--> tokens

A tokenizer takes some 200 bytes of memory for each token, so a request of some MiB takes GiB. A text of more characters
than the longest token has, for each token of the longest prompt, cannot fit. Many tokens are shorter than the longest,
so what is much longer than prompts are is counted first, in pieces, and no further than to twice the limit.

Marks are the tokens that a tokenizer finds in text before anything else: ``<|im_end|>``, ``<think>``. A web page that a
tool reads may have one in it, which would end the tool's turn and begin one of the system's. So marks are text in what
users and tools say, and in the descriptions of tools. In what the system and assistants say, those are text that are
special to the tokenizer; others, such as ``<think>``, may be meant. ``mesh.parse_special_tokens`` lets all be tokens. A
prompt that is no conversation is written by whoever sends it, marks too.

Failures: ``ChatError`` for a text that is too long, and for marks in what a tokenizer cannot be told to take as text.

The tokenizer is loaded without torch: transformers needs torch for models only, but imports it wherever it finds it: 15
s and 600 MiB for each process that tokenizes. While it is imported here, it finds none. A process that has imported
torch before keeps it.
"""

import contextlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trinity_bus.chat.formats import READ, THINK, THOUGHT, in_reasoning
from trinity_bus.chat.messages import ChatError, ChatMessage, Tokenizer, ToolSchema, for_template
from trinity_bus.chat.rendering import TemplateOptions, read_options
from trinity_bus.errors import ConfigError

_PIECE: Final = 1 << 16  # characters that are tokenized at once to count them
# Bytes for each token of the longest prompt, up to which a text is not counted first.
_UNCOUNTED: Final = 4
# Characters of the longest token, where a tokenizer does not tell its vocabulary.
_LONGEST: Final = 128
# Characters that a token may stand for at least, whatever the vocabulary: several blanks, an unknown word.
_SHORTEST: Final = 16
# To some tokenizers they are special; templates look for them in what assistants say.
_REASONING: Final = frozenset({THINK, THOUGHT})
_HIDDEN: Final = f"mark{secrets.token_hex(8)}x"
_HIDDEN_MARK: Final = re.compile(rf"{_HIDDEN}(\d+)x")
# What marks are called that are to be tokens. Nobody else can know it, so nobody can write one.
_RENAMED: Final = f"mark{secrets.token_hex(8)}y"


@dataclass(frozen=True, slots=True)
class Writing:
    # Of the longest prompt (``mesh.max_model_len``): what is surely longer is not tokenized. None: no text is refused.
    max_tokens: int | None = None
    parse_special_tokens: bool = False  # whether marks in what users and tools say are tokens
    # Name of the package's renderer; None: the chat template, or what the model's name says.
    renderer: str | None = None


class Encoder:
    """Tokenizer of one model, within limits; to packages that want a tokenizer it looks like the model's own."""

    def __init__(self, tokenizer: Tokenizer, how: Writing) -> None:
        self.model = tokenizer
        self._tokenizer: Any = tokenizer
        self.how = how

    def __getattr__(self, name: str) -> Any:
        """Return what the tokenizer has, but not a way to call it, which would go past what is refused here."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def prompt(self, text: str) -> list[int]:
        """Return a prompt that is no conversation, with the model's beginning once; ChatError where it is too long."""
        self._check(text)
        token_ids: list[int] = self._tokenizer.encode(text)
        begin = getattr(self._tokenizer, "bos_token_id", None)
        # A prompt that was templated already has its own.
        return token_ids[1:] if begin is not None and token_ids[:2] == [begin, begin] else token_ids

    def encode(self, text: str, add_special_tokens: bool = False, **options: Any) -> list[int]:
        """Return the tokens of a text that a template has written, or a part of it; what is hidden in it is text.

        ChatError: it is too long, or a mark in it cannot be taken as text.
        """
        self._check(text)
        if _HIDDEN not in text:
            token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens, **options)
            return token_ids
        named = self._all.sub(lambda mark: f"{_RENAMED}{self._marks.index(mark[0])}y", text)
        shown = _HIDDEN_MARK.sub(lambda hidden: self._marks[int(hidden[1])], named)
        return list(self._renamed.encode(shown, add_special_tokens=False).ids)

    def begun(self, prompt: Sequence[int], text: str) -> list[int]:
        """Return the tokens of the beginning of an assistant's turn; ChatError where its prompt opens reasoning."""
        if in_reasoning(self.model, prompt):
            raise ChatError("this model's turns begin with reasoning, and cannot be begun for it")
        return self.encode(self.hidden({"role": "assistant", "content": text})["content"])

    def hidden(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message as a chat template is to see it."""
        marks = self._special if message.get("role") in ("system", "assistant") else self._all
        return {name: self._hide(value, marks) for name, value in message.items()}

    def written(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSchema] | None) -> list[dict[str, Any]]:
        """Return messages as a chat template is to see them; ChatError where they and the tools are too long."""
        self.check([messages, tools])
        return [self.hidden(for_template(one)) for one in messages]

    def hidden_tools(self, tools: Sequence[ToolSchema] | None) -> list[dict[str, Any]] | None:
        """Return the descriptions of tools as a chat template is to see them; None where there are none."""
        if not tools:
            return None
        return [{name: self._hide(value, self._all) for name, value in tool.items()} for tool in tools]

    def check(self, value: Any) -> None:
        """Raise ChatError for a value, such as messages, with more characters than fit."""
        if self.how.max_tokens is not None:
            self._fits(_characters(value))

    def shown(self, text: str) -> str:
        return _HIDDEN_MARK.sub(lambda hidden: self._marks[int(hidden[1])], text)

    def _hide(self, value: Any, marks: re.Pattern[str]) -> Any:
        if self.how.parse_special_tokens:
            return value
        if isinstance(value, str):
            return marks.sub(lambda mark: f"{_HIDDEN}{self._marks.index(mark[0])}x", value)
        if isinstance(value, Mapping):
            return {self._hide(name, marks): self._hide(one, marks) for name, one in value.items()}
        return [self._hide(one, marks) for one in value] if isinstance(value, list | tuple) else value

    def _check(self, text: str) -> None:
        limit = self.how.max_tokens
        if limit is None:
            return
        self._fits(len(text))
        if len(text) <= max(_PIECE, limit) or len(text.encode(errors="replace")) <= _UNCOUNTED * limit:
            return
        counted = 0
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            counted += len(self._tokenizer.encode(piece, add_special_tokens=False))
            # A cut makes some tokens more of what would be one, though not so many.
            if counted > 2 * limit:
                raise self._too_long(len(text))

    def _fits(self, characters: int) -> None:
        limit = self.how.max_tokens or 0
        if characters > limit * _SHORTEST and characters > limit * self._longest:
            raise self._too_long(characters)

    def _too_long(self, characters: int) -> ChatError:
        return ChatError(
            f"a text of {characters} characters is more than a prompt can have: the model takes {self.how.max_tokens} "
            "tokens (mesh.max_model_len)"
        )

    @cached_property
    def _longest(self) -> int:
        if not hasattr(self._tokenizer, "get_vocab"):
            return _LONGEST
        return max(_SHORTEST, max(map(len, self._tokenizer.get_vocab()), default=0))

    @cached_property
    def ends(self) -> frozenset[int]:
        """The marks that may end a turn, and are no text of it: of several ends a tokenizer names one by itself."""
        named = {*self._tokenizer.all_special_ids, *(number for number, one in self._added.items() if one.special)}
        return frozenset(named - {number for number, one in self._added.items() if one.content in READ})

    @cached_property
    def _added(self) -> dict[int, Any]:
        return dict(getattr(self._tokenizer, "added_tokens_decoder", {}))

    @cached_property
    def _marks(self) -> list[str]:
        return sorted({one.content for one in self._added.values() if one.content}, key=len, reverse=True)

    @cached_property
    def _all(self) -> re.Pattern[str]:
        return _any_of(self._marks)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        special = {one.content for one in self._added.values() if one.special} - _REASONING
        return _any_of([mark for mark in self._marks if mark in special])

    @cached_property
    def _renamed(self) -> Any:
        """The same tokenizer, with other names of its marks: to it, those that others write are text."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ChatError(
                "what users or tools say has one of the model's special tokens in it, which this tokenizer cannot take "
                "as text: mesh.parse_special_tokens = true has it taken as that token"
            )
        names = {mark: f"{_RENAMED}{number}y" for number, mark in enumerate(self._marks)}
        written = json.loads(backend.to_str())
        for added in written["added_tokens"]:
            added["content"] = names.get(added["content"], added["content"])
        model = written["model"]
        if isinstance(vocabulary := model.get("vocab"), dict):
            model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
        elif isinstance(vocabulary, list):
            model["vocab"] = [[names.get(token, token), *rest] for token, *rest in vocabulary]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        written |= {"post_processor": None, "truncation": None, "padding": None}
        renamed = type(backend).from_str(json.dumps(written))
        for mark, name in names.items():
            if renamed.token_to_id(name) != backend.token_to_id(mark):
                raise ChatError(f"the model's tokenizer cannot take its special token {mark!r} as text")
        return renamed


def encoder_of(tokenizer: Tokenizer | Encoder) -> Encoder:
    """Return what makes tokens of text for a model; that which it was loaded with, where it has one."""
    if isinstance(tokenizer, Encoder):
        return tokenizer
    known = getattr(tokenizer, "encoder_of_text", None)
    return known if isinstance(known, Encoder) else Encoder(tokenizer, Writing())


def _any_of(marks: Sequence[str]) -> re.Pattern[str]:
    # Without marks it finds nothing.
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)")


def _characters(value: Any) -> int:
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
    return count


_AS_IT_COMES: Final = Writing()


def load_tokenizer(model_path: str, options: TemplateOptions | None = None, how: Writing = _AS_IT_COMES) -> Tokenizer:
    """Return the tokenizer of a Hugging Face model; ConfigError, and ChatError for the options.

    ``options`` of its chat template (``mesh.chat_template_options``), and ``how``, are for ``renderer_for`` to find.
    """
    options = read_options(options or {})
    # Its threads would not survive a fork, and it says so at length.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if Path(model_path).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with without_torch():
        from transformers import AutoTokenizer

        try:
            # Left out, it asks at the terminal whether code of the folder may run.
            tokenizer: Any = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
        # Its errors have no common base; what is wrong is in the folder.
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{model_path} has no tokenizer that can be read: {told}") from error
    tokenizer.chat_template_options = options
    tokenizer.encoder_of_text = Encoder(tokenizer, how)
    loaded: Tokenizer = tokenizer
    return loaded


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Within the block, whoever looks for torch finds none; a process that has imported it keeps it.

    Where transformers was imported before, it remembers whether there is a torch, and imports it when it needs it.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    # It would say that models are not available without torch.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # None is how an import is forbidden; whoever looks whether there is such a module finds none.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
