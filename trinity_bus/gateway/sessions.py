"""What a gateway's clients have said, which reward it got, and what is to be contributed of it. Pure: told the time.

::

    request --open--> Dialogue --answered--> answer ids, each of one or several samples
    another gateway's, on the log --take-------------'|
    feedback: ids, or a conversation; a reward -------'--> REWARDED, under a task and a run --pending--> Contribution
                                                                                                  |
                                                              settled: forgotten, but that it was -'

Without a session in its URL each request is a conversation of its own, known by the id of its answer, or the next turn
of one, where it continues an answer by that id. Of a client only what it has said itself is known to it. A reward is of
the sample that its answer is in; of several for one sample the last is the sample's, and each its own turn's. Samples
without a reward are not contributed.

A conversation is forgotten when nobody went on with it for long, or when there are too many, or too long ones, of the
client that has most: its oldest of too many, its longest of too long ones. Then its ids are unknown.
An id that has had its reward is remembered longer, so that a second one is known to be a second one.
"""

import math
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemas.experience import Rollout
from schemas.sampling import Sampling
from trinity_bus.chat import Completion, Renderer, Session, TokenSample
from trinity_bus.errors import TrinityError

MOST_COUNTED: Final = 100_000  # ids that are remembered to have had their reward
MOST_SAMPLES: Final = 1024  # of one conversation
MOST_TOKENS: Final = 1 << 26  # of all conversations: some 2.5 GB of memory
MOST_TOLD: Final = 16 << 20  # bytes of the stored answers of one conversation, and of what they were asked with
# Of memory, that one takes. By so many bytes of routes, kept tokens or messages a conversation counts as one token
# longer.
TOKEN_BYTES: Final = 40
_TOLD_BYTES: Final = 256  # of memory, of what is told beside its messages
# Ids of answers: which kind of client asked, when (there another gateway begins to look on the log), 80 random bits:
# chatcmpl-019ab3c4d5e6f00dfeedbeefcafe0123 has milliseconds since the epoch, 12 digits, and 20 random ones.
_ID: Final = re.compile(r"(?:chatcmpl-|cmpl-|msg_|resp_)([0-9a-f]{12})[0-9a-f]{20}")


class UnknownAnswerError(TrinityError, LookupError):
    """Something that this client was never answered there, or that was not stored, or is forgotten.

    ``param``: which field of its request names it.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ConversationFullError(TrinityError, ValueError):
    """A conversation that takes no more: it has all turns and samples that one may have, or its reward."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a stored answer was asked with, and the answer."""

    previous: str | None  # id of the answer that it has continued
    asked: bytes  # JSON of the messages that came after that
    answer: bytes = b"[]"  # the same of what was said then
    whole: bytes | None = None  # JSON of the answer as its client got it; None where there is no room for it
    deleted: bool = False

    @property
    def needed(self) -> int:  # bytes, to continue it
        return len(self.asked) + len(self.answer) + _TOLD_BYTES

    @property
    def size(self) -> int:
        return self.needed + len(self.whole or b"")


@dataclass(slots=True)
class SampleReward:
    value: float
    task_id: str
    run_id: int
    turns: dict[int, float] = field(default_factory=dict)  # of the turns that got one by themselves


@dataclass(slots=True, eq=False)
class Dialogue:
    owner: str
    name: str
    session: Session
    sampling: Sampling  # how its answers are drawn
    used_at: float
    single: bool = False  # whether it is of no session: one request by itself, and those that continue its answers
    tokens: int = 0  # of all its samples, and what their routes count as
    fruitless: int = 0  # how often answers of others were looked for in vain
    part: int = 1  # grows when it is gone on with after it was contributed
    answers: list[str] = field(default_factory=list)
    told: dict[str, Told] = field(default_factory=dict)  # by the ids of stored answers
    rewards: dict[int, SampleReward] = field(default_factory=dict)  # by sample

    @property
    def task_id(self) -> str:
        """Under which it is contributed, unless the feedback names another."""
        name = f"{self.owner}/{self.name}"
        return name if self.part == 1 else f"{name}/{self.part}"

    @property
    def stored_bytes(self) -> int:
        return sum(one.size for one in self.told.values())


