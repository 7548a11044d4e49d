"""The critic that plays dialogues on: against one dialogue at a time, and what it samples for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.dialogue import Environment
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import SimulatorError, UserError
from sweetrl.evaluation.best_of_n import best_of_n
from sweetrl.evaluation.rollout_value import RolloutValueCritic, open_critic
from sweetrl.lm.data import encode
from sweetrl.rollout.context import RolloutContext
from sweetrl.seeds import simulator_seed, state_seed
from sweetrl.types import (
    ANSWER_MARKER,
    AgentTurn,
    Completion,
    Message,
    Prompt,
    Reply,
    Sampling,
    Score,
    Task,
    Trajectory,
)
from tests.evaluation import letters
from tests.evaluation.letters import AGENT, BACKEND, Engine, Letters, make_task, reply_of, share

ROLLOUTS, SEED = 3, 11
MUTE = "silence"  # the user has no answer to that


class Moody:
    """Says a letter by their seed; a reply about silence gets none."""

    name = "moody"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        if MUTE in messages[-1].content:
            raise SimulatorError("the user fell silent")
        return f"{random.Random(seed).choice('ab')} it is"


def context_of(chat: ChatFormat, engine: Any = None, user: Any = None) -> RolloutContext:
    return letters.context_of(chat, user or Moody(), engine)


def dialogue_of(number: int, chat: ChatFormat, sampled: bool) -> Trajectory:
    """Three questions and an answer, one of them cut by the token limit; or the same as a file holds it."""
    messages, turns = [Message("user", make_task(number).problem_description)], []
    for turn in range(3):
        text = f"Is it {number}{turn}?"
        ids = chat.reply(text)[:-1] if turn == 1 else chat.reply(text)
        turns.append(AgentTurn(len(messages), text, ids, (), "length" if turn == 1 else "stop"))
        messages += [Message("assistant", text), Message("user", f"b is {turn}")]
    text = f"{ANSWER_MARKER} aab"
    turns.append(AgentTurn(len(messages), text, chat.reply(text), (), "stop"))
    messages.append(Message("assistant", text))
    return Trajectory(make_task(number), number % 2, tuple(messages), tuple(turns) if sampled else (), text)


def candidates(chat: ChatFormat) -> list[Reply]:
    """Two questions, one of them cut, and an answer."""
    question, answer = chat.reply("Is it a?"), f"{ANSWER_MARKER} aaaab"
    return [Reply(question, "Is it a?"), Reply(question[:-1], "Is it a?"), Reply(chat.reply(answer), answer)]


def slow(
    chat: ChatFormat, dialogue: Trajectory, turn: int, reply: Reply, rollouts: int = ROLLOUTS, user: Any = None
) -> tuple[list[float], int]:
    """The rewards of one reply's continuations, one after the other, and how many replies they took."""
    rewards, sampled = [], 0
    for number in range(rollouts):

        def seed(later: int, number: int = number) -> int:
            purpose = f"rollout value:{reply.token_ids}:{number}:{later}"
            return state_seed(SEED, purpose, dialogue.task.id, dialogue.attempt, turn)

        environment = Environment(dialogue.task, BACKEND, Moody(), AGENT.max_turns, seed=seed(-1))
        environment._messages = list(dialogue.messages[: 2 * turn + 1])
        environment.turn = turn
        ids = encode(dialogue, chat, BACKEND.system_prompt("short"))
        context = (*ids.token_ids[: ids.spans[turn][0]], *reply.token_ids)
        ended = reply.token_ids[-1] == chat.end_of_turn
        environment.say(reply.text)
        while not environment.done:
            try:
                words = (user or Moody()).reply(
                    dialogue.task, environment.messages, simulator_seed(seed(-1), environment.turn)
                )
            except SimulatorError:
                break
            environment.hear(words)
            context = (*context, *chat.follow(ended, words))
            text = reply_of(Prompt(context, seed(environment.turn)))
            sampled += 1
            context, ended = (*context, *chat.reply(text)), True
            environment.say(text)
        if environment.done:
            rewards.append(share(environment.answer))
        if environment.done and environment.turn == turn + 1:
            break
    return rewards, sampled


