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
"""

from trinity_bus.chat.messages import ChatError, Completion, Tokenizer
from trinity_bus.chat.renderer import TemplateRenderer, renderer_for
from trinity_bus.chat.rendering import Renderer
from trinity_bus.chat.session import ModelReply, Prompt, Session, TokenSample
from trinity_bus.chat.written import ExampleWriter, WrittenAnswer

__all__ = [
    "ChatError",
    "Completion",
    "ExampleWriter",
    "ModelReply",
    "Prompt",
    "Renderer",
    "Session",
    "TemplateRenderer",
    "TokenSample",
    "Tokenizer",
    "WrittenAnswer",
    "renderer_for",
]
