"""Best-of-N: one shared sampling gives what runs of their own give, and a good critic gets better with N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sweetrl.colbench.dialogue import Environment
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import SimulatorError, UserError
from sweetrl.evaluation.best_of_n import Point, best_of_n, curves
from sweetrl.rollout.context import RolloutContext
from sweetrl.seeds import best_of_n_seed
from sweetrl.types import Completion, Message, Prompt, Sampling, Score, Task, Trajectory
from tests.evaluation.letters import AGENT, BACKEND, Engine, Letters, context_of, make_task, reply_of, share

NUMBERS = (1, 2, 4, 8)
MUTE = ("task-11", "task-12", "task-13")


class User:
    """Repeats the last word of the question; leaves the room at some tasks."""

    name = "echo"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        if task.id in MUTE:
            raise SimulatorError("the user left the room")
        return f"{messages[-1].content.split()[-1]} it is"


class Likes:
    """Likes a letter; asserts that it is given the dialogue that the replies belong to."""

    def __init__(self, letter: str):
        self.letter, self.calls = letter, 0

    def rate(self, work: Sequence[tuple[Trajectory, Sequence[Sequence[Any]]]]) -> list[list[list[float]]]:
        self.calls += 1
        for dialogue, turns in work:
            assert len(turns) == len(dialogue.turns) == len(dialogue.messages[1::2])
            assert not any(turns[:-1]) and len({reply.token_ids for reply in turns[-1]}) == len(turns[-1])
            assert dialogue.turns[-1].token_ids == turns[-1][0].token_ids
        return [[[float(reply.text.count(self.letter)) for reply in replies] for replies in turns] for _, turns in work]


class Once(Letters):
    """Scores nothing twice."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        distinct = {(dialogue.task.id, dialogue.messages, dialogue.turns) for dialogue in dialogues}
        assert len(distinct) == len(dialogues)
        return super().score(dialogues)


def context(chat: ChatFormat, engine: Any = None) -> RolloutContext:
    return context_of(chat, User(), engine, Once())


def run(chat: ChatFormat, critics: Any, numbers: Sequence[int], tasks: Sequence[int] = range(6)) -> list[Point]:
    return best_of_n([make_task(number) for number in tasks], context(chat), critics, numbers, seed=5)


class Telling(Engine):
    """Gives a reply a log-prob that rises with its letters b."""

    def say(self, text: str) -> Completion:
        completion = super().say(text)
        return replace(completion, logprobs=(likely(text), *completion.logprobs[1:]))


def likely(text: str) -> float:
    return text.count("b") - 9.0


def slow(chat: ChatFormat, task: Task, letter: str, n: int, temperature: float | None = None) -> tuple[float, int]:
    """One dialogue alone, written down as it reads: of the first n replies say the first of the best."""

    def score(text: str) -> float:
        advantage = float(text.count(letter))
        return advantage if temperature is None else advantage / temperature + likely(text)

    environment = Environment(task, BACKEND, User(), AGENT.max_turns)
    ids, turns = chat.open(BACKEND.system_prompt("short"), task.problem_description), 0
    while not environment.done:
        prompt = Prompt(ids, best_of_n_seed(5, task.id, turns))
        texts = [reply_of(prompt, index) for index in range(n)]
        best = texts[0] if n == 1 else sorted(texts, key=lambda text: -score(text))[0]
        environment.step(best)
        turns += 1
        if not environment.done:
            ids = (*ids, *chat.reply(best), *chat.follow(True, environment.messages[-1].content))
    return share(environment.answer), turns


def test_every_point_is_what_a_dialogue_of_its_own_gives(chat: ChatFormat) -> None:
    points = run(chat, {"good": Likes("a"), "bad": Likes("b")}, NUMBERS)
    assert len(points) == 6 * 2 * len(NUMBERS)
    for point in points:
        task = make_task(int(point.task_id.removeprefix("task-")))
        letter = {"good": "a", "bad": "b"}[point.critic]
        assert (point.reward, point.turns) == slow(chat, task, letter, point.n), point
    alone = run(chat, {"good": Likes("a")}, [4])
    assert alone == [point for point in points if (point.critic, point.n) == ("good", 4)]


@pytest.mark.parametrize("temperature", [0.25, 0.75, 4.0])
def test_a_score_with_the_prior_has_a_curve_of_its_own(chat: ChatFormat, temperature: float) -> None:
    """A / t + log pi_ref(a | o); the curve without it is what it was."""
    tasks, critics = [make_task(number) for number in range(8)], {"good": Likes("a"), "bad": Likes("b")}
    where = context(chat, Telling(chat))
    points = best_of_n(tasks, where, critics, NUMBERS, seed=5, temperatures={"good": temperature})
    assert {point.critic for point in points} == {"good", "bad", "good with prior"}
    assert [point for point in points if point.critic != "good with prior"] == run(chat, critics, NUMBERS, range(8))
    for point in (point for point in points if point.critic == "good with prior"):
        task = make_task(int(point.task_id.removeprefix("task-")))
        assert (point.reward, point.turns) == slow(chat, task, "a", point.n, temperature), point


