"""Rewards to advantages: how much better a sample did than could be expected, for each of its tokens. Pure numpy.

:class:`RunAdvantage` and :class:`TokenAdvantage` say what their kinds have in common, see ``advantage``.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from schemas.experience import Float32
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.advantage import (
    EQUAL,
    Advantage,
    Float64,
    GroupAdvantages,
    Int64,
    RunAdvantage,
    Runs,
    ScoredSample,
    TokenAdvantage,
    deviation,
    runs_of,
)


class GRPO(RunAdvantage):
    """``A_i = (r_i - mean(r)) / (std + epsilon)``: the mean over the task's runs, the population's deviation.

    ``trainer.advantage_std`` says of what that is: ``group``, the task's runs (Shao et al., arXiv:2402.03300, section
    4.1.2); ``batch``, the runs of all tasks (Liu et al., "Part I: Tricks or Traps?", arXiv:2508.08221); ``none``, no
    division (Dr. GRPO, Liu et al., arXiv:2503.20783, with ``trainer.loss_normalizer=constant``).
    """

    def compare(self, runs: Runs, batch: Float64) -> Float64:
        scale = deviation(self.settings.advantage_std, runs.means, batch)
        advantages: Float64 = (runs.rewards - runs.means.mean()) / scale
        return advantages


class RLOO(RunAdvantage):
    """``A_i = r_i - mean(r_j, j != i)``: leave one out (Ahmadian et al., arXiv:2402.14740; Kool et al., 2019)."""

    def compare(self, runs: Runs, batch: Float64) -> Float64:
        del batch  # a task is compared with itself
        others = (runs.means.sum() - runs.means) / (len(runs.means) - 1)
        advantages: Float64 = runs.rewards - others[runs.owners]
        return advantages


class OPMDAdvantage(RunAdvantage):
    """``A_i = r_i - b`` over the runs ``j`` of one task, where ``trainer.opmd_baseline`` says what ``b`` is.

    ::

        mean          b = mean(r_j)
        logavgexp     b = tau log mean(exp(r_j / tau))

    The second is what policy mirror descent of strength ``tau`` (``trainer.opmd_tau``) has in the place of a baseline:
    the logarithm of its partition function, estimated from the group. It is above the mean, so advantages are not
    centred; the first is its limit for a large ``tau``. To be used with the loss of the same name.

    Sources: Kimi Team, "Kimi k1.5", arXiv:2501.12599, section 2.3.2; Yao et al., "Group-Relative REINFORCE Is Secretly
    an Off-Policy Algorithm", arXiv:2509.24203.
    """

    def compare(self, runs: Runs, batch: Float64) -> Float64:
        del batch  # a task is compared with itself
        baseline = runs.means.mean()
        if self.settings.opmd_baseline == "logavgexp":
            tau, highest = self.settings.opmd_tau, runs.means.max()
            # Less the highest, so that nothing overflows.
            baseline = highest + tau * np.log(np.exp((runs.means - highest) / tau).mean())
        advantages: Float64 = runs.rewards - baseline
        return advantages


class ReMax(Advantage):
    """``A_i = r_i - r(greedy)`` (Li et al., "ReMax", arXiv:2310.10505).

    The greedy answer is a run of the group that was drawn at temperature 0. It is compared with and not trained on. A
    group without one teaches nothing, nor does one all of whose rewards are the greedy one's; several greedy runs count
    with their mean.
    """

    wants_greedy: ClassVar[bool] = True

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """TrainingError where no group has a greedy run, so that nothing could ever be learned."""
        if groups and not any(sample.is_greedy for samples in groups for sample in samples):
            raise TrainingError(
                "trainer.advantage='remax' compares with a greedy run of each task, and no task of this batch has one: "
                "send tasks with data={'greedy_baseline': true}, or draw one at temperature 0 in your workflow"
            )
        return [self._of_group(samples) for samples in groups]

    @staticmethod
    def _of_group(samples: Sequence[ScoredSample]) -> GroupAdvantages:
        greedy = runs_of([sample for sample in samples if sample.is_greedy]).means
        if len(greedy) == 0:
            return None
        values = [np.nan if sample.is_greedy else sample.reward - greedy.mean() for sample in samples]
        if not any(abs(value) >= EQUAL for value in values):
            return None
        return [np.full(len(sample.mask), value, np.float32) for sample, value in zip(samples, values, strict=True)]


class StepWise(Advantage):
    """Step-wise GRPO: each turn is judged by what comes of it, from the rewards of turns.

    With the rewards ``r`` of all turns of all samples of a task, and a token of turn ``k`` of sample ``i``::

        A = sum over the turns j >= k of sample i of (r_ij - mean(r)) / (std(r) + epsilon)

    Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, section 4.1.3, with turns for its steps; the division is that
    of ``trainer.advantage_std``. A turn without a reward of its own adds nothing. A sample that has no turns is one
    turn with the sample's reward; so is one none of whose turns has a reward.
    """

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        turns = [[_turns(sample) for sample in samples] for samples in groups]
        rewards = [_given([found for _, found in of_group]) for of_group in turns]
        batch = _given(rewards)
        return [
            None
            if len(given) == 0 or given.std() < EQUAL
            else [
                self._of_sample(len(sample.mask), *found, given, batch)
                for sample, found in zip(samples, of_group, strict=True)
            ]
            for samples, of_group, given in zip(groups, turns, rewards, strict=True)
        ]

    def _of_sample(self, tokens: int, starts: Int64, rewards: Float64, group: Float64, batch: Float64) -> Float32:
        if np.isnan(rewards).all():
            return np.full(tokens, np.nan, np.float32)
        scale = deviation(self.settings.advantage_std, group, batch)
        steps = np.nan_to_num((rewards - group.mean()) / scale, nan=0.0)
        to_come = np.cumsum(steps[::-1])[::-1]
        # What stands before the first turn belongs to it.
        turn = np.maximum(np.searchsorted(starts, np.arange(tokens), side="right") - 1, 0)
        found: Float32 = to_come[turn].astype(np.float32)
        return found


def _turns(sample: ScoredSample) -> tuple[Int64, Float64]:
    # The first token and the reward of each turn
    starts, rewards = sample.turn_starts, sample.turn_rewards
    if starts is None or rewards is None or np.isnan(rewards).all():
        return np.zeros(1, np.int64), np.array([sample.reward], np.float64)
    return starts.astype(np.int64), rewards.astype(np.float64)


def _given(rewards: Sequence[Float64]) -> Float64:
    every = np.concatenate([np.empty(0), *rewards])
    given: Float64 = every[~np.isnan(every)]
    return given


class Distillation(Advantage):
    """On-policy distillation: ``A_t = log p_teacher(y_t) - log p_rollout(y_t)``.

    That is the sampled reverse KL with its sign turned: on policy the gradient of REINFORCE with it is that of
    ``-KL(policy || teacher)`` of each next token, given what was drawn before it. What a token does to those after it
    is left out: Gu et al., "MiniLLM", arXiv:2306.08543, section 2.2, the single-step part; Agarwal et al.,
    arXiv:2306.13649, where nothing is propagated through the drawing either.

    Rewards play no part, and neither do the other samples of the task. A sample of which the teacher was not asked is
    not trained on.
    """

    needs: ClassVar[Need] = Need.TEACHER_LOGPROBS

    def __call__(self, groups: Sequence[Sequence[ScoredSample]]) -> list[GroupAdvantages]:
        """TrainingError where no sample has a teacher's log-probabilities, so that nothing could ever be learned."""
        if any(groups) and all(sample.teacher_logprobs is None for group in groups for sample in group):
            raise TrainingError(
                "trainer.advantage='distillation' needs what a teacher says of each token, and no sample of this batch "
                "has that: have the workflow set Rollout.teacher_logprobs"
            )
        found = [[self._of_sample(sample) for sample in group] for group in groups]
        return [None if all(np.isnan(values).any() for values in group) else group for group in found]

    @staticmethod
    def _of_sample(sample: ScoredSample) -> Float32:
        if sample.teacher_logprobs is None:
            return np.full(len(sample.mask), np.nan, np.float32)
        return np.where(sample.mask, sample.teacher_logprobs - sample.logprobs, np.float32(0))


