"""A thousand random histories: what is trained on is what was drawn, after what it was drawn after."""

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

import pytest

from schemas import build_group
from tests.support.chat.models import END, RENDERED, tokenizer_of
from trinity_bus.chat import Completion, Session, renderer_for

WORDS = tuple("The answer is 42, and so the weather in Paris is lazy  é 漢字 \n\n{} <b> think".split(" "))  # noqa: SIM905 (short)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        },
    }
]


@dataclass(frozen=True)
class Sent:
    """What the engine was asked, and what it drew."""

    prompt: tuple[int, ...]
    drawn: Completion


class Agent:
    """Says random things to a session that draws random tokens, and goes back, changes and repeats what was said."""

    def __init__(self, family: str, seed: int, name: str = "") -> None:
        self.chance = random.Random(seed)  # noqa: S311 (histories, no secrets)
        self.family = family
        self.tokenizer = tokenizer_of(family, name)
        self.session = Session(renderer_for(self.tokenizer))
        self.tools = TOOLS if self.chance.random() < 0.5 else None
        self.sent: list[Sent] = []
        self.histories: list[list[dict[str, Any]]] = [self.opening()]
        self.version = 0

    def words(self) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, 8)))

    def opening(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.words()}] if self.chance.random() < 0.5 else []
        return [*system, {"role": "user", "content": self.words()}]

    def draw(self) -> Completion:
        """What a model may say: text as it would never be tokenized, reasoning, calls good and bad, and pure noise."""
        encode = self.tokenizer.encode
        kind = self.chance.random()
        if kind < 0.3:
            call = json.dumps({"name": "add", "arguments": {"a": self.chance.randint(0, 9), "b": 2}})
            text = f"{self.words()}\n<tool_call>\n{call}\n</tool_call>"
        elif kind < 0.5:
            text = f"<think>\n{self.words()}\n</think>\n\n{self.words()}"
        elif kind < 0.6:
            text = f"<tool_call>{{{self.words()}"
        else:
            text = self.words()
        # Character by character where it is not in one: the tokens of no tokenizer.
        ids = encode(text, add_special_tokens=False)
        if self.chance.random() < 0.5:
            ids = [token for character in text for token in encode(character, add_special_tokens=False)]
        if self.chance.random() < 0.2:
            ids = [self.chance.randrange(len(self.tokenizer)) for _ in range(self.chance.randint(1, 12))]
        ended = self.chance.random() < 0.8
        if ended:
            ids = [*ids, self.tokenizer.convert_tokens_to_ids(END[self.family])]
        ids = ids or [0]
        self.version += self.chance.random() < 0.3
        versions = [(0, self.version)]
        if len(ids) > 2 and self.chance.random() < 0.2:
            self.version += 1
            versions.append((len(ids) // 2, self.version))
        return Completion(ids, [-self.chance.random() for _ in ids], "stop" if ended else "length", versions)

    def step(self) -> None:
        history = self.chance.choice(self.histories[-3:])
        prompt = self.session.prompt(history, self.tools)
        for _ in range(2 if self.chance.random() < 0.1 else 1):
            drawn = self.draw()
            said = self.session.add(prompt, drawn)
            self.sent.append(Sent(tuple(prompt.token_ids), drawn))
        self.histories.append(self.next(history, said.message))

    def next(self, history: list[dict[str, Any]], message: dict[str, Any]) -> list[dict[str, Any]]:
        """What the agent says next: mostly more, at times something else."""
        said = copy.deepcopy(message)
        said.pop("reasoning_content", None)
        if not said["content"]:
            said["content"] = None
        answers: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self.words()} for call in said.get("tool_calls", ())
        ]
        more = [*history, said, *(answers or [{"role": "user", "content": self.words()}])]
        kind = self.chance.random()
        if kind < 0.06:
            return [{"role": "user", "content": f"So far: {self.words()}"}]
        if kind < 0.12:
            changed = copy.deepcopy(more)
            one = self.chance.choice(changed)
            one["content"] = f"{one['content']} indeed"
            return changed
        if kind < 0.16:
            return history
        return more


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize(("family", "name"), RENDERED)
def test_what_is_trained_is_what_was_drawn(family: str, name: str, block: int) -> None:
    # 3 families x 4 blocks x 84: a thousand and eight. And as many as of one with the package's renderer.
    for seed in range(block * 84, (block + 1) * 84):
        agent = Agent(family, seed, name)
        for _ in range(agent.chance.randint(2, 9)):
            agent.step()
        samples = agent.session.samples
        assert agent.session.turns == len(agent.sent), seed
        assert len(samples) == 1 + agent.session.rewrites + agent.session.branches, seed

        trained = []
        for sample in samples:
            tokens = [*sample.prompt_token_ids, *sample.response_token_ids]
            before = len(sample.prompt_token_ids)
            for start, end in zip(sample.turn_starts, [*sample.turn_starts[1:], None], strict=True):
                own = list(zip(sample.mask[start:end], sample.response_token_ids[start:end], strict=True))
                length = next((i for i, (drawn, _) in enumerate(own) if not drawn), len(own))
                # After a turn comes only what the model was told.
                assert not any(drawn for drawn, _ in own[length:]), seed
                at = before + start
                logprobs = tuple(sample.logprobs[start : start + length])
                versions = tuple(version_at(sample.versions, start + i) for i in range(length))
                trained.append((tuple(tokens[:at]), tuple(tokens[at : at + length]), logprobs, versions))
        drawn = [
            (
                one.prompt,
                tuple(one.drawn.token_ids),
                tuple(one.drawn.logprobs),
                tuple(version_at(one.drawn.versions, i) for i in range(len(one.drawn.token_ids))),
            )
            for one in agent.sent
        ]
        assert sorted(trained) == sorted(drawn), seed
        assert build_group(
            [sample.rollout(reward=1.0, metrics={}) for sample in samples],
            task_id="t", attempt=1, batch_id="b", batch_type="train", workflow="w", model="m", explorer="e",
            incarnation="i",
        ).mask.sum() == sum(len(one.drawn.token_ids) for one in agent.sent)  # fmt: skip


def version_at(spans: list[tuple[int, int]], position: int) -> int:
    return [version for start, version in spans if start <= position][-1]


def test_the_histories_have_all_there_is() -> None:
    agents = [Agent("qwen3", seed) for seed in range(84)]
    for agent in agents:
        for _ in range(agent.chance.randint(2, 9)):
            agent.step()
    assert sum(agent.session.rewrites for agent in agents) > 20
    assert sum(agent.session.branches for agent in agents) > 20
    assert any(len(sample.turn_starts) > 3 for agent in agents for sample in agent.session.samples)
