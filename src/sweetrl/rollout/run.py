"""The loop of a batch engine and environments: all dialogues of a batch advance together, one agent turn a round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sweetrl.colbench.environment import turn_seed
from sweetrl.colbench.simulators import AsyncSimulator, Simulator, SimulatorError
from sweetrl.colbench.types import Task, Trajectory
from sweetrl.engines.background import wait
from sweetrl.engines.base import Engine, Sampling
from sweetrl.engines.chat import ChatFormat
from sweetrl.rollout.dialogue import Dialogue, open_dialogue
from sweetrl.rollout.ledger import DialogueCost
from sweetrl.settings import AgentSettings


def rollout(
    attempts: Sequence[tuple[Task, int]],
    engine: Engine,
    chat: ChatFormat,
    simulator: Simulator,
    agent: AgentSettings,
    reply_characters: int = 400,
    seed: int = 0,
    policy_name: str = "",
    batch: int = 128,
    progress: Callable[[int], None] | None = None,
    spent: Callable[[Sequence[DialogueCost]], None] | None = None,
) -> list[Trajectory]:
    """Let the agent attempt each (task, attempt number); return the dialogues in order, not yet scored.

    Deterministic: equal arguments give equal trajectories. The agent's context holds its replies as the ids it sampled;
    the person's words are appended to them. A dialogue that outgrows the model's context, or whose person cannot reply,
    comes back with outcome "lost" and the cause in `error`. `progress` is told of every finished dialogue. A person who
    takes time (AsyncSimulator) answers all dialogues of a round side by side. `spent` is told what dialogues have cost,
    as they end.
    """
    trajectories: list[Trajectory] = []
    for start in range(0, len(attempts), batch):
        dialogues = [
            open_dialogue(task, attempt, chat, simulator, agent, reply_characters, seed)
            for task, attempt in attempts[start : start + batch]
        ]
        _advance(dialogues, engine, simulator, agent, lambda ended: _tell(ended, engine, policy_name, progress, spent))
        trajectories.extend(dialogue.close(policy_name) for dialogue in dialogues)
    return trajectories


def _advance(
    dialogues: Sequence[Dialogue],
    engine: Engine,
    simulator: Simulator,
    agent: AgentSettings,
    told: Callable[[Sequence[Dialogue]], None],
) -> None:
    """Run all dialogues to their ends; `told` is told which have ended."""
    sampling = Sampling(max_new_tokens=agent.max_new_tokens, temperature=agent.temperature, top_p=agent.top_p)
    session = engine.session()
    active = [dialogue for dialogue in dialogues if not dialogue.done]
    while active:
        prompts = [each.prompt() for each in active]
        for dialogue, (completion,) in zip(active, session.sample(prompts, sampling), strict=True):
            if completion.token_ids:
                dialogue.take(completion)
            else:
                count = len(dialogue.ids)
                dialogue.error = f"the dialogue's {count} tokens leave no room for a reply in the model's context"
        _answer([dialogue for dialogue in active if not dialogue.done], simulator)
        ended = [dialogue for dialogue in active if dialogue.done]
        if ended:
            told(ended)
        active = [dialogue for dialogue in active if not dialogue.done]


def _tell(
    ended: Sequence[Dialogue],
    engine: Engine,
    policy: str,
    progress: Callable[[int], None] | None,
    spent: Callable[[Sequence[DialogueCost]], None] | None,
) -> None:
    if spent is not None:
        devices = engine.usage().devices
        spent([one.cost(policy, devices) for one in ended])
    if progress is not None:
        progress(len(ended))


def _answer(dialogues: Sequence[Dialogue], simulator: Simulator) -> None:
    """Let the person answer in each of `dialogues`."""
    if isinstance(simulator, AsyncSimulator):
        wait(_answer_all(dialogues, simulator))
        return
    for dialogue in dialogues:
        environment = dialogue.environment
        try:
            words = simulator.reply(environment.task, environment.messages, person_seed(dialogue))
        except SimulatorError as error:
            environment.lose(str(error))
        else:
            environment.hear(words)
            dialogue.go_on()


async def _answer_all(dialogues: Sequence[Dialogue], simulator: AsyncSimulator) -> None:
    await asyncio.gather(*(let_answer(dialogue, simulator) for dialogue in dialogues))


async def let_answer(dialogue: Dialogue, simulator: AsyncSimulator) -> None:
    """Let the person answer in one dialogue."""
    environment = dialogue.environment
    try:
        words = await simulator.answer(environment.task, environment.messages, person_seed(dialogue))
    except SimulatorError as error:
        environment.lose(str(error))
    else:
        environment.hear(words)
        dialogue.go_on()


def person_seed(dialogue: Dialogue) -> int:
    """Return the person's seed for the turn that is theirs now."""
    return turn_seed(dialogue.environment.seed, dialogue.environment.round)
