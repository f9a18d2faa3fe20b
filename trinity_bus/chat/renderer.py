"""A renderer for any chat template: what is new is the difference that it makes to what the template writes.

What follows a turn is found by writing a short conversation, with a mark in place of the turn::

    user: .   assistant: MARK   <what is new>   assistant:
                             `-----------------------------' what follows the turn, its end included

So it costs what the new messages are long, however long the conversation is. The template sees neither what was said
before nor what was drawn, and cannot take anything of it back: reasoning that it leaves out of earlier turns stays
where it was drawn.

A model that the package ``renderers`` knows by its name has that package's renderer instead, where it is installed, and
so has one for which ``mesh.renderer`` names it; every other model, and each that is a folder, its own chat template.
See docs/decisions/0015.

A template is a program of somebody else. ``limited`` ends one that takes too much of the processor's time.

::

    RUNNING --returns, raises--> over
       '--the thread has computed for longer: an exception is raised in it at its next step--> TimeoutError

Time counts only while the thread computes, not while the machine is busy or stands still. One thread looks on, once a
second, while there is something to look at. What computes in one step of C is not broken off before that step ends.
"""

import ctypes
import importlib.util
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from trinity_bus.chat.encoding import Encoder, encoder_of
from trinity_bus.chat.formats import (
    THINK,
    Read,
    calls_only_by_name,
    format_of,
    in_reasoning,
    opens_reasoning,
    read_llama,
    read_xml,
    split_reasoning,
    without_marks,
)
from trinity_bus.chat.messages import ChatError, ChatMessage, Tokenizer, for_template, text_of
from trinity_bus.chat.rendering import OPENING, DrawnTurn, Renderer, Speech, TemplateOptions, Tools, after

_LOOK_S: Final = 1.0
_RAISE: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _BrokenOffError(BaseException):
    # Raised from outside; no ``except Exception`` of the called program keeps it.
    pass


class _Watch:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, tuple[int, float]] = {}  # clock of each thread, and what it may show
        self._looks = False

    def begin(self, thread: int, limit_s: float) -> None:
        clock = time.pthread_getcpuclockid(thread)
        with self._changed:
            if not self._looks:
                # It waits for this lock. Where there is no room for a thread now, there may be at the next call.
                threading.Thread(target=self._look, name="cpu-limit", daemon=True).start()
                self._looks = True
            self._running[thread] = clock, time.clock_gettime(clock) + limit_s

    def end(self, thread: int) -> None:
        with self._changed:
            self._running.pop(thread, None)
        _RAISE(ctypes.c_ulong(thread), None)

    def _look(self) -> None:
        with self._changed:
            while self._running:
                self._changed.wait(_LOOK_S)
                for thread, (clock, until) in list(self._running.items()):
                    if time.clock_gettime(clock) > until:
                        del self._running[thread]
                        _RAISE(ctypes.c_ulong(thread), ctypes.py_object(_BrokenOffError))
            self._looks = False


_watch = _Watch()


def _forget() -> None:
    # A forked process has none of the threads.
    global _watch  # noqa: PLW0603 - one for the process
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


def limited[T](limit_s: float, call: Callable[[], T]) -> T:
    """Return what a call returns; TimeoutError where it has computed for longer than ``limit_s``."""
    watch, thread = _watch, threading.get_ident()
    try:
        watch.begin(thread, limit_s)
        try:
            return call()
        finally:
            watch.end(thread)
    except _BrokenOffError:
        watch.end(thread)
        raise TimeoutError(f"it was broken off after {limit_s:g} s of the processor's time") from None


_MARK: Final = f"turn-{secrets.token_hex(8)}-that-was-drawn"
_NO_TEMPLATE: Final = "the model's tokenizer has no chat template; send a prompt"
# Of the processor's time, for one text: a template is a program, and some never end.
_LIMIT_S: Final = 10.0

_log = logging.getLogger(__name__)