@dataclass(frozen=True, slots=True)
class Contribution:
    task_id: str
    rollouts: Sequence[Rollout]
    conversations: Sequence[Dialogue]

    @property
    def covers(self) -> list[str]:
        """Ids under which another gateway, which was given other rewards, could contribute some of it."""
        return [one.task_id for one in self.conversations if one.single and one.task_id != self.task_id]


class Sessions:
    """The sessions of all clients: at most so many, each for so long as somebody goes on with it."""

    def __init__(self, renderer: Renderer, sampling: Sampling, *, most: int, keep_s: float) -> None:
        self.renderer = renderer
        self._sampling = sampling
        self._most = most
        self._keep_s = keep_s
        self._open: OrderedDict[tuple[str, str], Dialogue] = OrderedDict()  # the one that was idle longest first
        self._of: Counter[str] = Counter()  # how many of them each client has
        self._tokens: Counter[str] = Counter()  # how many tokens are in those of each
        # By owner and id of an answer: the sample and turn of each of its responses.
        self._places: dict[tuple[str, str], tuple[Dialogue, list[tuple[int, int]]]] = {}
        # By owner and task, the run that each of its conversations is.
        self._runs: dict[tuple[str, str], dict[str, int]] = {}
        self._counted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.forgotten = 0  # conversations with answers that were never rewarded

    def __len__(self) -> int:
        return len(self._open)

    @property
    def ready(self) -> int:
        """Samples that have a reward and are not contributed yet."""
        return sum(len(one.rewards) for one in self._open.values())

    def open(self, owner: str, name: str, now: float, *, single: bool = False) -> Dialogue:
        """Return a conversation of this name (the answer's id, where no session), a new one where there is none.

        A ``single`` one goes on by the ids of its answers alone. Raises ConversationFullError: it has all turns and
        samples that it may.
        """
        key = owner, name
        known = self._open.get(key)
        if known is None:
            known = self._open[key] = Dialogue(owner, name, Session(self.renderer), self._sampling, now, single)
            self._of[owner] += 1
        elif len(known.session.samples) >= MOST_SAMPLES or len(known.answers) >= MOST_SAMPLES:
            raise ConversationFullError(f"session {name!r} has {MOST_SAMPLES} answers: begin another one")
        known.used_at = now
        self._open.move_to_end(key)
        self._forget(now)
        return known

    def continued(self, owner: str, previous: str, name: str | None, now: float) -> tuple[Dialogue, list[bytes]]:
        """Return the conversation of an answer that is continued by its id, and JSON of all messages up to there.

        Raises as ``stored`` does, and ConversationFullError.
        """
        known, _ = self.stored(owner, previous, name, "previous_response_id")
        return self.open(owner, known.name, now), self.history(owner, previous, name)

    def history(self, owner: str, answer_id: str, name: str | None) -> list[bytes]:
        """Return JSON of all messages up to a stored answer, its own the last; raises as ``stored`` does."""
        known, told = self.stored(owner, answer_id, name)
        messages = [told.answer, told.asked]
        while told.previous is not None:
            told = known.told[told.previous]
            messages += [told.answer, told.asked]
        return messages[::-1]

    def stored(self, owner: str, answer_id: str, name: str | None, param: str | None = None) -> tuple[Dialogue, Told]:
        """Return the conversation of a stored answer, of session ``name`` or of none, and what is held of the answer.

        Raises UnknownAnswerError: this client has got no such answer there, or it was not stored, or is deleted.
        """
        known, _ = self._places.get((owner, answer_id), (None, ()))
        told = None if known is None else known.told.get(answer_id)
        if known is None or told is None or told.deleted or (None if known.single else known.name) != name:
            raise UnknownAnswerError(f"response {answer_id[:100]!r} is not known, or was not stored", param)
        return known, told

    def delete(self, owner: str, answer_id: str, name: str | None) -> None:
        """Have a stored answer be unknown but to feedback and to answers that continue it; raises as ``stored``."""
        known, told = self.stored(owner, answer_id, name)
        known.told[answer_id] = replace(told, whole=None, deleted=True)
        self._measure(known)

    def answered(
        self,
        conversation: Dialogue,
        session: Session,
        answer_id: str,
        places: Iterable[tuple[int, int]],
        told: Told | None = None,
    ) -> None:
        """Note what an answer consists of, the sample and turn of each of its responses, and how it may be continued.

        Nothing is noted of one that came when its conversation was contributed, or forgotten, already; nor of one that
        is known, as two requests that recall the same would have it.
        """
        if (conversation.owner, answer_id) in self._places:
            return
        known = self._open.get((conversation.owner, conversation.name))
        if known is not conversation or conversation.session is not session:
            return
        conversation.answers.append(answer_id)
        if told is not None and sum(one.needed for one in conversation.told.values()) + told.needed <= MOST_TOLD:
            conversation.told[answer_id] = told
            # That it can be continued matters more than that answers can be had again, the oldest of all.
            excess = conversation.stored_bytes - MOST_TOLD
            for one, each in conversation.told.items():
                if excess > 0 and each.whole is not None:
                    excess -= len(each.whole)
                    conversation.told[one] = replace(each, whole=None)
        self._measure(conversation)
        self._places[conversation.owner, answer_id] = conversation, list(places)

    def missing(self, owner: str, answers: Iterable[str]) -> list[str]:
        return [
            one
            for one in dict.fromkeys(answers)
            if (owner, one) not in self._places and (owner, one) not in self._counted
        ]

    def take(self, owner: str, answer_id: str, prompt: Sequence[int], drawn: Sequence[Completion], now: float) -> None:
        """Take in a request that was answered elsewhere, a conversation by itself, unless it is known."""
        if self.missing(owner, [answer_id]):
            one = self.open(owner, answer_id, now, single=True)
            places = [(one.session.add_alone(prompt, each).number, 0) for each in drawn]
            self.answered(one, one.session, answer_id, places)

    def feedback(
        self,
        owner: str,
        answers: Sequence[str],
        reward: float,
        *,
        session: str | None = None,
        task_id: str | None = None,
        run_id: int | None = None,
    ) -> int:
        """Give a reward to answers, or to all samples of a session without one; return how many have had none before.

        They are contributed under ``task_id``, with others of the same; without it, each conversation by itself.
        Without ``run_id`` each conversation is a run. Raises UnknownAnswerError: one is not known; nothing is counted.
        """
        whole = None if session is None else self._open.get((owner, session))
        if session is not None and (whole is None or not whole.session.samples):
            raise UnknownAnswerError(f"session {session!r} is not known")
        for one in self.missing(owner, answers):
            raise UnknownAnswerError(f"{one!r} is not known")
        counted = 0
        if whole is not None:
            for sample in whole.session.samples:
                if sample.number not in whole.rewards:
                    self._give(whole, sample.number, reward, task_id, run_id)
                    counted += 1
        for one in dict.fromkeys(answers):
            if (owner, one) in self._counted:
                continue
            self._count(owner, one)
            conversation, places = self._places[owner, one]
            for sample_number, turn in places:
                given = self._give(conversation, sample_number, reward, task_id, run_id)
                given.turns[turn] = reward
            counted += 1
        return counted

    def pending(self, owner: str, task_ids: Sequence[str] | None = None) -> list[Contribution]:
        """Return what of a client's has a reward, by task: of these tasks, or of all."""
        tasks: dict[str, list[tuple[Dialogue, Rollout]]] = {}
        for one in self._open.values():
            if one.owner != owner or not one.rewards:
                continue
            told = one.session.metrics
            for number, reward in sorted(one.rewards.items()):
                if task_ids is None or reward.task_id in task_ids:
                    made = _rollout(one, one.session.samples[number], reward, told)
                    tasks.setdefault(reward.task_id, []).append((one, made))
        return [
            Contribution(
                task_id,
                [made for _, made in samples],
                list({id(of): of for of, _ in samples}.values()),
            )
            for task_id, samples in tasks.items()
        ]

    def settled(self, contribution: Contribution) -> None:
        """Note that this was contributed, or refused for good: its conversations begin anew, where they go on."""
        for one in contribution.conversations:
            # While it was contributed it may have been forgotten.
            if self._open.get((one.owner, one.name)) is one:
                self._drop(one)
                if not one.single:
                    one.session = Session(self.renderer)
                    one.answers, one.rewards, one.tokens, one.part = [], {}, 0, one.part + 1
                    one.told = {}
                    self._open[one.owner, one.name] = one
                    self._of[one.owner] += 1

    def _measure(self, conversation: Dialogue) -> None:
        tokens = sum(map(_size, conversation.session.samples)) + conversation.stored_bytes // TOKEN_BYTES
        self._tokens[conversation.owner] += tokens - conversation.tokens
        conversation.tokens = tokens

    def _give(
        self, conversation: Dialogue, sample: int, value: float, task_id: str | None, run_id: int | None
    ) -> SampleReward:
        given = conversation.rewards.get(sample)
        if given is None:
            task = task_id or conversation.task_id
            run = self._run_of(conversation, task, run_id)
            given = conversation.rewards[sample] = SampleReward(value, task, run)
        given.value = value
        return given

    def _run_of(self, conversation: Dialogue, task_id: str, asked: int | None) -> int:
        """Return the run of a task that a conversation is: as it was asked for, that which it has, or the next."""
        runs = self._runs.setdefault((conversation.owner, task_id), {})
        if asked is not None:
            runs[conversation.name] = asked
        elif conversation.name not in runs:
            runs[conversation.name] = max(runs.values(), default=-1) + 1
        return runs[conversation.name]

    def _count(self, owner: str, answer_id: str) -> None:
        self._counted[owner, answer_id] = None
        while len(self._counted) > MOST_COUNTED:
            self._counted.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._open:
            oldest = next(iter(self._open.values()))
            if now - oldest.used_at <= self._keep_s:
                many = len(self._open) > self._most
                if not many and self._tokens.total() <= MOST_TOKENS:
                    return
                # Nobody loses a conversation to another who has more, nor to one of its own that is longer.
                ((greediest, _),) = (self._of if many else self._tokens).most_common(1)
                own = (one for one in self._open.values() if one.owner == greediest)
                oldest = next(own) if many else max(own, key=lambda one: one.tokens)
            self.forgotten += bool(oldest.answers)
            self._drop(oldest)

    def _drop(self, conversation: Dialogue) -> None:
        del self._open[conversation.owner, conversation.name]
        self._of[conversation.owner] -= 1
        self._tokens[conversation.owner] -= conversation.tokens
        for answer in conversation.answers:
            del self._places[conversation.owner, answer]
        for task_id in {reward.task_id for reward in conversation.rewards.values()}:
            runs = self._runs.get((conversation.owner, task_id), {})
            runs.pop(conversation.name, None)
            if not runs:
                self._runs.pop((conversation.owner, task_id), None)


