"""Best-of-N at every turn: of the first N sampled replies the agent says the one that a critic likes best.

Dialogues of different critics and different N that have come to the same state share its sampling, and those of one
critic its scores: the largest N that is wanted there is sampled, and the first of its replies are a sample of a smaller
N. So every point of the curve is what a run of its own would give, and the points are paired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sweetrl.colbench.environment import Environment, visible_reply
from sweetrl.colbench.prompts import system_prompt
from sweetrl.colbench.simulators import Simulator
from sweetrl.colbench.types import AgentTurn, Message, Task, Trajectory
from sweetrl.engines.base import Completion, Engine, Prompt, Sampling
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import bootstrap_mean, paired_difference, wilson_interval
from sweetrl.settings import AgentSettings


class Critic(Protocol):
    """Scores candidate replies (sweetrl.learning.critics has them): for each dialogue, turn and candidate a number."""

    def advantages(self, work: Sequence[tuple[Trajectory, Sequence[Sequence[Any]]]]) -> list[list[list[float]]]:
        """Candidates stand in the place of the reply at each agent turn of the dialogue; a turn may have none."""
        ...


class Scores(Protocol):
    """What scores answers: sweetrl.colbench.rewards.Scorer."""

    def score(self, items: Sequence[tuple[Task, str | None]]) -> Sequence[Any]:
        """Return something with a `reward` for each (task, answer), in order."""
        ...


@dataclass(frozen=True)
class Point:
    """How one dialogue ended: Best-of-`n` with `critic`. `reward` is None where the dialogue was lost."""

    critic: str
    n: int
    task_id: str
    reward: float | None
    turns: int

    @property
    def success(self) -> bool:
        """Whether every hidden test passed."""
        return self.reward is not None and self.reward >= 1.0


@dataclass
class _Path:
    """One dialogue on its way."""

    critic: str
    n: int
    task: Task
    environment: Environment
    ids: tuple[int, ...]
    turns: list[AgentTurn] = field(default_factory=list)
    error: str = ""

    @property
    def state(self) -> tuple[str, tuple[int, ...]]:
        return self.task.id, self.ids

    @property
    def done(self) -> bool:
        return self.environment.done or bool(self.error)


def best_of_n(
    tasks: Sequence[Task],
    engine: Engine,
    chat: ChatFormat,
    simulator: Simulator,
    scorer: Scores,
    critics: Mapping[str, Critic],
    agent: AgentSettings,
    numbers: Sequence[int] = (1, 2, 4, 8, 16, 32),
    reply_characters: int = 400,
    seed: int = 0,
    batch: int = 16,
    progress: Callable[[int], None] | None = None,
) -> list[Point]:
    """Attempt every task once for each critic and each N in `numbers`; `batch` tasks advance together.

    Ties go to the reply that was sampled first. Equal arguments give equal points. An N below 1 is a UserError.
    """
    if not critics or not numbers or min(numbers) < 1:
        raise UserError("Best-of-N needs at least one critic, and an N of 1 or more; name them.")
    points: list[Point] = []
    for start in range(0, len(tasks), batch):
        paths = [
            _open(task, name, n, chat, simulator, agent, reply_characters, seed)
            for task in tasks[start : start + batch]
            for name in critics
            for n in numbers
        ]
        _advance(paths, engine, chat, critics, agent, seed)
        points += _score(paths, scorer)
        if progress is not None:
            progress(len(tasks[start : start + batch]))
    return points


def _open(
    task: Task,
    critic: str,
    n: int,
    chat: ChatFormat,
    simulator: Simulator,
    agent: AgentSettings,
    reply_characters: int,
    seed: int,
) -> _Path:
    environment = Environment(task, simulator, agent.rounds, reply_characters, state_seed(seed, task.id, -1))
    return _Path(
        critic, n, task, environment, chat.open(system_prompt(agent.prompt, task.suite), task.problem_description)
    )


def state_seed(seed: int, task_id: str, turn: int) -> int:
    """Return the seed (63 bits) of the sampling at turn `turn` (from 0) of a task; -1 is the person's."""
    text = f"best of n\0{seed}\0{task_id}\0{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _advance(
    paths: Sequence[_Path],
    engine: Engine,
    chat: ChatFormat,
    critics: Mapping[str, Critic],
    agent: AgentSettings,
    seed: int,
) -> None:
    """Run all dialogues to their ends, a turn at a time; every state is sampled once, and scored once by a critic."""
    # A session for each N: where paths have parted, those with a small N need few replies.
    sessions = {n: engine.session() for n in sorted({path.n for path in paths})}
    while active := [path for path in paths if not path.done]:
        # The last one of a state stays: that of the largest N.
        states = {path.state: path for path in sorted(active, key=lambda path: path.n)}
        sampled: dict[Any, Sequence[Completion]] = {}
        for n, session in sessions.items():
            here = {state: path for state, path in states.items() if path.n == n}
            prompts = [Prompt(path.ids, state_seed(seed, path.task.id, len(path.turns))) for path in here.values()]
            sampling = Sampling(agent.max_new_tokens, agent.temperature, agent.top_p, n)
            if prompts:
                sampled |= zip(here, session.sample(prompts, sampling), strict=True)
        liked = {name: _scores(name, critic, active, sampled) for name, critic in critics.items()}
        for path in active:
            replies = sampled[path.state][: path.n]
            if path.n > 1 and replies[0].token_ids:
                known = liked[path.critic][path.state]
                _say(path, max(replies, key=lambda one: known.get(one.token_ids, float("-inf"))), chat)
            else:
                _say(path, replies[0], chat)


