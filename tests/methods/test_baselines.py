"""Imitation of answered questions: which turns of a dialogue are learnt, and what stands before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sweetrl.api.learning import training_job
from sweetrl.backend.domain import Backend
from sweetrl.backend.suite.users import NOTHING, REFUSAL, UNKNOWN
from sweetrl.colbench import described
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import encode
from sweetrl.methods.base import Inputs, find_method
from sweetrl.methods.baselines import AnsweredTurns
from sweetrl.types import Message, Task, Trajectory


def dialogue(*answers: str, reward: float = 1.0) -> Trajectory:
    messages = [Message("user", "A price?")]
    for number, answer in enumerate(answers):
        messages += [Message("assistant", f"Question {number}?"), Message("user", answer)]
    messages.append(Message("assistant", "I WANT TO ANSWER:\n0"))
    return Trajectory(Task("t", "A price?", "x"), 0, tuple(messages), reward=reward)


@pytest.mark.parametrize("words", [*NOTHING, *UNKNOWN, *described.UNKNOWN, REFUSAL, "None."])
def test_a_refused_question_is_not_imitated(words: str) -> None:
    assert AnsweredTurns().imitated(dialogue("The rate is 7.", words, "Nobody pays before noon.")) == [0, 2, 3]


def test_the_final_reply_is_imitated_where_it_succeeded() -> None:
    assert AnsweredTurns().imitated(dialogue("It is 7.", reward=0.5)) == [0]
    assert AnsweredTurns().imitated(dialogue("It is 7.", reward=0.5), least=0.5) == [0, 1]
    assert AnsweredTurns().imitated(dialogue("No.", reward=0.0)) == []


def test_what_is_learnt_are_these_replies_as_they_were_sampled_behind_all_that_stood_before(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat, tmp_path: Path
) -> None:
    """A refused question is read, and not learnt; a lost dialogue and one without such a turn are left out."""
    settings, method = parse_settings({}), find_method("answered-turns")
    attempts = [make_trajectory(task, attempt, float(attempt == 0)) for task in range(9) for attempt in range(3)]
    attempts.append(replace(attempts[0], attempt=9, outcome="lost"))

    def data(dialogues: list[Trajectory]) -> list[list[tuple[int, ...]]]:
        job = training_job(method, settings, Backend(), Inputs(dialogues), tmp_path)
        job.__dict__["chat"] = chat
        rows = method.data(job).rows
        return [
            [row.prompt(turn) + row.token_ids[slice(*row.spans[turn])] for turn in range(len(row.spans))]
            for row in rows
        ]

    system = Backend().system_prompt(settings.agent.prompt)
    expected = []
    for each in attempts[:-1]:
        row, turns = encode(each, chat, system), AnsweredTurns().imitated(each)
        if turns:
            expected.append([row.prompt(turn) + row.token_ids[slice(*row.spans[turn])] for turn in turns])
    assert data(attempts) == expected
    assert data([dialogue("No.", reward=0.0), *attempts]) == expected
    with pytest.raises(UserError, match="the user answered no question"):
        data([attempts[-1]])
