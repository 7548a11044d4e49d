"""Learning from Python: train a critic, rank replies with it, train a policy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sweetrl.api.calls import settings_of, training_call, unfinished
from sweetrl.colbench.domain import Domain
from sweetrl.config.settings import Settings, TrainerSettings, overlaid, section
from sweetrl.console.progress import StepProgress
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import judged_metrics, ranking_metrics
from sweetrl.evaluation.rollout_value import open_critic
from sweetrl.io import publish
from sweetrl.methods.base import Inputs, Method, find_method
from sweetrl.methods.critics import make_critic
from sweetrl.models.check import check_trained
from sweetrl.protocols import Critic, Work
from sweetrl.seeds import check_seed
from sweetrl.sweet.candidates import LocalSampler, ServerSampler
from sweetrl.sweet.critic import fit_critic, own_replies
from sweetrl.sweet.pairs import trajectory_pairs
from sweetrl.sweet.preferences import Blocks, Ranking
from sweetrl.sweet.rank import rank_dialogues
from sweetrl.sweet.training import TrainingJob
from sweetrl.types import Task, Trajectory, TrajectoryPair


class TrainedCritic:
    """A trained critic, in the folder `adapter`: `advantages` of turns, and the protocol of ranking and Best-of-N."""

    def __init__(self, critic: Critic, adapter: Path) -> None:
        self.critic, self.adapter = critic, adapter

    @classmethod
    def load(cls, env: Domain, adapter: Path) -> TrainedCritic:
        """Return the trained critic in the folder `adapter`, on the domain's base; UserError where there is none."""
        check_trained(adapter)
        settings = settings_of(env)
        settings = settings.model_copy(update={"rank": settings.rank.model_copy(update={"critic": "trained"})})
        return cls(make_critic(env.configured(settings), settings, adapter), adapter)

    def advantages(self, dialogue: Trajectory) -> list[float]:
        """Return the advantage of each agent turn of `dialogue`: A(o_t, a_t, c) of Eq. 3 for what was said there."""
        chat = getattr(self.critic, "chat", None)
        (turns,) = self.critic.rate([(dialogue, own_replies(dialogue, chat))])
        return [advantage for (advantage,) in turns]

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """Return the advantages of candidate replies (sweetrl.protocols.Critic)."""
        return self.critic.rate(work)


def find_pairs(env: Domain, dialogues: Iterable[Trajectory]) -> list[TrajectoryPair]:
    """Return the pairs of attempts at a task that the critic (and Multi-Turn DPO) learns from (`critic.pairs`)."""
    critic = settings_of(env).critic
    return trajectory_pairs(dialogues, critic.pairs, critic.gap)[0]