def _size(sample: TokenSample) -> int:
    beside = (0 if sample.routes is None else sample.routes.nbytes) + len(sample.kept or b"")
    return len(sample.prompt_token_ids) + len(sample.response_token_ids) + beside // TOKEN_BYTES


def _rollout(conversation: Dialogue, sample: TokenSample, reward: SampleReward, told: Mapping[str, float]) -> Rollout:
    turns = [reward.turns.get(turn, math.nan) for turn in range(len(sample.turn_starts))]
    metrics = {"reward": reward.value, **told}
    made = sample.rollout(reward=reward.value, metrics=metrics, run_id=reward.run_id)
    by_turn = len(turns) > 1 and bool(reward.turns)
    return replace(made, sampling=sample.sampling or conversation.sampling, turn_rewards=turns if by_turn else None)


def new_answer_id(kind: str, now: float) -> str:
    """Return an id that nothing else has; ``kind`` is how it begins, ``now`` seconds since the epoch."""
    return f"{kind}{round(now * 1000):012x}{secrets.token_hex(10)}"


def asked_at(answer_id: str) -> float | None:
    """Return when an answer was asked for, seconds since the epoch; None where no gateway gives such an id."""
    found = _ID.fullmatch(answer_id)
    return None if found is None else int(found[1], 16) / 1000
