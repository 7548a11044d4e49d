"""Rollouts with their rewards, in shards: a shard is what a killed run repeats at most, and what determinism means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from sweetrl.colbench.simulators import Simulator
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.colbench.types import Task, Trajectory
from sweetrl.engines.base import AsyncEngine, Engine
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.rollout.ledger import Ledger
from sweetrl.rollout.run import rollout
from sweetrl.settings import AgentSettings

if TYPE_CHECKING:
    from sweetrl.colbench.rewards import Score


class Scores(Protocol):
    """What scores answers: sweetrl.colbench.rewards.Scorer."""

    def score(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        """Return one score for each (task, answer), in order."""
        ...


@dataclass(frozen=True)
class Actors:
    """Who takes part in dialogues, and by which rules: the agent's engine and chat format, the person, the scorer.

    `chat` is None for an engine that takes text.
    """

    engine: Engine
    chat: ChatFormat | None
    simulator: Simulator
    scorer: Scores
    agent: AgentSettings
    reply_characters: int = 400


def rollout_scored(
    attempts: Sequence[tuple[Task, int]],
    actors: Actors,
    store: TrajectoryStore,
    *,
    seed: int,
    policy_name: str,
    batch: int,
    shard: int,
    progress: Callable[[int], None] | None = None,
    lost_share: float = 1.0,
    ledger: Ledger | None = None,
    mine: Callable[[int], bool] | None = None,
) -> TrajectoryStore:
    """Let the agent attempt each (task, attempt number), score the answers, and write `store` shard by shard.

    Shard i holds the attempts [i * shard, (i + 1) * shard) in order. Shards that are there already are left alone, so
    a killed run goes on where it was and ends with the same bytes; the caller gives every set of arguments a folder of
    its own. `progress` is told of every finished dialogue. `batch` dialogues are under way at a time: together, turn by
    turn, with a batch engine; each on its own with an AsyncEngine, of which every finished dialogue is kept at once.

    Raises UserError as soon as more than `lost_share` of the dialogues are lost. What is finished stays; running again
    attempts the lost ones again. `ledger` takes what each dialogue has cost, as it ends.
    With `mine` only the shards that it says yes to are made (others make the rest, in the same folder).
    """
    own = [index for index in range(-(-len(attempts) // shard)) if mine is None or mine(index)]
    losses = Losses(sum(len(attempts[index * shard : (index + 1) * shard]) for index in own), lost_share)
    batch = 1 if getattr(actors.simulator, "alone", False) else batch
    if isinstance(actors.engine, AsyncEngine):
        from sweetrl.rollout.shards import concurrent_shards

        concurrent_shards(attempts, actors, store, losses, seed, policy_name, batch, shard, progress, ledger, mine)
        return store
    present = store.shards()
    for index in own:
        part = attempts[index * shard : (index + 1) * shard]
        if index in present:
            if progress is not None:
                progress(len(part))
            continue
        if actors.chat is None:
            raise ValueError("a batch engine needs a chat format")
        spoken = rollout(
            part,
            actors.engine,
            actors.chat,
            actors.simulator,
            actors.agent,
            actors.reply_characters,
            seed,
            policy_name,
            batch,
            progress,
            None if ledger is None else ledger.add,
        )
        losses.add(spoken)
        store.write_shard(index, scored(spoken, actors.scorer))
    return store


class Losses:
    """Counts lost dialogues by cause, and stops the run when more than `share` of `total` are lost."""

    def __init__(self, total: int, share: float) -> None:
        self.total, self.share = total, share
        self.causes: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many dialogues are lost."""
        return self.causes.total()

    @property
    def too_many(self) -> bool:
        """Whether more are lost than may be."""
        return self.count > self.share * self.total

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Count the lost among `trajectories`; UserError with the causes when there are too many."""
        self.causes.update(one.error for one in trajectories if one.outcome == "lost")
        if self.too_many:
            raise self.error()

    def error(self) -> UserError:
        """What is said when too many are lost."""
        causes = "; ".join(f"{count} x {cause}" for cause, count in self.causes.most_common(3))
        return UserError(
            f"{self.count} of {self.total} dialogues are lost, more than the allowed share of {self.share:g} "
            f"({causes}); mend the cause and run the same command again: what is finished is kept, lost dialogues get "
            "another chance."
        )


def scored(trajectories: Sequence[Trajectory], scorer: Scores) -> list[Trajectory]:
    """Return `trajectories` with rewards and test results; a lost dialogue keeps reward None (nobody failed there)."""
    # A page's score is worth nothing without the name of what computed it, so that is noted with it, and how the page
    # came out.
    finished = [one for one in trajectories if one.outcome != "lost"]
    scores = iter(scorer.score([(one.task, one.answer) for one in finished]))
    result = []
    for one in trajectories:
        if one.outcome != "lost":
            score = next(scores)
            named = {"reward": score.semantics, "page": score.page} if one.task.suite == "frontend" else {}
            one = replace(one, reward=score.reward, tests=tuple(score.tests), extra=one.extra | named)
        result.append(one)
    return result


def summarize(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return the means people look at first: success, reward, turns, tokens; and shares of how dialogues end.

    Success and reward are means over the scored dialogues, everything else over all.
    """
    count = scored_count = turns = tokens = answered = lost = cut = leaked = 0
    reward = success = 0.0
    for one in trajectories:
        count += 1
        turns += len(one.turns)
        known = sum(len(turn.token_ids) for turn in one.turns)
        tokens += known or int(one.extra.get("generated_tokens", 0))
        leaked += "leaks" in one.extra
        cut += any(turn.finish_reason == "length" for turn in one.turns)
        answered += one.outcome == "answered"
        lost += one.outcome == "lost"
        if one.reward is not None:
            scored_count += 1
            reward += one.reward
            success += one.success
    each, rated = max(count, 1), max(scored_count, 1)
    result: dict[str, Any] = {
        "dialogues": count,
        "success": success / rated,
        "reward": reward / rated,
        "turns": turns / each,
        "tokens_per_dialogue": tokens / each,
        "share_answered": answered / each,
        "share_cut_by_token_limit": cut / each,
        "share_lost": lost / each,
        "share_leaked": leaked / each,
    }
    return {name: float(value) for name, value in result.items()}