def train_critic(
    env: Domain,
    policy: Policy,
    dialogues: Iterable[Trajectory],
    pairs: Sequence[TrajectoryPair] | str | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> TrainedCritic:
    """Train the turn-wise advantage (Eqs. 2 and 3) on pairs of `dialogues`; return the critic.

    `policy` is the agent whose base the critic is an adapter on; `pairs` are those of find_pairs, or how to choose them
    (as `critic.pairs`: "official" or "all"); `options` are settings of section `critic`; `out` is the folder of the
    adapter (by default a temporary one): the same call goes on where a killed one was.
    """
    _check_here(policy, "train_critic")
    if isinstance(pairs, str):
        options["pairs"], pairs = pairs, None
    settings = settings_for(env, policy, seed, critic=options, rank={"critic": "trained"})
    dialogues = _readable_again(dialogues)
    configured = env.configured(settings)
    pairs = find_pairs(configured, dialogues) if pairs is None else pairs
    with _making("critic", out, lambda: training_call(configured, [dialogues, pairs])) as (folder, scratch):
        inputs, progress = Inputs(dialogues, pairs), StepProgress("train_critic")
        publish(fit_critic(training_job(None, settings, configured, inputs, scratch, progress)).adapter, folder)
    return TrainedCritic(make_critic(configured, settings, folder), folder)


def rank(
    env: Domain,
    policy: Policy,
    critic: Critic | str,
    dialogues: Iterable[Trajectory],
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Ranking:
    """Sample candidate replies at the turns of a share of `dialogues`, let `critic` rank them, draw pairs of them.

    The replies are those of `policy`, a base without an adapter, in this process or at its servers.

    `critic` is a trained one, anything with its `rate`, or one that needs no training: `privileged-ratio`,
    `rollout-value`, `judge`, `random` or `oracle` (docs/concepts.md). `options` are settings of section `rank`; `out`
    is a folder to write the ranking to.
    """
    kind = critic if isinstance(critic, str) else "trained"
    _check_base(policy, "rank")
    settings = settings_for(env, policy, seed, rank={**options, "critic": kind})
    given, folder = None if isinstance(critic, str) else critic, None if out is None else Path(out)
    return rank_replies(env.configured(settings), given, _readable_again(dialogues), out=folder)


def rank_replies(
    env: Domain,
    critic: Critic | Path | None,
    dialogues: Iterable[Trajectory],
    blocks: Blocks | None = None,
    cache: Path | None = None,
    out: Path | None = None,
) -> Ranking:
    """Rank as `rank` does, by `env.settings`; `critic` may be a trained critic's folder, or None: that of the settings.

    Other arguments are those of sweetrl.sweet.rank.rank_dialogues; a stage keeps finished `blocks`.
    """
    settings = settings_of(env)

    def opened(sampler: LocalSampler | ServerSampler) -> AbstractContextManager[Critic]:
        if critic is None or isinstance(critic, Path):
            return open_critic(env, settings, critic, sampler.player(), sampler.base)
        return nullcontext(critic.critic if type(critic) is TrainedCritic else critic)

    ranking, ranked = rank_dialogues(env, settings, opened, dialogues, blocks or Blocks(), cache, out)
    if blocks is not None and blocks.mine is not None:  # a share: other processes make the rest
        return ranking
    quality = ranking_metrics(ranking.states, ranking.preferences, env)
    judged = judged_metrics(ranking.states, ranked, env)
    return replace(ranking, metrics=quality | ranking.metrics | judged)


def train(
    method: str | Method,
    env: Domain,
    policy: Policy,
    *,
    dialogues: Iterable[Trajectory] | None = None,
    pairs: Sequence[TrajectoryPair] | None = None,
    ranking: Ranking | None = None,
    tasks: Sequence[Task] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Policy:
    """Train `policy`, a base, by `method` (a name, a dotted path, or a Method); return it with the trained adapter.

    Methods learn from different things: `sweet` from a `ranking`, `multi-turn-dpo` from `dialogues` and their `pairs`
    (by default as `critic.pairs` says), `rft` from `dialogues`, `grpo` from `tasks`. `options` are the method's own
    settings, `out` is the folder of the adapter (by default a temporary one): the same call goes on where a killed one
    was.
    """
    chosen = find_method(method) if isinstance(method, str) else method
    _check_base(policy, "train")
    _check_here(policy, "train")
    own = {"method_options": {}, chosen.section or "method_options": options}
    settings = settings_for(env, policy, seed, method=chosen.name, **own)
    configured = env.configured(settings)
    dialogues = None if dialogues is None else _readable_again(dialogues)
    if pairs is None and dialogues is not None and "pairs" in chosen.needs:
        pairs = find_pairs(configured, dialogues)
    ranked = (None,) if ranking is None else (ranking.states, ranking.preferences, ranking.replay)
    call = partial(training_call, configured, [dialogues, pairs, tasks, *ranked], chosen)
    inputs, progress = Inputs(dialogues, pairs, ranking, tasks), StepProgress(f"train {chosen.name}")
    with _making("policy", out, call) as (folder, scratch):
        publish(chosen.train(training_job(chosen, settings, configured, inputs, scratch, progress)).adapter, folder)
    return policy.adapted(folder)


def training_job(
    method: Method | None,
    settings: Settings,
    domain: Domain,
    inputs: Inputs,
    scratch: Path,
    progress: StepProgress | None = None,
    cache: Path | None = None,
) -> TrainingJob:
    """Return the training of a policy by `method`, or without one of the critic, that the settings describe."""
    sections = ("model", "agent", "engine", "collect", "critic", "rank", "tracking", "seed")
    named: dict[str, Any] = {name: getattr(settings, name) for name in sections}
    named["learn_thoughts"] = settings.policy.learn_thoughts
    own = settings.critic if method is None else own_settings(method, settings)
    return TrainingJob(own, domain=domain, inputs=inputs, scratch=scratch, progress=progress, cache=cache, **named)


def own_settings(method: Method, settings: Settings) -> TrainerSettings:
    """Return the settings of `method`: its section, or its `method_options`; a UserError names a key that is wrong."""
    if method.section:
        if settings.method_options:
            what = f"`method_options` are read by methods of your own, and not by {method.name}"
            raise UserError(f"params.yaml: {what}; set the keys of the section `{method.section}` instead.")
        own: TrainerSettings = getattr(settings, method.section)
        return own
    return section(method.settings_type, settings.method_options, f"params.yaml: method_options of {method.name}")


def _readable_again(dialogues: Iterable[Trajectory]) -> Iterable[Trajectory]:
    """What can be read more than once: a generator as a list, a store as it is."""
    return list(dialogues) if iter(dialogues) is dialogues else dialogues


def _check_base(policy: Policy, call: str) -> None:
    """UserError where `policy` has an adapter: what samples and is trained is its base, as if there were none."""
    if policy.adapter is not None:
        raise UserError(
            f"{call}: the policy has the adapter {policy.adapter}, and this begins from a base; make one model of both "
            "(`sweetrl export ADAPTER --out FOLDER --merge`) and load that, or give the base alone."
        )


def _check_here(policy: Policy, call: str) -> None:
    """UserError where `policy` is at a server of chat completions: what is trained is a model in this process."""
    if policy.engine.kind == "openai":
        raise UserError(
            f"{call}: the policy is `{policy.name}` at a server, and what is trained is a model in this process; give "
            "the folder of the same model, `sweetrl.Policy.load(FOLDER)`."
        )


def settings_for(env: Domain, policy: Policy, seed: int | None, /, **changes: Any) -> Settings:
    """Return the domain's settings with the policy's model and engine, and `changes` of sections or keys."""
    settings = settings_of(env)
    check_seed(seed)
    update: dict[str, Any] = {"model": policy.model, "engine": policy.engine}
    if seed is not None:
        update["seed"] = seed
    for name, values in changes.items():
        before = getattr(settings, name)
        if isinstance(values, dict) and not isinstance(before, dict):
            update[name] = section(type(before), overlaid(before.model_dump(), values), name)
        else:
            update[name] = values
    return settings.model_copy(update=update)


_temporary: list[tempfile.TemporaryDirectory[str]] = []


@contextmanager
def _making(name: str, out: str | Path | None, call: Callable[[], str]) -> Iterator[tuple[Path, Path]]:
    """Yield an adapter's folder and that of this `call`'s unfinished work; without `out` both go with the process."""
    if out is None:
        _temporary.append(tempfile.TemporaryDirectory(prefix=f"sweetrl-{name}-"))
    folder = Path(_temporary[-1].name) / name if out is None else Path(out)
    with unfinished(folder, "unfinished" if out is None else call()) as scratch:
        yield folder, scratch
