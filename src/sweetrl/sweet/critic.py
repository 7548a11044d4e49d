"""The critic of SWEET-RL (stage 1): the turn-wise advantage as a log-ratio, its training, and how it rates replies.

    A(o_t, a, c) = (1/L) sum_l [ log pi_theta(a^l | o_t, a^{<l}, c) - log pi_ref(a^l | o_t, a^{<l}, c) ]         (Eq. 3)

pi_theta is the base with the critic's adapter (or its trained weights), pi_ref the same base without. All candidate
replies at all turns of a dialogue are branches of one tree whose trunk is the dialogue, so what they share is computed
once. `fit_critic` trains by Eq. 2 (sweetrl.sweet.trainer.CriticTrainer). Critics that need no training are in
sweetrl.methods.critics, those with a head in sweetrl.sweet.head_critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import CriticSettings, RankSettings
from sweetrl.console.progress import first_process
from sweetrl.lm.data import encode
from sweetrl.lm.head import without_adapter
from sweetrl.lm.memory import pass_tokens
from sweetrl.lm.passes import Layout, model_layout
from sweetrl.lm.recorded import recorded_rows
from sweetrl.lm.reference import row_logprobs
from sweetrl.protocols import Chat, Replies, Work
from sweetrl.sweet.data import REPLY, ScoredTokens, branch_rows, critic_row, header_length
from sweetrl.sweet.training import TrainingJob, train_adapter
from sweetrl.types import AgentTurn, Reply, TrainingResult, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from sweetrl.colbench.domain import Domain
    from sweetrl.protocols import Critic

TRAINED_HERE = ("log-ratio", "regression-head", "value-head")  # other parameterizations are a domain's own


@dataclass(frozen=True)
class LogRatioCritic:
    """Eq. 3: how much more likely the trained adapter finds a reply than the base does.

    `view` says what it sees (c, and where) and how it normalises; with `conditioned_reference` False the base does not
    see c (the official code). On a base without an adapter, that is the critic `privileged-ratio`, which needs no
    training: A = (1/L) sum_l [ log pi_ref(a_l | o, a_<l, c) - log pi_ref(a_l | o, a_<l) ], how much likelier c makes a
    reply.
    """

    model: Any
    domain: Domain
    chat: Chat
    system: str
    view: CriticSettings
    layout: Layout
    conditioned_reference: bool = True

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """A(o_t, a, c): the mean over a reply's tokens (the sum without normalisation) of log pi_theta - log pi_ref.

        With `critic.token_set: official` the two sides go over different tokens, and it is the difference of their
        means.
        """
        return [self._advantages(dialogue, turns) for dialogue, turns in work]

    def rate_tokens(self, dialogue: Trajectory, turns: Replies) -> tuple[list[list[float]], list[list[list[float]]]]:
        """The advantages of a dialogue's candidates as `rate` gives them, and the log-ratios of their own tokens."""
        ratios = [[policy - reference for policy, reference in turn] for turn in self._logprobs(dialogue, turns)]
        if self.view.token_set == "official":  # no mean of these
            advantages = self._advantages(dialogue, turns)
        else:
            advantages = [[self._reduced(tokens) for tokens in turn] for turn in ratios]
        return advantages, [[tokens.tolist() for tokens in turn] for turn in ratios]

    def _advantages(self, dialogue: Trajectory, turns: Replies) -> list[list[float]]:
        if self.view.token_set != "official":
            sides = self._logprobs(dialogue, turns)
            return [[self._reduced(policy - reference) for policy, reference in turn] for turn in sides]
        sides = self._logprobs(dialogue, turns, ScoredTokens(header_length(self.chat), self.chat.reply("x")[-1]))
        return [[self._reduced(policy) - self._reduced(reference) for policy, reference in turn] for turn in sides]

    def _reduced(self, values: Tensor) -> float:
        return (values.sum() if self.view.normalization == "none" else values.mean()).item()

    def _logprobs(
        self, dialogue: Trajectory, turns: Replies, scored: ScoredTokens = REPLY
    ) -> list[list[tuple[Tensor, Tensor]]]:
        """log pi_theta and log pi_ref of every candidate at every turn of a dialogue, [its tokens] each, in float64.

        `scored` says which tokens the critic's side is taken over; the reference's are always the reply's own.
        """
        trunk = critic_row(dialogue, self.domain, self.chat, self.system, self.view)
        reference_trunk = trunk if self.conditioned_reference else encode(dialogue, self.chat, self.system)
        policy = row_logprobs(self.model, branch_rows(trunk, turns, scored), self.layout)
        with without_adapter(self.model):
            reference = row_logprobs(self.model, branch_rows(reference_trunk, turns), self.layout)
        sides = ((ours.double(), base.double()) for ours, base in zip(policy, reference, strict=True))
        return [[next(sides) for _ in replies] for replies in turns]