class ReinforcePlusPlus(TokenAdvantage):
    """REINFORCE++: rewards against those of the whole batch (Hu et al., arXiv:2501.03262).

    For a token ``t`` of sample ``i``, with the KL penalty in the reward (``trainer.kl_placement=reward``)::

        A_it = r_i - kl_coef * (sum over the trained tokens u >= t of kl_iu)
        A    = (A - mean) / (std + epsilon)                     over all trained tokens of the step

    No group is skipped whose runs have equal rewards: others of the batch may have other rewards.
    """

    def finish(self, rewards: Float64, values: Float64) -> Float64:
        del values  # there is no critic
        return np.cumsum(rewards[::-1])[::-1]


class ReinforcePlusPlusBaseline(ReinforcePlusPlus):
    """The same of ``r_i - mean(r)`` over the runs of the task, with a KL penalty, k2, in the loss."""

    def rewards(self, samples: Sequence[ScoredSample]) -> Sequence[float]:
        runs = runs_of(samples)
        baseline = runs.means.mean() if len(runs.means) else np.nan
        return [sample.reward - baseline for sample in samples]


class GAE(TokenAdvantage):
    """Generalized advantage estimation, with ``V_t`` of a critic, 0 after the last token, over the trained tokens.

    ::

        delta_t = r_t + gamma V_(t+1) - V_t
        A_t     = delta_t + gamma lambda A_(t+1)
        A       = (A - mean) / (std + epsilon)                  over all trained tokens of the step

    ``r_t`` is the sample's reward at the last token, less the KL penalty of each where that is in the reward. The
    critic is trained towards ``V_t + A_t``, before A is normalized: see ``critic``. No group is skipped.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    arXiv:1506.02438, eq. 11 and 16.
    """

    needs: ClassVar[Need] = Need.VALUES

    def finish(self, rewards: Float64, values: Float64) -> Float64:
        gamma, decay = self.settings.gae_gamma, self.settings.gae_gamma * self.settings.gae_lambda
        deltas = rewards + gamma * np.append(values[1:], 0.0) - values
        advantages = np.empty_like(deltas)
        following = 0.0
        for token in range(len(deltas) - 1, -1, -1):
            advantages[token] = following = deltas[token] + decay * following
        return advantages
