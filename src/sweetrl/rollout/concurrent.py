"""The asynchronous loop: every dialogue advances as soon as its own reply is there, whatever the others wait for.

What a dialogue becomes follows from its task, attempt and seeds alone, so the order in which replies come in changes
nothing but the order in which dialogues end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sweetrl.colbench.simulators import AsyncSimulator, Simulator, SimulatorError
from sweetrl.colbench.types import Task, Trajectory
from sweetrl.engines.background import in_thread, wait
from sweetrl.engines.base import AsyncEngine, EngineError, Sampling
from sweetrl.engines.chat import ChatFormat
from sweetrl.rollout.dialogue import Dialogue, open_dialogue
from sweetrl.rollout.ledger import DialogueCost
from sweetrl.rollout.run import let_answer, person_seed
from sweetrl.settings import AgentSettings

Finished = Callable[[int, Trajectory], None]


def rollout_concurrent(
    attempts: Sequence[tuple[int, Task, int]],
    engine: AsyncEngine,
    chat: ChatFormat | None,
    simulator: Simulator,
    agent: AgentSettings,
    finished: Finished,
    *,
    reply_characters: int = 400,
    seed: int = 0,
    policy_name: str = "",
    dialogues: int = 64,
    spent: Callable[[Sequence[DialogueCost]], None] | None = None,
) -> None:
    """Let the agent attempt each (position, task, attempt number), with at most `dialogues` under way.

    They begin in order; `finished(position, trajectory)` is told of each as it ends, one at a time, not yet scored. It
    must be quick; what it raises ends the rollout. A dialogue without a reply to be had, of the agent or the person,
    ends with outcome "lost" and the cause in `error`. Raises UserError for what makes all replies impossible.
    `chat` None gives the agent text instead of token ids. `spent` is told what each dialogue has cost, just before
    `finished` is told of it.
    """
    sampling = Sampling(max_new_tokens=agent.max_new_tokens, temperature=agent.temperature, top_p=agent.top_p)

    async def converse(position: int, task: Task, attempt: int) -> None:
        dialogue = open_dialogue(task, attempt, chat, simulator, agent, reply_characters, seed)
        await _advance(dialogue, engine, simulator, sampling)
        if spent is not None:
            spent([dialogue.cost(policy_name, engine.usage().devices)])
        finished(position, dialogue.close(policy_name))

    wait(_all(iter(attempts), converse, min(dialogues, len(attempts))))


async def _all(attempts: Iterator[tuple[int, Task, int]], converse: Callable[..., Any], workers: int) -> None:
    """Keep `workers` dialogues under way until none is left; the first exception ends all of them."""

    async def work() -> None:
        for one in attempts:  # shared by all workers, which are in one thread
            await converse(*one)

    tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _advance(dialogue: Dialogue, engine: AsyncEngine, simulator: Simulator, sampling: Sampling) -> None:
    """Run one dialogue to its end."""
    instant = getattr(simulator, "instant", False)
    while not dialogue.done:
        try:
            (completion,) = await engine.ask(dialogue.prompt(), sampling)
        except EngineError as error:
            dialogue.error = str(error)
            return
        dialogue.take(completion)
        if dialogue.done:
            return
        if isinstance(simulator, AsyncSimulator):
            await let_answer(dialogue, simulator)
            continue
        environment = dialogue.environment
        asked = (environment.task, environment.messages, person_seed(dialogue))
        try:
            words = simulator.reply(*asked) if instant else await in_thread(simulator.reply, *asked)
        except SimulatorError as error:
            environment.lose(str(error))
        else:
            environment.hear(words)
            dialogue.go_on()