class TemplateRenderer:
    def __init__(self, tokenizer: Tokenizer | Encoder, options: Mapping[str, Any]) -> None:
        self._encoder = encoder_of(tokenizer)
        self._tokenizer = self._encoder.model
        self._options = options
        self._ends = self._encoder.ends
        self._read = format_of(str(self._tokenizer.chat_template))

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        return self._encoder.encode(self._apply(self._encoder.written(messages, tools), tools))

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        said = {"role": "assistant", "content": _MARK}
        text = self._apply([OPENING, said, *self._encoder.written(messages, tools)], tools)
        _, mark, following = text.rpartition(_MARK) if text.count(_MARK) == 1 else ("", "", "")
        if not mark:
            raise ChatError("the model's chat template does not write an assistant's turn as it is said")
        new = self._encoder.encode(following)
        return new[self._end_of_turn(drawn, new) :]

    def begun(self, prompt: Sequence[int], text: str) -> list[int]:
        return self._encoder.begun(prompt, text)

    def read(self, drawn: DrawnTurn, tools: Tools) -> Read:
        text = self._tokenizer.decode(without_marks(drawn.token_ids, self._ends))
        reasoning, rest = split_reasoning(text, opened=in_reasoning(self._tokenizer, drawn.prompt))
        read = Read(rest)
        if tools:
            read = read_xml(rest, tools) if self._read is read_xml else self._read(rest)
        if self._read is read_llama and not calls_only_by_name(read, rest, tools or ()):
            read = Read(rest)
        read.reasoning = reasoning
        return read

    def configured(self, options: TemplateOptions) -> "TemplateRenderer":
        return TemplateRenderer(self._encoder, {**self._options, **options})

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        """Where the prompt opens reasoning, a turn begins in it, even where there is none."""
        opening = self._apply([OPENING], tools)
        whole = self._apply([OPENING, for_template(message)], tools, prompted=False)
        if whole.startswith(opening) or not opens_reasoning(opening):
            return self._encoder.encode(after(opening, whole))
        # Templates that open it in a prompt leave it out of what was said before, with all that they write of it.
        _, said = split_reasoning(after(opening[: opening.rindex(THINK)], whole), opened=False)
        inside, _ = split_reasoning(text_of(message), opened=False)
        reasoning = message.get("reasoning_content") or inside or ""
        return self._encoder.encode(f"{reasoning.strip()}\n</think>\n\n{said.lstrip()}")

    def speech(self, prompt: Sequence[int], stop: Sequence[str], tools: Tools = None) -> Speech:
        opened, object_is_call = in_reasoning(self._tokenizer, prompt), bool(tools) and self._read is read_llama
        return Speech(
            self._tokenizer,
            self._ends,
            opened=opened,
            stop=stop,
            object_is_call=object_is_call,
            called=bool(tools),
        )

    def _end_of_turn(self, drawn: DrawnTurn, new: Sequence[int]) -> int:
        """Return how many of the tokens that follow are the turn's end, and were drawn."""
        last = drawn.token_ids[-1] if drawn.token_ids else None
        if last not in self._ends:
            return 0
        end = next((i for i, token in enumerate(new) if token in self._ends), None)
        if end is None or self._tokenizer.decode(list(new[:end])).strip():
            return 0
        # A model may end a turn with another mark than its template does.
        return end + 1 if drawn.ended or new[end] == last else 0

    def _apply(self, messages: list[dict[str, Any]], tools: Tools, *, prompted: bool = True) -> str:
        given = {"tools": self._encoder.hidden_tools(tools)} if tools else {}
        try:
            text: str = limited(
                _LIMIT_S,
                lambda: self._tokenizer.apply_chat_template(
                    messages,
                    add_generation_prompt=prompted,
                    tokenize=False,
                    return_dict=False,
                    **given,
                    **self._options,
                ),
            )
        except Exception as error:
            # A template is a program that may raise anything, and the messages are not its own.
            told = self._encoder.shown(f"{type(error).__name__}: {error}")
            raise ChatError(f"the model's chat template cannot write this: {told}") from error
        return text


class PromptsOnly:
    """Renderer of a model without a chat template: prompts are completed, conversations refused."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ChatError(_NO_TEMPLATE)

    prompt = extension = begun = configured = turn = _refuse

    def read(self, drawn: DrawnTurn, tools: Tools) -> Read:
        del tools
        return Read(self._tokenizer.decode(list(drawn.token_ids)))

    def speech(self, prompt: Sequence[int], stop: Sequence[str], tools: Tools = None) -> Speech:
        del prompt, tools
        return Speech(self._tokenizer, encoder_of(self._tokenizer).ends, stop=stop, plain=True)


def renderer_for(tokenizer: Tokenizer, **options: Any) -> Renderer:
    """Return the renderer of a model, whose tokenizer is as ``load_tokenizer`` gives it.

    ``options`` are more of its chat template, such as ``enable_thinking=False``; ChatError where it has no such option.
    """
    encoder = encoder_of(tokenizer)
    options = {**getattr(tokenizer, "chat_template_options", {}), **options}
    name = str(getattr(tokenizer, "name_or_path", ""))
    is_there = importlib.util.find_spec("renderers") is not None
    if encoder.how.renderer is not None and not is_there:
        raise ChatError(f"mesh.renderer = {encoder.how.renderer!r} needs the package renderers: pip install renderers")
    if encoder.how.renderer is not None or (name and not Path(name).is_dir() and is_there):
        from trinity_bus.chat.packaged import PackagedRenderer, knows

        if encoder.how.renderer is not None or knows(name):
            _log.debug("the package renderers writes conversations with %s", name)
            return PackagedRenderer(encoder, options)
    if not tokenizer.chat_template:
        raise ChatError(_NO_TEMPLATE)
    return TemplateRenderer(encoder, options)