def test_a_state_is_sampled_once_and_scored_once(chat: ChatFormat) -> None:
    engine, good, bad = Engine(chat), Likes("a"), Likes("b")
    tasks = [make_task(number) for number in range(4)]
    best_of_n(tasks, context(chat, engine), {"good": good, "bad": bad}, NUMBERS, seed=5)
    assert all(len({prompt.token_ids for prompt in prompts}) == len(prompts) for prompts in engine.calls)
    assert len(engine.calls[0]) == 4, "the first turn is shared by all N and all critics"
    assert good.calls <= AGENT.max_turns and bad.calls <= AGENT.max_turns
    assert engine.sampled < len(tasks) * AGENT.max_turns * 2 * sum(NUMBERS), "and no more replies than are chosen from"


def test_a_good_critic_rises_with_n_and_a_bad_one_falls(chat: ChatFormat) -> None:
    summary = curves(run(chat, {"good": Likes("a"), "bad": Likes("b")}, NUMBERS, range(20, 60)), resamples=200)
    rewards = {name: [point["reward"]["value"] for point in points] for name, points in summary.items()}
    assert [point["n"] for point in summary["good"]] == list(NUMBERS)
    assert rewards["good"][0] == rewards["bad"][0], "with one reply there is nothing to choose"
    assert rewards["good"][-1] > rewards["good"][0] + 0.1 > rewards["bad"][-1] + 0.2
    first, last = summary["good"][0], summary["good"][-1]
    assert last["reward"]["low"] < last["reward"]["value"] < last["reward"]["high"]
    gain = last["success"]["value"] - first["success"]["value"]
    assert first["gain"]["value"] == 0.0 and last["gain"]["value"] == pytest.approx(gain)


def test_a_lost_dialogue_leaves_its_task_out_of_every_point(chat: ChatFormat) -> None:
    points = run(chat, {"good": Likes("a")}, NUMBERS, range(10, 16))
    lost = {point.task_id for point in points if point.reward is None}
    assert lost and lost <= set(MUTE)
    for place in curves(points, resamples=200)["good"]:
        assert place["success"]["n"] == 6 - len(lost) and place["tasks_lost"] == len(lost)


def test_who_outgrows_the_context_has_failed(chat: ChatFormat) -> None:
    """As in an evaluation: else a critic that likes long replies would lose its tasks for all critics."""

    class Small(Engine):
        def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
            full = [Completion((), (), "", "length")] * sampling.n
            batch = super().sample(prompts, sampling)
            return [full if len(prompt.token_ids) > 90 else free for prompt, free in zip(prompts, batch, strict=True)]

    critics, tasks = {"good": Likes("a")}, [make_task(number) for number in range(6)]
    free, points = (
        best_of_n(tasks, context(chat, engine), critics, NUMBERS, seed=5) for engine in (Engine(chat), Small(chat))
    )
    full = [point for point, unlimited in zip(points, free, strict=True) if point != unlimited]
    assert full and all((point.reward, point.success) == (0.0, False) and point.turns for point in full)
    assert curves(points, resamples=200)["good"][0]["tasks_lost"] == 0


def test_where_everything_is_lost_there_is_no_curve() -> None:
    points = [Point("good", n, f"t{task}", None, 1, False) for n in (1, 2) for task in range(5)]
    kept = [Point("good", n, "t9", 1.0, 1, True) for n in (1, 2)]
    for some, count in ((points, 5), ([*points, *kept], 6)):
        with pytest.raises(UserError, match=rf"Best-of-N: 5 of {count} tasks have a dialogue that was lost"):
            curves(some)


def test_success_is_what_the_score_says(chat: ChatFormat) -> None:
    class Solved(Once):
        def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
            return [replace(score, solved=score.reward > 0.5) for score in super().score(dialogues)]

    where = replace(context(chat), scorer=Solved())
    points = best_of_n([make_task(number) for number in range(20, 30)], where, {"good": Likes("a")}, NUMBERS, seed=5)
    assert {point.success for point in points} == {True, False}
    assert all(point.success == (point.reward is not None and point.reward > 0.5) for point in points)
    assert curves(points, resamples=200)["good"][0]["success"]["value"] > 0