@pytest.mark.parametrize("sampled", [True, False])
def test_a_value_is_the_mean_of_dialogues_played_one_by_one(chat: ChatFormat, sampled: bool) -> None:
    context = context_of(chat)
    critic = RolloutValueCritic(context, ROLLOUTS, SEED)
    dialogues = [dialogue_of(number, chat, sampled) for number in range(4)]
    turns = [candidates(chat), [], candidates(chat)[:2], candidates(chat)]
    ratings = critic.rate([(dialogue, turns) for dialogue in dialogues])
    replies = rollouts = 0
    for dialogue, by_turn in zip(dialogues, ratings, strict=True):
        assert [len(values) for values in by_turn] == [3, 0, 2, 3]
        for turn, values in enumerate(by_turn):
            for reply, value in zip(turns[turn], values, strict=True):
                rewards, count = slow(chat, dialogue, turn, reply)
                assert value == pytest.approx(sum(rewards) / len(rewards)), (dialogue.task.id, turn, reply)
                assert len(rewards) == (1 if ANSWER_MARKER in reply.text else ROLLOUTS)
                replies, rollouts = replies + count, rollouts + len(rewards)
    assert critic.spent == {"rollouts": rollouts, "rollout_replies": replies}
    assert context.engine.sampled == replies and context.scorer.scored == rollouts  # type: ignore[attr-defined]
    assert len({value for by_turn in ratings for values in by_turn for value in values}) > 5, "continuations differ"


def test_a_continuation_that_outgrows_the_context_has_failed(chat: ChatFormat) -> None:
    """Left out of the mean, it would make a reply worth what the other continuations reached."""

    class Full(Engine):
        full = 0

        def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
            batch = super().sample(prompts, sampling)
            return [[self.room(prompt, *completions)] for prompt, completions in zip(prompts, batch, strict=True)]

        def room(self, prompt: Prompt, completion: Completion) -> Completion:
            if prompt.seed % 3:
                return completion
            self.full += 1
            return Completion((), (), "", "length")

    class FullMarks(Letters):
        def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
            return [Score(1.0) for _ in dialogues]

    engine = Full(chat)
    context = replace(context_of(chat, engine), scorer=FullMarks())
    ratings = RolloutValueCritic(context, 8, SEED).rate([(dialogue_of(0, chat, True), [candidates(chat)[:1]])])
    assert 0 < engine.full < 8 and ratings == [[[1 - engine.full / 8]]]


def test_all_continuations_advance_in_lock_step_each_with_seeds_of_its_own(chat: ChatFormat) -> None:
    engine = Engine(chat)
    critic = RolloutValueCritic(context_of(chat, engine), ROLLOUTS, SEED)
    critic.rate([(dialogue_of(number, chat, True), [candidates(chat)[:1]]) for number in range(4)])
    assert len(engine.calls) <= AGENT.max_turns - 1, "a call for each turn, not for each dialogue"
    assert len({prompt.seed for prompt in engine.calls[0]}) == len(engine.calls[0]) == 4 * ROLLOUTS


def test_a_value_depends_on_state_and_reply_only(chat: ChatFormat) -> None:
    attempts = [dialogue_of(number, chat, True) for number in range(3)]
    turns = [candidates(chat), candidates(chat)]
    together = RolloutValueCritic(context_of(chat), ROLLOUTS, SEED).rate([(attempt, turns) for attempt in attempts])
    alone = [RolloutValueCritic(context_of(chat), ROLLOUTS, SEED).rate([(attempt, turns)])[0] for attempt in attempts]
    assert together == alone
    (last,) = RolloutValueCritic(context_of(chat), ROLLOUTS, SEED).rate([(attempts[2], [[], turns[1][1:]])])
    assert last == [[], together[2][1][1:]]
    other = RolloutValueCritic(context_of(chat), ROLLOUTS, SEED + 1).rate([(attempt, turns) for attempt in attempts])
    assert other != together


def test_the_last_turn_is_scored_as_it_is(chat: ChatFormat) -> None:
    """At the last of AGENT.max_turns any reply is the answer."""
    engine = Engine(chat)
    context = replace(context_of(chat, engine), agent=AGENT.model_copy(update={"max_turns": 3}))
    critic = RolloutValueCritic(context, ROLLOUTS, SEED)
    ((*_, values),) = critic.rate([(dialogue_of(0, chat, True), [[], [], candidates(chat)])])
    assert values == [pytest.approx(1 / 6), pytest.approx(1 / 6), pytest.approx(4 / 6)]
    assert critic.spent == {"rollouts": 3, "rollout_replies": 0} and not engine.calls