def _scores(
    name: str, critic: Critic, active: Sequence[_Path], sampled: Mapping[Any, Sequence[Completion]]
) -> dict[Any, dict[tuple[int, ...], float]]:
    """What a critic thinks of the distinct replies at the states where it has to choose: state -> ids -> advantage."""
    wanted: dict[Any, tuple[_Path, int]] = {}
    for path in active:
        if path.critic == name and path.n > 1 and sampled[path.state][0].token_ids:
            wanted[path.state] = (path, max(path.n, wanted[path.state][1] if path.state in wanted else 0))
    work, distinct = [], []
    for state, (path, most) in wanted.items():
        replies = list({one.token_ids: one for one in reversed(sampled[state][:most]) if one.token_ids}.values())
        distinct.append(replies)
        work.append((_so_far(path, replies[0]), [*([] for _ in path.turns), replies]))
    found = critic.advantages(work) if work else []
    return {
        state: {reply.token_ids: value for reply, value in zip(replies, values[-1], strict=True)}
        for state, replies, values in zip(wanted, distinct, found, strict=True)
    }


def _so_far(path: _Path, reply: Completion) -> Trajectory:
    """The dialogue with `reply` in the place of those that are compared."""
    messages = path.environment.messages
    turn = AgentTurn(len(messages), reply.text, reply.token_ids, finish_reason=reply.finish_reason)
    said = Message("assistant", visible_reply(reply.text))
    return Trajectory(path.task, 0, (*messages, said), (*path.turns, turn))


def _say(path: _Path, reply: Completion, chat: ChatFormat) -> None:
    if not reply.token_ids:
        path.error = "no room for a reply in the model's context"
        return
    turn = AgentTurn(len(path.environment.messages), reply.text, reply.token_ids, finish_reason=reply.finish_reason)
    path.turns.append(turn)
    path.environment.step(reply.text)
    if not path.environment.done:
        follow = chat.follow(reply.finish_reason == "stop", path.environment.messages[-1].content)
        path.ids = (*path.ids, *reply.token_ids, *follow)


def _score(paths: Sequence[_Path], scorer: Scores) -> list[Point]:
    """Score the answers, equal ones to a task once."""
    answers: dict[tuple[str, str | None], Task] = {}
    finished = [not path.error and path.environment.outcome != "lost" for path in paths]
    for path, fine in zip(paths, finished, strict=True):
        if fine:
            answers[path.task.id, path.environment.answer] = path.task
    scores = scorer.score([(task, answer) for (_, answer), task in answers.items()])
    rewards = {key: score.reward for key, score in zip(answers, scores, strict=True)}
    return [
        Point(
            path.critic,
            path.n,
            path.task.id,
            rewards[path.task.id, path.environment.answer] if fine else None,
            len(path.turns),
        )
        for path, fine in zip(paths, finished, strict=True)
    ]


def curves(
    points: Sequence[Point], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Sum up: for each critic and N the success rate (Wilson), the mean reward (BCa), and the gain over the least N.

    Tasks that any dialogue lost are left out of all points, so that everything is paired.
    """
    lost = {point.task_id for point in points if point.reward is None}
    by_place: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if point.task_id not in lost:
            by_place.setdefault((point.critic, point.n), []).append(point)
    result: dict[str, list[dict[str, Any]]] = {}
    for critic in dict.fromkeys(name for name, _ in by_place):
        numbers = sorted(n for name, n in by_place if name == critic)
        first = [float(one.success) for one in by_place[critic, numbers[0]]]
        for n in numbers:
            here = by_place[critic, n]
            success = [float(one.success) for one in here]
            result.setdefault(critic, []).append(
                {
                    "n": n,
                    "success": wilson_interval(int(sum(success)), len(here), confidence).as_dict(),
                    "reward": bootstrap_mean(
                        [one.reward or 0.0 for one in here], confidence, resamples, seed
                    ).as_dict(),
                    "gain": paired_difference(first, success, confidence, resamples, seed).as_dict(),
                    "turns": sum(one.turns for one in here) / len(here),
                    "tasks_lost": len(lost),
                }
            )
    return result
