"""Rollouts with their rewards, in shards: a shard is what a killed run repeats at most, and what determinism means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from sweetrl.colbench.simulators import Simulator
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.colbench.types import Task, Trajectory
from sweetrl.engines.base import Engine
from sweetrl.engines.chat import ChatFormat
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
    """Who takes part in dialogues, and by which rules: the agent's engine and chat format, the person, the scorer."""

    engine: Engine
    chat: ChatFormat
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
) -> TrajectoryStore:
    """Let the agent attempt each (task, attempt number), score the answers, and write `store` shard by shard.

    Shard i holds the attempts [i * shard, (i + 1) * shard) in order. Shards that are there already are left alone, so
    a killed run goes on where it was and ends with the same bytes; the caller gives every set of arguments a folder of
    its own. `progress` is told of every finished dialogue.
    """
    present = store.shards()
    for index, start in enumerate(range(0, len(attempts), shard)):
        part = attempts[start : start + shard]
        if index in present:
            if progress is not None:
                progress(len(part))
            continue
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
        )
        store.write_shard(index, scored(spoken, actors.scorer))
    return store


def scored(trajectories: Sequence[Trajectory], scorer: Scores) -> list[Trajectory]:
    """Return `trajectories` with rewards and test results; a lost dialogue keeps reward None (nobody failed there)."""
    finished = [one for one in trajectories if one.outcome != "lost"]
    scores = iter(scorer.score([(one.task, one.answer) for one in finished]))
    result = []
    for one in trajectories:
        if one.outcome != "lost":
            score = next(scores)
            one = replace(one, reward=score.reward, tests=tuple(score.tests))
        result.append(one)
    return result


def summarize(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return the means people look at first: success, reward, turns, tokens; and shares of how dialogues end.

    Success and reward are means over the scored dialogues, everything else over all.
    """
    count = scored_count = turns = tokens = answered = lost = cut = 0
    reward = success = 0.0
    for one in trajectories:
        count += 1
        turns += len(one.turns)
        tokens += sum(len(turn.token_ids) for turn in one.turns)
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
    }
    return {name: float(value) for name, value in result.items()}