def test_lost_continuations_do_not_count_and_too_many_are_an_error(chat: ChatFormat) -> None:
    class Quiet(Moody):
        def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
            if seed % 3 == 0:
                raise SimulatorError("the user fell silent")
            return super().reply(task, messages, seed)

    dialogues, question = [dialogue_of(number, chat, True) for number in range(6)], candidates(chat)[0]
    critic = RolloutValueCritic(context_of(chat, user=Quiet()), 8, SEED)
    ratings, lost = critic.rate([(dialogue, [[question]]) for dialogue in dialogues]), 0
    for dialogue, ((value,),) in zip(dialogues, ratings, strict=True):
        rewards, _ = slow(chat, dialogue, 0, question, 8, Quiet())
        assert value == pytest.approx(sum(rewards) / max(1, len(rewards))), "of the continuations that came to an end"
        lost += 8 - len(rewards)
    assert 0 < lost < 48
    mute = Reply(chat.reply(f"Is it {MUTE}?"), f"Is it {MUTE}?")
    answers = [Reply(chat.reply(text), text) for text in (f"{ANSWER_MARKER} aaa", f"{ANSWER_MARKER} a")]
    critic = RolloutValueCritic(context_of(chat), 2, SEED)
    ((values, alone),) = critic.rate([(dialogues[0], [[mute, *answers], [mute]])])
    assert values == [pytest.approx(1 / 6), pytest.approx(3 / 6), pytest.approx(1 / 6)] and alone == [0.0]
    with pytest.raises(UserError, match=r"more than the allowed share of 0\.1 \(.*fell silent"):
        RolloutValueCritic(context_of(chat), 2, SEED, 0.1).rate([(dialogues[0], [[mute, question]])])


def test_a_server_is_not_asked(chat: ChatFormat) -> None:
    class Remote(Engine):
        speaks_tokens = True

        async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            raise AssertionError

    with pytest.raises(UserError, match=r"plays many dialogues together; set `engine\.kind: transformers`"):
        RolloutValueCritic(context_of(chat, Remote(chat)), 2)


def test_best_of_n_picks_by_it(chat: ChatFormat) -> None:
    """The critic of the first reply in a Best-of-N: the dialogues so far are those that are under way."""
    context = context_of(chat)
    critic = RolloutValueCritic(context, 4, SEED)
    tasks = [make_task(number) for number in range(12)]
    points = best_of_n(tasks, replace(context, engine=Engine(chat)), {"value": critic}, (1, 4), seed=5)
    reward = {n: [point.reward or 0.0 for point in points if point.n == n] for n in (1, 4)}
    assert sum(reward[4]) > sum(reward[1]) and critic.spent["rollouts"] > 100


def test_with_a_real_model_it_is_opened_by_its_name(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fake_server: Any
) -> None:
    from sweetrl.api.learning import rank_replies
    from sweetrl.engines.policy import Agent
    from sweetrl.engines.transformers import TransformersEngine

    class Quick(Letters):
        def __init__(self, settings: Any) -> None:
            super().__init__()

        def __enter__(self) -> Quick:
            return self

        def __exit__(self, *error: object) -> None:
            """Nothing to free."""

    monkeypatch.setattr("sweetrl.backend.rewards.CodeScorer", Quick)
    settings = parse_settings(
        {
            "seed": 3,
            "model": {"base": str(tiny_model), "device": "cpu", "threads": 1},
            "agent": {"max_turns": 3, "max_new_tokens": 6},
            "rank": {"critic": "rollout-value", "rollouts": 2, "share": 1.0, "candidates": 3, "pairs": 1},
        }
    )
    env = BACKEND.configured(settings)
    engine = TransformersEngine(tiny_model, None, "float32", "cpu", 1)
    dialogues = []
    for task in env.tasks("train", 3, 1, 3):
        text = "Is it a?"
        turn = AgentTurn(1, text, engine.chat.reply(text), (), "stop")
        messages = (Message("user", task.problem_description), Message("assistant", text))
        dialogues.append(Trajectory(task, 0, messages, (turn,), reward=0.0))
    with open_critic(env, settings, None, Agent(engine, engine.chat)) as critic:
        assert isinstance(critic, RolloutValueCritic)
        reply = Reply(dialogues[0].turns[0].token_ids, dialogues[0].turns[0].raw)
        assert critic.rate([(dialogues[0], [[reply]])]) == critic.rate([(dialogues[0], [[reply]])])
    ranking = rank_replies(env, None, dialogues)
    assert len(ranking.states) == 3
    distinct = sum(len(state.candidates) for state in ranking.states)
    assert ranking.metrics["rollouts"] == 2 * distinct and ranking.metrics["rollout_replies"] > 0
    # Where a server gives the candidates, the agent in this process plays on.
    with fake_server(tokenizer=engine.tokenizer) as server:
        there = settings.engine.model_copy(update={"kind": "vllm", "urls": server.url})
        ranking = rank_replies(env.configured(settings.model_copy(update={"engine": there})), None, dialogues)
        assert server.requests == len(ranking.states) == 3
    distinct = sum(len(state.candidates) for state in ranking.states)
    assert 0 < ranking.metrics["rollouts"] <= 2 * distinct and ranking.metrics["rollout_replies"] > 0
