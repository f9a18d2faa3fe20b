"""Conversations as token ids: the model's next prompt, and which tokens are trained on.

::

    messages, tools ──> Session.prompt ──> Prompt (token ids) ──> an engine
         ^                                                           |
         |                                                           v
    ModelReply (text, reasoning, tool calls) <── Session.add <── the tokens that were drawn
                                                      |
                                              samples, ready for ``schemas.experience.Rollout``

One rule: a token that was drawn is never made again from text. What follows is appended to what was prompted and drawn
before, as token ids; what is no continuation of that begins a sample of its own, and is counted. The text of a turn is
for people, tools and clients, and no token is ever made of it.

``session``      the rule: which tokens come next, and which samples they make (pure)
``messages``     messages of OpenAI's shape, compared by what they mean
``encoding``     text as tokens: how much, and what in it is a mark
``renderer``     how a model writes messages as tokens, and which renderer a tokenizer gets
``speech``       the text of a turn while it is drawn
``template``     a renderer for any chat template: by the difference that the template makes for what is new
``packaged``     a renderer for the models that the package ``renderers`` knows
``formats``      how models write tool calls and reasoning, a file for each format
``openai``       OpenAI's chat completions, as requests to a session and what it has said
``written``      examples as the tokens that a model would have drawn, and which of them it learns from (pure)
``protocols``    what is needed of a tokenizer and of a completion
"""

from trinity_bus.chat.formats import ParsedCall
from trinity_bus.chat.messages import ChatError, ChatMessage, ToolSchema
from trinity_bus.chat.protocols import Completion, EndingTokenizer, Tokenizer
from trinity_bus.chat.renderer import Renderer, renderer_for
from trinity_bus.chat.session import ModelReply, Prompt, Session, TokenSample
from trinity_bus.chat.template import TemplateRenderer
from trinity_bus.chat.written import ExampleWriter, WrittenAnswer

__all__ = [
    "ChatError",
    "ChatMessage",
    "Completion",
    "EndingTokenizer",
    "ExampleWriter",
    "ModelReply",
    "ParsedCall",
    "Prompt",
    "Renderer",
    "Session",
    "TemplateRenderer",
    "TokenSample",
    "Tokenizer",
    "ToolSchema",
    "WrittenAnswer",
    "renderer_for",
]
