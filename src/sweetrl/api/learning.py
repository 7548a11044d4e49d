"""Learning from Python: train a critic, rank replies with it, train a policy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.api.policy import Policy
from sweetrl.errors import UserError
from sweetrl.progress import Meter, StepProgress
from sweetrl.settings import Settings, section
from sweetrl.types import Preference, RankedState, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.learning.pairs import TrajectoryPair
    from sweetrl.learning.ranking import Replay
    from sweetrl.methods.base import Method
    from sweetrl.protocols import Critic, Work


class TrainedCritic:
    """A trained critic: `advantages` of a dialogue's turns, and the protocol that ranking and Best-of-N ask for.

    `adapter` is the folder it lies in.
    """

    def __init__(self, critic: Critic, adapter: Path) -> None:
        self.critic, self.adapter = critic, adapter

    def advantages(self, dialogue: Trajectory) -> list[float]:
        """Return the advantage of each agent turn of `dialogue`: A(o_t, a_t, c) of Eq. 3 for what was said there."""
        from sweetrl.learning.critics import own_replies

        chat = getattr(self.critic, "chat", None)
        (found,) = self.critic.rate([(dialogue, own_replies(dialogue, chat))])
        return [turn[0] for turn in found]

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """Return the advantages of candidate replies (sweetrl.protocols.Critic)."""
        return self.critic.rate(work)


@dataclass(frozen=True)
class Ranking:
    """Candidate replies at the turns of dialogues with their advantages, pairs of them, and successful dialogues."""

    states: Sequence[RankedState]
    preferences: Sequence[Preference]
    replay: Sequence[Replay]
    metrics: dict[str, float] = field(default_factory=dict)

    def save(self, folder: str | Path) -> None:
        """Write the folder that the stage `rank` writes (data/preferences)."""
        from sweetrl.learning import preferences as files

        out = Path(folder)
        files.write_candidates(out / files.CANDIDATES, self.states)
        files.write_preferences(out / files.PREFERENCES, self.preferences)
        files.write_replay(out / files.SFT_REPLAY, self.replay)


@dataclass(frozen=True)
class Given:
    """What a method learns from, in memory (sweetrl.methods.base.Inputs)."""

    dialogues: Iterable[Trajectory] | None = None
    paired: Sequence[TrajectoryPair] | None = None
    ranking: Ranking | None = None
    training_tasks: Sequence[Task] | None = None
    where: str = "pairs"

    def tasks(self) -> list[Task]:
        """The training tasks."""
        return list(_there(self.training_tasks, "tasks"))

    def trajectories(self) -> Iterable[Trajectory]:
        """The collected dialogues."""
        found: Iterable[Trajectory] = _there(self.dialogues, "dialogues")
        return found

    def pairs(self) -> list[TrajectoryPair]:
        """Pairs of whole dialogues."""
        return list(_there(self.paired, "pairs"))

    def preferences(self) -> tuple[list[Preference], list[Replay]]:
        """Pairs of replies at one state, and successful dialogues."""
        ranking: Ranking = _there(self.ranking, "ranking")
        return list(ranking.preferences), list(ranking.replay)

    def candidates(self) -> list[RankedState]:
        """All candidate replies of the ranked states."""
        ranking: Ranking = _there(self.ranking, "ranking")
        return list(ranking.states)


def _there(value: Any, name: str) -> Any:
    if value is None:
        raise UserError(f"train: the method needs `{name}`; give them to sweetrl.train.")
    return value


def find_pairs(env: Domain, dialogues: Iterable[Trajectory]) -> list[TrajectoryPair]:
    """Return the pairs of attempts at a task that the critic (and Multi-Turn DPO) learns from (`critic.pairs`)."""
    from sweetrl.learning.pairs import trajectory_pairs

    return trajectory_pairs(dialogues, env.settings.critic.pairs, env.settings.critic.gap)[0]


def train_critic(
    env: Domain,
    policy: Policy,
    dialogues: Iterable[Trajectory],
    pairs: Sequence[TrajectoryPair] | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> TrainedCritic:
    """Train the turn-wise advantage (Eqs. 2 and 3) on pairs of `dialogues`; return the critic.

    `policy` is the agent whose base the critic is an adapter on, `options` are settings of section `critic`, `out` the
    folder of the adapter (by default a temporary one).
    """
    from sweetrl.learning.critic_kinds import fit_critic, make_critic

    settings = settings_for(env, policy, seed, critic=options, rank={"critic": "trained"})
    dialogues = _again_and_again(dialogues)
    configured = env.configured(settings)
    known = find_pairs(configured, dialogues) if pairs is None else pairs
    folder = Path(out) if out is not None else _temporary("critic")
    progress = StepProgress("train_critic")
    result = fit_critic(configured, dialogues, known, folder.with_name(f".{folder.name}.scratch"), progress)
    place = _moved(result.adapter, folder)
    return TrainedCritic(make_critic(configured, place), place)


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

    `critic` is a trained one, anything with its `rate`, or one that needs no training: `privileged-ratio`,
    `rollout-value`, `judge`, `random` or `oracle` (docs/concepts.md). `options` are settings of section `rank`; `out`
    is a folder to write the ranking to.
    """
    kind = critic if isinstance(critic, str) else "trained"
    settings = settings_for(env, policy, seed, rank={**options, "critic": kind})
    found = rank_replies(env.configured(settings), None if isinstance(critic, str) else critic, dialogues)
    if out is not None:
        found.save(out)
    return found