def own_replies(dialogue: Trajectory, chat: Chat | None = None) -> list[list[Reply]]:
    """Return the replies of a dialogue as candidates in their own places; `chat` tokenises those without ids."""
    recorded = {turn.message_index: turn for turn in dialogue.turns}
    replies = []
    for index, message in enumerate(dialogue.messages):
        if message.role == "assistant":
            turn = recorded.get(index) or AgentTurn(index, message.content)
            ids = turn.token_ids or (() if chat is None else chat.reply(turn.raw))
            replies.append([Reply(tuple(ids), turn.raw)])
    return replies


def fit_critic(job: TrainingJob) -> TrainingResult:
    """Train the critic that `job.settings` describe, on the domain's base; the adapter lies in `job.scratch` then."""
    domain, critic, inputs, kind = job.domain, job.settings, job.inputs, job.settings.parameterization
    if kind not in TRAINED_HERE:  # of several processes one trains it: the others would all train the same
        if not first_process():
            return TrainingResult(job.scratch / "adapter", "")
        return domain.own_critic(critic).fit(inputs.trajectories(), inputs.pairs(), job.scratch, inputs.where)
    from sweetrl.sweet.data import critic_attempts, critic_pairs
    from sweetrl.sweet.head_critics import RegressionTrainer, ValueTrainer
    from sweetrl.sweet.trainer import CriticTrainer

    dialogues, view = inputs.trajectories(), (domain, job.chat, job.system, critic)
    if kind == "value-head":
        data = critic_attempts(dialogues, *view)
    else:
        data = critic_pairs(inputs.pairs(), dialogues, *view, inputs.where)
    trainers = {"log-ratio": CriticTrainer, "regression-head": RegressionTrainer, "value-head": ValueTrainer}
    recorded = recorded_rows(dialogues, job.model.base, lambda each: encode(each, job.chat, job.system), job.seed)
    return train_adapter(job, trainers[kind], data, "train-critic", head=kind != "log-ratio", recorded=recorded)


def load_critic(
    domain: Domain,
    critic: CriticSettings,
    rank: RankSettings,
    folder: Path,
    base: tuple[Any, Any] | None = None,
) -> Critic:
    """Return the trained critic whose adapter is in `folder`.

    `base` is the base model and its tokenizer, if they are loaded already: the adapter is put on that model.
    """
    from sweetrl.lm.adapters import load_base, load_trained

    kind = critic.parameterization
    if kind not in TRAINED_HERE:
        return domain.own_critic(critic).load(folder)
    model, tokenizer = base or load_base(domain.settings.model)
    model = load_trained(model, folder)
    if kind == "log-ratio":
        return log_ratio_critic(domain, critic, rank, model, tokenizer, rank.reference == "conditioned")
    from sweetrl.sweet.head_critics import HeadCritic

    layout = Layout(None, pass_tokens(model, rank.tokens)[0], tokenizer.pad_token_id or 0)
    return HeadCritic(model, domain, *_as_agents_talk(domain, tokenizer), critic, layout)


def log_ratio_critic(
    domain: Domain,
    critic: CriticSettings,
    rank: RankSettings,
    model: Any,
    tokenizer: Any,
    conditioned_reference: bool,
) -> LogRatioCritic:
    """Return the critic of Eq. 3 that `model` is, with its adapter or without."""
    layout = model_layout(model, rank.layout, rank.tokens, tokenizer.pad_token_id or 0)
    talk = _as_agents_talk(domain, tokenizer)
    return LogRatioCritic(model, domain, *talk, critic, layout, conditioned_reference)


def _as_agents_talk(domain: Domain, tokenizer: Any) -> tuple[Chat, str]:
    """Return the chat format and the system prompt of a domain's agent."""
    from sweetrl.engines.chat import ChatFormat

    settings = domain.settings
    return ChatFormat(tokenizer, **settings.model.chat_options), domain.system_prompt(settings.agent.prompt)
