"""The critics that the settings can name: how each is trained, and how it is made for ranking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.learning.training import fitting, run_trainer
from sweetrl.progress import first_process
from sweetrl.types import TrainingResult, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.progress import StepProgress
    from sweetrl.protocols import Critic
    from sweetrl.types import TrajectoryPair

# critic.parameterization -> the trainer of it; others are a domain's own (Domain.fit_critic, Domain.load_critic).
TRAINERS = ("log-ratio", "regression-head", "value-head")  # the parameterizations that are trained here


def fit_critic(
    domain: Domain,
    dialogues: Iterable[Trajectory],
    pairs: Sequence[TrajectoryPair],
    scratch: Path,
    progress: StepProgress | None = None,
    cache: Path | None = None,
    where: str = "pairs",
) -> TrainingResult:
    """Train the critic that the domain's settings describe, on its base; the adapter lies in `scratch` afterwards.

    `where` names the pairs in a message, `cache` keeps the reference's log-probs.
    """
    settings = domain.settings
    kind = settings.critic.parameterization
    if kind not in TRAINERS:  # of several processes one trains it: the others would all train the same
        if not first_process():
            return TrainingResult(scratch / "adapter", "")
        return domain.fit_critic(kind, dialogues, pairs, scratch, where)
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.learning.adapters import attach_adapter, load_base
    from sweetrl.learning.head_trainers import RegressionTrainer, ValueTrainer
    from sweetrl.learning.reporting import report_to
    from sweetrl.learning.trainers import CriticTrainer
    from sweetrl.learning.whole import critic_attempts, critic_pairs

    model, tokenizer = load_base(settings.model)
    chat, system = ChatFormat(tokenizer), domain.system_prompt(settings.agent.prompt)
    if kind == "value-head":
        rows = critic_attempts(dialogues, domain, chat, system, settings.critic)
    else:
        rows = critic_pairs(pairs, dialogues, domain, chat, system, settings.critic, where)
    data, counts = fitting(rows, model)
    trainers = {"log-ratio": CriticTrainer, "regression-head": RegressionTrainer, "value-head": ValueTrainer}
    trainer = trainers[kind](
        attach_adapter(model, settings.critic.lora, settings.seed, head=kind != "log-ratio"),
        data,
        settings.critic,
        scratch,
        settings.seed,
        tokenizer.pad_token_id or 0,
        progress,
        cache=cache,
    )
    report_to(trainer, settings.tracking, "train-critic")
    result = run_trainer(trainer, scratch, settings.model.base, progress)
    return TrainingResult(result.adapter, result.summary, counts | dict(result.metrics), result.model)


def make_critic(domain: Domain, folder: Path | None, loaded: tuple[Any, Any] | None = None) -> Critic:
    """Return the critic that `rank.critic` names; a trained one is loaded from `folder`.

    `loaded` is the base and its tokenizer, if they are loaded already: a trained critic's adapter is put on that model,
    and a critic without training, or a judge that has no model of its own, is that model. The critic that plays
    dialogues on (`rollout-value`) needs an agent and a user: sweetrl.evaluation.rollout_value.open_critic makes it.
    """
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.engines.transformers import TransformersEngine
    from sweetrl.learning import critics
    from sweetrl.learning.adapters import load_adapter, load_base
    from sweetrl.learning.passes import model_layout

    settings = domain.settings
    kind, wanted, view = settings.rank.critic, settings.model, settings.critic
    if kind == "random":
        return critics.RandomCritic(settings.seed)
    if kind == "oracle":
        return critics.OracleCritic(domain)
    if kind == "judge":
        own = settings.judge.model
        engine = TransformersEngine(
            own or wanted.base, None, wanted.dtype, wanted.device, wanted.threads, loaded=None if own else loaded
        )
        return critics.JudgeCritic(domain, engine, engine.chat, settings.judge, settings.seed, view.privileged)
    if kind == "rollout-value":
        raise UserError("rank.critic: `rollout-value` plays dialogues, for which there are no agent and user here.")
    if kind == "privileged-ratio":
        if not view.privileged:
            raise UserError(
                "rank.critic: `privileged-ratio` is what c changes, and with `critic.privileged: false` nobody sees c; "
                "set it to true, or take another critic."
            )
        return _log_ratio(domain, loaded or load_base(wanted), None, conditioned=False)
    if folder is None:
        raise UserError("rank: there is no trained critic; give one, or set rank.critic to another kind.")
    if view.parameterization not in TRAINERS:
        return domain.load_critic(view.parameterization, folder)
    base = loaded or load_base(wanted)
    if view.parameterization == "log-ratio":
        return _log_ratio(domain, base, folder, settings.rank.reference == "conditioned")
    critic, tokenizer = load_adapter(base[0], folder), base[1]
    layout = model_layout(critic, "flat", settings.rank.tokens, tokenizer.pad_token_id or 0)
    chat, system = ChatFormat(tokenizer), domain.system_prompt(settings.agent.prompt)
    return critics.HeadCritic(critic, domain, chat, system, view, layout)


def _log_ratio(domain: Domain, base: tuple[Any, Any], folder: Path | None, conditioned: bool) -> Critic:
    """The critic of Eq. 3 on `base`, with the adapter in `folder`, or as it is."""
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.learning.adapters import load_adapter
    from sweetrl.learning.critics import LogRatioCritic
    from sweetrl.learning.passes import model_layout

    settings, (model, tokenizer) = domain.settings, base
    critic = model if folder is None else load_adapter(model, folder)
    layout = model_layout(critic, settings.rank.layout, settings.rank.tokens, tokenizer.pad_token_id or 0)
    system = domain.system_prompt(settings.agent.prompt)
    return LogRatioCritic(critic, domain, ChatFormat(tokenizer), system, settings.critic, layout, conditioned)