def rank_replies(
    env: Domain,
    critic: Critic | Path | None,
    dialogues: Iterable[Trajectory],
    blocks: Callable[[int, Callable[[], list[RankedState]]], list[RankedState]] = lambda block, make: make(),
    progress: Callable[[int], None] | None = None,
    cache: Path | None = None,
) -> Ranking:
    """As `rank`, by `env.settings`; `critic` may be the folder of a trained one, None makes the one in the settings.

    `blocks` is asked for each block of dialogues (its number, and what ranks it): a stage keeps finished ones. In the
    folder `cache` sampled replies are kept for other critics.
    """
    from contextlib import ExitStack, nullcontext

    from sweetrl.engines.chat import ChatFormat
    from sweetrl.engines.make import Agent
    from sweetrl.engines.transformers import TransformersEngine
    from sweetrl.evaluation.rollout_value import RolloutValueCritic, open_critic
    from sweetrl.learning import ranking
    from sweetrl.learning.adapters import load_base
    from sweetrl.learning.samples import SampleCache
    from sweetrl.models import context_limit
    from sweetrl.types import Sampling

    settings, agent = env.settings, env.settings.agent
    trajectories = list(dialogues)
    model, tokenizer = load_base(settings.model)
    chat, system = ChatFormat(tokenizer), env.system_prompt(agent.prompt)
    chosen = ranking.choose_dialogues(trajectories, settings.rank.share, settings.seed)
    rankable = ranking.rankable(chosen, env, chat, system, settings.critic.privileged, context_limit(model))
    sampling = Sampling(agent.max_new_tokens, agent.temperature, agent.top_p, settings.rank.candidates)
    engine = TransformersEngine(settings.model.base, threads=settings.model.threads, loaded=(model, tokenizer))
    kept = SampleCache(cache, model) if cache is not None else None
    states: list[RankedState] = []
    size = settings.rank.block
    with (
        ExitStack() as stack,
        Meter("rank", len(rankable), "dialogues") if progress is None else nullcontext(progress) as meter,
    ):
        made = critic
        if made is None or isinstance(made, Path):
            made = stack.enter_context(open_critic(env, made, Agent(engine, chat), (model, tokenizer)))
        # The base that samples is the one under the critic's adapter, which is off while it does.
        off: Any = getattr(getattr(made, "model", None), "disable_adapter", nullcontext)
        for first in range(0, len(rankable), size):
            part = rankable[first : first + size]

            def ranked(part: Sequence[Trajectory] = part, judge: Critic = made, off: Any = off) -> list[RankedState]:
                return ranking.rank_dialogues(part, engine, judge, chat, system, sampling, settings.seed, off, kept)

            states += blocks(first // size, ranked)
            meter(len(part))
    usage = engine.usage()
    preferences = ranking.choose_preferences(states, env, settings.rank, settings.seed)
    replay = ranking.find_replay(trajectories, chat, system)
    metrics = ranking.ranking_metrics(states, preferences, env) | {
        "dialogues": len(rankable),
        "dialogues_too_long": len(chosen) - len(rankable),
        "replay": len(replay),
        "generated_tokens": usage.generated_tokens,
        "seconds_sampling": usage.seconds,
        "devices": usage.devices,
        **(made.spent if isinstance(made, RolloutValueCritic) else {}),
    }
    return Ranking(states, preferences, replay, metrics | ranking.judged_metrics(states, rankable, env))


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
    """Train `policy` by `method` (a name, a dotted path, or a Method); return it with the trained adapter.

    Methods learn from different things: `sweet` from a `ranking`, `multi-turn-dpo` from `dialogues` and their `pairs`
    (by default as `critic.pairs` says), `rft` from `dialogues`, `grpo` from `tasks`. `options` are the method's own
    settings, `out` is the folder of the adapter (by default a temporary one).
    """
    from sweetrl.methods.base import TrainingJob
    from sweetrl.plugins import find_method

    chosen = find_method(method) if isinstance(method, str) else method
    own = {chosen.section: options} if chosen.section else {"method_options": options}
    settings = settings_for(env, policy, seed, method=chosen.name, **own)
    configured = env.configured(settings)
    dialogues = None if dialogues is None else _again_and_again(dialogues)
    if pairs is None and dialogues is not None and "pairs" in chosen.needs:
        pairs = find_pairs(configured, dialogues)
    folder = Path(out) if out is not None else _temporary("policy")
    inputs = Given(dialogues, pairs, ranking, tasks)
    scratch = folder.with_name(f".{folder.name}.scratch")
    job = TrainingJob(settings, configured, inputs, scratch, StepProgress(f"train {chosen.name}"))
    return policy.adapted(_moved(chosen.train(job).adapter, folder))


def _again_and_again(dialogues: Iterable[Trajectory]) -> Iterable[Trajectory]:
    """What can be read more than once: a generator as a list, a store as it is."""
    return list(dialogues) if iter(dialogues) is dialogues else dialogues


def settings_for(env: Domain, policy: Policy, seed: int | None, /, **changes: Any) -> Settings:
    """Return the domain's settings with the policy's model and engine, and `changes` of sections or keys."""
    settings = env.settings
    update: dict[str, Any] = {"model": policy.model, "engine": policy.engine}
    if seed is not None:
        update["seed"] = seed
    for name, values in changes.items():
        known = getattr(settings, name)
        if isinstance(values, dict) and not isinstance(known, dict):
            update[name] = section(type(known), known.model_dump() | values, name)
        else:
            update[name] = values
    return settings.model_copy(update=update)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _temporary(name: str) -> Path:
    """A folder that goes with the process."""
    _kept.append(tempfile.TemporaryDirectory(prefix=f"sweetrl-{name}-"))
    return Path(_kept[-1].name) / name


def _moved(adapter: Path, folder: Path) -> Path:
    """Put a finished adapter in its place, and remove the unfinished work around it."""
    import shutil

    from sweetrl.io import publish

    publish(adapter, folder)
    shutil.rmtree(adapter.parent, ignore_errors=True)
    return folder
