"""The loop of engine and environments: all dialogues of a batch advance together, one agent turn a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sweetrl.colbench.environment import Environment
from sweetrl.colbench.prompts import system_prompt
from sweetrl.colbench.simulators import Simulator
from sweetrl.colbench.types import AgentTurn, Task, Trajectory
from sweetrl.engines.base import Completion, Engine, Prompt, Sampling
from sweetrl.engines.chat import ChatFormat
from sweetrl.rollout.seeds import dialogue_seed
from sweetrl.settings import AgentSettings


@dataclass
class _Dialogue:
    """One dialogue on its way: what both sides see (environment) and the agent's own context as token ids."""

    task: Task
    attempt: int
    seed: int
    environment: Environment
    ids: tuple[int, ...]
    turns: list[AgentTurn] = field(default_factory=list)
    error: str = ""

    @property
    def done(self) -> bool:
        return self.environment.done or bool(self.error)


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
) -> list[Trajectory]:
    """Let the agent attempt each (task, attempt number); return the dialogues in order, not yet scored.

    Deterministic: equal arguments give equal trajectories. The agent's context holds its replies as the ids it sampled;
    the person's words are appended to them. A dialogue that outgrows the model's context, or whose person cannot reply,
    comes back with outcome "lost" and the cause in `error`. `progress` is told of every finished dialogue.
    """
    trajectories: list[Trajectory] = []
    for start in range(0, len(attempts), batch):
        dialogues = [
            _open(task, attempt, chat, simulator, agent, reply_characters, seed)
            for task, attempt in attempts[start : start + batch]
        ]
        _advance(dialogues, engine, chat, agent, seed, progress)
        trajectories.extend(_close(dialogue, simulator.name, policy_name) for dialogue in dialogues)
    return trajectories


def _open(
    task: Task,
    attempt: int,
    chat: ChatFormat,
    simulator: Simulator,
    agent: AgentSettings,
    reply_characters: int,
    seed: int,
) -> _Dialogue:
    own = dialogue_seed(seed, task.id, attempt)
    environment = Environment(task, simulator, rounds=agent.rounds, reply_characters=reply_characters, seed=own)
    return _Dialogue(task, attempt, own, environment, chat.open(system_prompt(agent.prompt), task.problem_description))


def _advance(
    dialogues: Sequence[_Dialogue],
    engine: Engine,
    chat: ChatFormat,
    agent: AgentSettings,
    seed: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Run all dialogues to their ends."""
    sampling = Sampling(max_new_tokens=agent.max_new_tokens, temperature=agent.temperature, top_p=agent.top_p)
    session = engine.session()
    active = [dialogue for dialogue in dialogues if not dialogue.done]
    while active:
        prompts = [
            Prompt(each.ids, dialogue_seed(seed, each.task.id, each.attempt, len(each.turns))) for each in active
        ]
        for dialogue, (completion,) in zip(active, session.sample(prompts, sampling), strict=True):
            _take(dialogue, completion, chat)
        left = [dialogue for dialogue in active if not dialogue.done]
        if progress is not None and len(left) < len(active):
            progress(len(active) - len(left))
        active = left


def _take(dialogue: _Dialogue, completion: Completion, chat: ChatFormat) -> None:
    """Let the agent say `completion`, and the person answer unless the dialogue ends."""
    if not completion.token_ids:
        dialogue.error = f"the dialogue's {len(dialogue.ids)} tokens leave no room for a reply in the model's context"
        return
    environment = dialogue.environment
    dialogue.turns.append(
        AgentTurn(
            message_index=len(environment.messages),
            raw=completion.text,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
        )
    )
    environment.step(completion.text)
    if not environment.done:
        follow = chat.follow(completion.finish_reason == "stop", environment.messages[-1].content)
        dialogue.ids = (*dialogue.ids, *completion.token_ids, *follow)


def _close(dialogue: _Dialogue, simulator: str, policy: str) -> Trajectory:
    environment = dialogue.environment
    error = dialogue.error or environment.error
    return Trajectory(
        task=dialogue.task,
        attempt=dialogue.attempt,
        messages=environment.messages,
        turns=tuple(dialogue.turns),
        answer=None if error else environment.answer,
        outcome="lost" if error else environment.outcome or "lost",
        seed=dialogue.seed,
        policy=policy,
        simulator=simulator,
        error=error,
    )
