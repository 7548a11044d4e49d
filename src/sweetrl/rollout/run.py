"""Rollouts: the agent attempts tasks, in shards. A shard is the unit of determinism, and the most a kill costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.protocols import AsyncEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_together
from sweetrl.rollout.ledger import DialogueCost, Ledger
from sweetrl.rollout.scored import Losses, scored
from sweetrl.rollout.shards import JOURNAL, Journal, concurrent_shards
from sweetrl.types import Completion, Task, Trajectory


def batch_of(tasks: Sequence[Task], first: int, count: int) -> list[Task]:
    """Return `count` tasks from number `first` on (at most all), going on at the beginning behind the last one."""
    return [tasks[(first + offset) % len(tasks)] for offset in range(min(count, len(tasks)))]


def rollout(
    attempts: Sequence[tuple[Task, int]],
    context: RolloutContext,
    *,
    seed: int = 0,
    policy_name: str = "",
    batch: int = 128,
    progress: Callable[[int], None] = lambda finished: None,
    spent: Callable[[Sequence[DialogueCost]], None] | None = None,
) -> list[Trajectory]:
    """Let the agent attempt each (task, attempt number); return the dialogues in order, not yet scored.

    Deterministic: equal arguments give equal trajectories. The agent's context holds its replies as the ids it sampled;
    the user's words are appended to them. A dialogue that outgrows the model's context, or whose user cannot reply,
    comes back with outcome "lost" and the cause in `error`. `progress` is told of every finished dialogue, `spent` what
    dialogues have cost, as they end. `batch` dialogues advance together.
    """
    engine = context.engine
    if isinstance(engine, AsyncEngine) or context.chat is None:
        raise ValueError("dialogues that advance together need a batch engine and a chat format")
    trajectories: list[Trajectory] = []
    for start in range(0, len(attempts), batch):
        dialogues = [context.open(task, attempt, seed) for task, attempt in attempts[start : start + batch]]
        session, sampling = engine.session(), context.sampling()

        def speak(active: Sequence[Dialogue], session=session, sampling=sampling) -> list[Completion]:
            return [reply for (reply,) in session.sample([dialogue.prompt() for dialogue in active], sampling)]

        def ended(over: Sequence[Dialogue]) -> None:
            if spent is not None:
                devices = engine.usage().devices
                spent([dialogue.cost(policy_name, devices) for dialogue in over])
            progress(len(over))

        advance_together(dialogues, speak, context.simulator, ended)
        trajectories.extend(dialogue.close(policy_name) for dialogue in dialogues)
    return trajectories


def rollout_scored(
    attempts: Sequence[tuple[Task, int]],
    context: RolloutContext,
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

    Raises UserError as soon as more than `lost_share` of the dialogues are lost, those of earlier runs included. What
    is finished stays; running again attempts the lost ones again (with a batch engine: their whole shards).
    `ledger` takes what each dialogue has cost, as it ends.
    With `mine` only the shards that it says yes to are made (others make the rest, in the same folder).
    """
    own = [index for index in range(-(-len(attempts) // shard)) if mine is None or mine(index)]
    progress = progress or (lambda finished: None)
    parts = {index: attempts[index * shard : (index + 1) * shard] for index in own}
    losses = Losses(sum(map(len, parts.values())), lost_share)
    losses.causes.update(cause for index in store.shards() if index in parts for cause in store.lost(index))
    if losses.too_many:
        _take_again(store, own)
        losses.causes.clear()
    present, journal = store.shards(), Journal(store.folder / JOURNAL, shard)
    missing = [index for index in own if index not in present]
    progress(sum(len(parts[index]) for index in own if index in present))
    batch = 1 if getattr(context.simulator, "serial", False) else batch
    try:
        if isinstance(context.engine, AsyncEngine):
            concurrent_shards(
                attempts, context, store, missing, journal, losses, seed, policy_name, batch, shard, progress, ledger
            )
        else:
            spent = None if ledger is None else ledger.add
            for index in missing:
                trajectories = rollout(
                    parts[index],
                    context,
                    seed=seed,
                    policy_name=policy_name,
                    batch=batch,
                    progress=progress,
                    spent=spent,
                )
                losses.add(trajectories)
                store.write_shard(index, scored(trajectories, context.scorer))
    finally:
        if losses.too_many:
            _take_again(store, own)
    for index in own:
        journal.drop(index)
    if mine is None:  # else others may write into it
        journal.close()
    return store


def _take_again(store: TrajectoryStore, own: Sequence[int]) -> None:
    """Remove the shards that hold lost dialogues, so that they are made again.

    With a batch engine as a whole: with others beside it a dialogue's log-probabilities differ in their last bits. Of
    dialogues on their own the journals hold those that were not lost.
    """
    for index, path in store.shards().items():
        if index in own and store.lost(index):
            path.unlink()
