"""Best-of-N at every turn: of the first N sampled replies the agent takes the reply that a critic rates highest.

Dialogues of different critics and different N that have come to the same state share its sampling, and those of one
critic its scores: the largest N that is needed there is sampled, and the first of its replies are a sample of a smaller
N. So every point of the curve is what a run of its own would give, and the points are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from sweetrl.engines.background import side_by_side, wait
from sweetrl.errors import EngineError, UserError
from sweetrl.evaluation.metrics import reward_of
from sweetrl.evaluation.statistics import bootstrap_mean, paired_difference, wilson_interval
from sweetrl.protocols import AsyncEngine, Chat, Critic, Sampler, Scorer
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_together, why_lost
from sweetrl.rollout.scored import scored
from sweetrl.seeds import best_of_n_seed
from sweetrl.sweet.candidates import with_ids
from sweetrl.types import AgentTurn, Completion, Message, Reply, Task, Trajectory

WITH_PRIOR = " with prior"  # the end of such a curve's name


@dataclass(frozen=True)
class Point:
    """How one dialogue ended: Best-of-`n` with `critic`.

    `reward` is None where the dialogue was lost to others; who outgrows the context has failed (`metrics.reward_of`).
    """

    critic: str
    n: int
    task_id: str
    reward: float | None
    turns: int
    success: bool


State = tuple[str, tuple[Any, ...]]  # a task and the agent's context: token ids, or texts


@dataclass(frozen=True)
class _Path:
    """One dialogue on its way: with `critic`, best of `n`; with a `temperature` by the score that has the prior."""

    critic: str
    n: int
    dialogue: Dialogue
    temperature: float | None = None

    @property
    def curve(self) -> str:
        return self.critic if self.temperature is None else f"{self.critic}{WITH_PRIOR}"

    def score(self, reply: Completion, advantage: float) -> float:
        """A, or A / t + log pi_ref(a | o): the best reply of the policy that a KL penalty of t allows."""
        return advantage if self.temperature is None else advantage / self.temperature + sum(reply.logprobs)

    @property
    def state(self) -> State:
        return self.dialogue.task.id, self.dialogue.ids or tuple(self.dialogue.texts)


def best_of_n(
    tasks: Sequence[Task],
    context: RolloutContext,
    critics: Mapping[str, Critic],
    numbers: Sequence[int],
    seed: int,
    chat: Chat | None = None,
    temperatures: Mapping[str, float] | None = None,
) -> list[Point]:
    """Attempt every task once for each critic and each N in `numbers`, all together.

    For a critic in `temperatures` a second time, with the score A / t + log pi_ref(a | o) in place of A: the more
    replies there are, the more of those are among them that the base hardly ever gives and the critic overrates.

    Ties go to the reply that was sampled first. Equal arguments give equal points. A server is asked at all states side
    by side; where it gives no replies, the dialogues there are lost. `chat` tells the critics the token ids of an
    engine that knows only text.
    """
    priors = temperatures or {}
    paths = [
        _Path(name, n, context.open_seeded(task, 0, partial(best_of_n_seed, seed, task.id)), temperature)
        for task in tasks
        for name in critics
        for temperature in (None, *([priors[name]] if name in priors else []))
        for n in numbers
    ]
    by_dialogue = {id(path.dialogue): path for path in paths}
    # A session for each N: where paths have parted, those with a small N need few replies.
    engine = context.engine
    sessions = {} if isinstance(engine, AsyncEngine) else {n: engine.session() for n in sorted(set(numbers))}

    def speak(dialogues: Sequence[Dialogue]) -> list[Completion]:
        """Return for each dialogue what its critic rates highest; a state is sampled once, rated once by a critic."""
        active = [by_dialogue[id(dialogue)] for dialogue in dialogues]
        # The last path of a state stays: that of the largest N.
        states = {path.state: path for path in sorted(active, key=lambda path: path.n)}
        sampled = _sampled(states, sessions, context) if sessions else _sampled_at_server(states, active, context, chat)
        by_critic = {name: _advantages(name, critic, active, sampled) for name, critic in critics.items()}
        return [_choose(path, sampled[path.state][: path.n], by_critic) for path in active]

    advance_together([path.dialogue for path in paths], speak, context.simulator)
    dialogues = _scored_once([path.dialogue.close("") for path in paths], context.scorer)
    return [
        Point(path.curve, path.n, each.task.id, reward_of(each, context.domain), len(each.turns), each.success)
        for path, each in zip(paths, dialogues, strict=True)
    ]


def _scored_once(dialogues: Sequence[Trajectory], scorer: Scorer) -> list[Trajectory]:
    """Score the dialogues, equal ones once."""
    keys = [(each.task.id, each.messages, each.turns, each.outcome) for each in dialogues]
    distinct = dict(zip(keys, dialogues, strict=True))
    by_key = dict(zip(distinct, scored(list(distinct.values()), scorer), strict=True))
    return [by_key[key] for key in keys]


def _sampled(
    states: Mapping[State, _Path], sessions: Mapping[int, Sampler], context: RolloutContext
) -> dict[State, Sequence[Completion]]:
    """The replies of a batch engine."""
    replies: dict[State, Sequence[Completion]] = {}
    for n, session in sessions.items():
        here = {state: path for state, path in states.items() if path.n == n}
        if here:
            prompts = [path.dialogue.prompt() for path in here.values()]
            replies |= zip(here, session.sample(prompts, context.sampling(n)), strict=True)
    return replies


def _sampled_at_server(
    states: Mapping[State, _Path], active: Sequence[_Path], context: RolloutContext, chat: Chat | None
) -> dict[State, Sequence[Completion]]:
    """The replies of a server; where it has none, the dialogues are lost, and a reply without tokens stands."""
    engine = cast(AsyncEngine, context.engine)
    sampled: dict[State, Sequence[Completion]] = {}
    causes: dict[State, str] = {}

    async def visit(item: tuple[State, _Path]) -> None:
        state, path = item
        try:
            replies = await engine.ask(path.dialogue.prompt(), context.sampling(path.n))
        except EngineError as error:
            causes[state], replies = why_lost(error), [Completion((), (), "", "length")]
        sampled[state] = replies if chat is None else [with_ids(each, chat) for each in replies]

    wait(side_by_side(iter(states.items()), visit, len(states)))
    for path in active:
        path.dialogue.error = causes.get(path.state, "")
    return sampled


def _choose(
    path: _Path, replies: Sequence[Completion], by_critic: Mapping[str, Mapping[State, Mapping[tuple[int, ...], float]]]
) -> Completion:
    if path.n == 1 or not replies[0].token_ids:
        return replies[0]
    advantages = by_critic[path.critic][path.state]
    return max(replies, key=lambda reply: path.score(reply, advantages.get(reply.token_ids, float("-inf"))))


def _advantages(
    name: str, critic: Critic, active: Sequence[_Path], sampled: Mapping[State, Sequence[Completion]]
) -> dict[State, dict[tuple[int, ...], float]]:
    """Return a critic's ratings of the distinct replies where it has to choose: state -> token ids -> advantage."""
    choosing: dict[State, _Path] = {}
    for path in active:
        most = choosing[path.state].n if path.state in choosing else 1
        if path.critic == name and path.n > most and sampled[path.state][0].token_ids:
            choosing[path.state] = path
    work: list[tuple[Trajectory, list[list[Reply]]]] = []
    for state, path in choosing.items():
        with_tokens = [reply for reply in reversed(sampled[state][: path.n]) if reply.token_ids]
        replies = list({reply.token_ids: reply for reply in with_tokens}.values())
        candidates = [Reply(reply.token_ids, reply.text) for reply in replies]
        work.append((_so_far(path.dialogue, replies[0]), [*([] for _ in path.dialogue.turns), candidates]))
    rated = critic.rate(work) if work else []
    return {
        state: {reply.token_ids: value for reply, value in zip(turns[-1], values[-1], strict=True)}
        for state, (_, turns), values in zip(choosing, work, rated, strict=True)
    }


