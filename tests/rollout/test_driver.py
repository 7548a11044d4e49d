"""The loops over dialogues: the same dialogues whatever the loop and the timing, and whoever ends them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.colbench.users import ConsoleUser
from sweetrl.config.settings import AgentSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_each
from sweetrl.rollout.run import rollout, rollout_scored
from sweetrl.rollout.scored import summarize
from sweetrl.types import Task, Trajectory

AGENT = AgentSettings(max_turns=5, max_new_tokens=64)


def each_on_its_own(
    dialogues: Sequence[Dialogue], context: RolloutContext, workers: int = 64, policy: str = ""
) -> tuple[list[Trajectory], list[int]]:
    """The dialogues in order after `advance_each`, and the order in which they ended."""
    places = {id(dialogue): place for place, dialogue in enumerate(dialogues)}
    ended: list[int] = []
    advance_each(
        iter(dialogues),
        context.engine,  # type: ignore[arg-type]
        context.simulator,
        context.sampling(),
        lambda dialogue: ended.append(places[id(dialogue)]),
        workers,
    )
    return [dialogue.close(policy) for dialogue in dialogues], ended


def opened(attempts: Sequence[tuple[Task, int]], context: RolloutContext) -> list[Dialogue]:
    return [context.open(task, attempt, 5) for task, attempt in attempts]


@pytest.mark.parametrize("workers", [1, 5, 64])
def test_the_same_as_in_lock_step_whatever_the_timing(cast: Any, workers: int) -> None:
    attempts = cast.attempts(10)
    engine = cast.engine("Why?", "thought OUTPUT: How?", "I WANT TO ANSWER: aa", cut=[1])
    steps = cast.context(engine, AGENT, cast.user(mute=[4]))
    expected = rollout(attempts, steps, seed=5, policy_name="base")
    slow = cast.slow_engine(engine, workers)
    context = replace(steps, engine=slow, simulator=cast.slow_user(cast.user(mute=[4])))
    trajectories, ended = each_on_its_own(opened(attempts, context), context, workers, "base")
    assert trajectories == expected
    assert 1 <= slow.most <= workers
    assert sorted(ended) == list(range(len(attempts)))
    assert workers == 1 or ended != sorted(ended)  # they ended in another order
    threads = replace(context, simulator=cast.user(mute=[4]))
    assert each_on_its_own(opened(attempts, threads), threads, policy="base")[0] == expected


def test_a_last_reply_begins_as_it_must(cast: Any) -> None:
    engine = cast.engine("Why?", "aa")
    context = replace(cast.context(engine, AGENT.model_copy(update={"max_turns": 2})), opening="I WANT TO ANSWER:\n")
    attempts = cast.attempts(3)
    for dialogue in rollout(attempts, context, seed=5, policy_name="base"):
        question, answer = dialogue.turns
        assert question.raw == "Why?" and answer.raw == "I WANT TO ANSWER:\naa"
        assert (dialogue.outcome, dialogue.answer) == ("answered", "\naa")
        opening = cast.chat.plain(context.opening)
        assert answer.token_ids == opening + cast.chat.reply("aa")
        assert answer.logprobs[: len(opening) + 1] == (0.0,) * len(opening) + (-0.5,)
    first, last = engine.batches
    assert all(prompt.token_ids[-len(opening) :] == opening for prompt in last)
    assert not any(prompt.token_ids[-len(opening) :] == opening for prompt in first)
    with pytest.raises(UserError, match="its engine takes text only"):
        replace(context, chat=None, agent=context.agent.model_copy(update={"max_turns": 1})).open(
            cast.task(0), 0, 5
        ).prompt()


def test_what_the_listener_raises_ends_the_rollout(cast: Any) -> None:
    def full(dialogue: Dialogue) -> None:
        raise UserError("no space left on the disk")

    slow = cast.slow_engine(cast.engine("I WANT TO ANSWER: aa"), 1)
    context = cast.context(slow, AGENT)
    dialogues = iter(opened([(cast.task(0), 0)] * 50, context))
    with pytest.raises(UserError, match="no space"):
        advance_each(dialogues, slow, context.simulator, context.sampling(), full, 4)
    assert slow.most <= 4
    assert len(list(dialogues)) == 46  # no other was begun


# Users who leave


@pytest.mark.parametrize("loop", ["lock-step", "lock-step, awaited", "instant", "in threads", "awaited"])
def test_a_user_who_leaves_ends_the_dialogue_with_the_agents_last_reply(
    cast: Any, chat: ChatFormat, tmp_path: Path, loop: str
) -> None:
    engine = cast.engine("Why?", "thought OUTPUT: aab?", "I WANT TO ANSWER: aa")
    user = cast.user(leaves=[1, 3])
    user.instant = loop == "instant"
    context = cast.context(
        engine if "lock-step" in loop else cast.slow_engine(engine, 7),
        AGENT,
        cast.slow_user(user) if "awaited" in loop else user,
    )
    attempts = cast.attempts(5)
    store = rollout_scored(
        attempts, context, TrajectoryStore(tmp_path), seed=5, policy_name="base", batch=4, shard=4, lost_share=0.0
    )
    assert [(dialogue.task, dialogue.attempt) for dialogue in store] == attempts
    for dialogue in store:
        if dialogue.task in (cast.task(1), cast.task(3)):
            assert (dialogue.outcome, dialogue.error, dialogue.answer) == ("user_left", "", " aab?")
            assert dialogue.reward == pytest.approx(2 / 5) and [test.name for test in dialogue.tests] == ["test1"]
            assert [turn.raw for turn in dialogue.turns] == ["Why?", "thought OUTPUT: aab?"]
            assert [turn.message_index for turn in dialogue.turns] == [1, 3]
            assert [turn.token_ids for turn in dialogue.turns] == [chat.reply(turn.raw) for turn in dialogue.turns]
            words = [dialogue.task.problem_description, "Why?", "That is question 1.", " aab?"]
            assert [message.content for message in dialogue.messages] == words
        else:
            assert (dialogue.outcome, dialogue.answer, len(dialogue.turns)) == ("answered", " aa", 3)
    numbers = summarize(store)
    assert (numbers["share_lost"], numbers["share_answered"]) == (0.0, 0.6)


# You


def test_somebody_at_the_terminal_has_one_dialogue_at_a_time(cast: Any, tmp_path: Path) -> None:
    heard: list[str] = []
    user = ConsoleUser(ask=lambda prompt: "Because.", tell=heard.append)
    context = cast.context(cast.slow_engine(cast.engine("Why?", "How?", "I WANT TO ANSWER: aa")), AGENT, user)
    store = TrajectoryStore(tmp_path)
    rollout_scored(cast.attempts(3, 1), context, store, seed=1, policy_name="base", batch=8, shard=4)
    lines = [line.strip() for line in heard if line.startswith(("\ntask", "agent>"))]
    expected = [
        [f"task train-{number:05d}: you asked for\nI want function number {number}.", "agent> Why?", "agent> How?"]
        for number in range(3)
    ]
    assert lines == [line for dialogue in expected for line in dialogue]
    assert context.engine.most == 1


AT_THE_TERMINAL = """
import signal
import sys
from sweetrl.colbench.users import ConsoleUser
from sweetrl.backend import Backend
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.driver import advance_each
from sweetrl.config.settings import AgentSettings, ServerSettings
from sweetrl.types import Task

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
domain = Backend()
engine = OpenAIEngine(ServerSettings(urls=sys.argv[1], model="a-model"))
with domain.open() as tools:
    context = RolloutContext(domain, engine, None, ConsoleUser(), domain.scorer(tools), AgentSettings())
    dialogues = iter([context.open(Task("t-0", "I want a function.", "def f(): ..."), 0, 0)])
    try:
        advance_each(dialogues, engine, context.simulator, context.sampling(), lambda dialogue: print(dialogue.done), 1)
    except KeyboardInterrupt:
        engine.close()
        sys.exit(130)
"""


def test_ctrl_c_ends_a_dialogue_with_you(fake_server: Any) -> None:
    """Not only after one more line is typed."""
    terminal, inside = pty.openpty()
    with fake_server() as server:
        words = [sys.executable, "-c", AT_THE_TERMINAL, server.url]
        process = subprocess.Popen(words, stdin=inside, stdout=inside, stderr=inside)
        seen = b""
        while b"you> " not in seen:
            seen += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    os.close(terminal)
    os.close(inside)