def _so_far(dialogue: Dialogue, reply: Completion) -> Trajectory:
    """The dialogue with `reply` in the place of those that are compared."""
    messages, domain = dialogue.environment.messages, dialogue.environment.domain
    turn = AgentTurn(len(messages), reply.text, reply.token_ids, (), reply.finish_reason, prompt_ids=dialogue.ids)
    message = Message("assistant", domain.visible(reply.text))
    return Trajectory(dialogue.task, dialogue.attempt, (*messages, message), (*dialogue.turns, turn))


def curves(
    points: Sequence[Point], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Sum up: for each critic and N the success rate (Wilson), the mean reward (BCa), and the gain over the least N.

    Tasks with a lost dialogue are left out of all points, so that all points are paired. Fewer than two other tasks are
    a UserError.
    """
    lost = {point.task_id for point in points if point.reward is None}
    tasks = {point.task_id for point in points}
    if len(tasks - lost) < 2:
        raise UserError(
            f"Best-of-N: {len(lost)} of {len(tasks)} tasks have a dialogue that was lost (the user or a server did not "
            "answer), and at least 2 others are needed; fix the cause and run the same command again."
        )
    kept: dict[str, dict[int, list[Point]]] = {}
    for point in points:
        if point.task_id not in lost:
            kept.setdefault(point.critic, {}).setdefault(point.n, []).append(point)
    result: dict[str, list[dict[str, Any]]] = {}
    for critic, by_number in kept.items():
        successes = {n: [float(point.success) for point in by_number[n]] for n in sorted(by_number)}
        first = successes[min(by_number)]
        for n, success in successes.items():
            rewards = [point.reward or 0.0 for point in by_number[n]]
            row = {
                "n": n,
                "success": wilson_interval(int(sum(success)), len(success), confidence).as_dict(),
                "reward": bootstrap_mean(rewards, confidence, resamples, seed).as_dict(),
                "gain": paired_difference(first, success, confidence, resamples, seed).as_dict(),
                "turns": sum(point.turns for point in by_number[n]) / len(success),
                "tasks_lost": len(lost),
            }
            result.setdefault(critic, []).append(row)
    return result
