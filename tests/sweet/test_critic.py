"""Critics that are not trained: controls and the judge; and the way a trained head is saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.config.settings import JudgeSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.methods.critics import JudgeCritic, RandomCritic, first_wins, rivals
from sweetrl.types import Completion, Prompt, Reply, Sampling, Trajectory, Usage


def replies(*texts: str) -> list[Reply]:
    return [Reply((index,), text) for index, text in enumerate(texts)]


def test_the_oracle_agrees_with_every_contrast() -> None:
    from sweetrl.backend.suite.judge import WORTH

    assert all(WORTH[better] > WORTH[worse] for better, worse in Backend.contrasts)  # type: ignore[index]


def test_random_numbers_depend_on_seed_state_and_reply_only(trajectories: list[Trajectory]) -> None:
    some = replies("a", "b", "c")
    ((first, second),) = RandomCritic(1).rate([(trajectories[0], [some, some])])
    ((alone,),) = RandomCritic(1).rate([(trajectories[0], [some[:1]])])
    ((other, _),) = RandomCritic(2).rate([(trajectories[0], [some, some])])
    assert alone == first[:1] and len({*first, *second, *other}) == 9
    assert all(0.0 <= value < 1.0 for value in first)


class FakeJudge:
    """Prefers the longer reply, or what stands first, or says nothing."""

    name = "fake"

    def __init__(self, chat: ChatFormat, habit: str):
        self.tokenizer, self.habit, self.texts = chat.tokenizer, habit, []  # type: ignore[var-annotated]

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        assert sampling.temperature == 0.0 and sampling.n == 1
        completions = []
        for prompt in prompts:
            text = self.tokenizer.decode(prompt.token_ids)
            self.texts.append(text)
            first, second = text.split("Reply A:")[1].split("Reply B:")
            second = second.split("Which reply")[0]
            longer = "A" if len(first.strip()) > len(second.strip()) else "B"
            verdict = {"longer": f"A is short or B is. {longer}", "first": "A", "silent": "I cannot say."}[self.habit]
            completions.append([Completion((1,), (0.0,), verdict, "stop")])
        return completions

    def session(self) -> Any:
        return self

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("habit", ["longer", "first", "silent"])
def test_the_judge_ranks_by_won_comparisons(chat: ChatFormat, trajectories: list[Trajectory], habit: str) -> None:
    engine = FakeJudge(chat, habit)
    critic = JudgeCritic(Backend(), engine, chat, JudgeSettings(comparisons=8), seed=3)
    some = replies("x" * 9, "x" * 2, "x" * 25, "x" * 14)
    ((values, none),) = critic.rate([(trajectories[0], [some, []])])
    assert none == [] and len(engine.texts) == 4 * 3, "every pair in both orders"
    if habit == "longer":
        assert values == pytest.approx([1 / 3, 0.0, 1.0, 2 / 3])
    else:
        assert values == [0.5] * 4, "a liking for the first place cancels"
    assert all(trajectories[0].task.ground_truth.split()[-1] in text for text in engine.texts)


def test_a_judge_without_privilege_does_not_see_the_reference(chat: ChatFormat, trajectories: list[Trajectory]) -> None:
    engine = FakeJudge(chat, "longer")
    JudgeCritic(Backend(), engine, chat, JudgeSettings(), 3, privileged=False).rate(
        [(trajectories[0], [replies("a", "b")])]
    )
    assert engine.texts and not any("round(hours" in text for text in engine.texts)


@given(st.integers(0, 12), st.integers(1, 20), st.integers(0, 99))
def test_every_reply_meets_equally_many_rivals(count: int, comparisons: int, seed: int) -> None:
    pairs = rivals(count, comparisons, seed)
    assert len(pairs) == len(set(pairs)) and all(first < second for first, second in pairs)
    met = [sum(number in pair for pair in pairs) for number in range(count)]
    assert len(set(met)) <= 1
    if count > 1:
        assert min(comparisons, count - 1) <= met[0] <= max(comparisons + 1, 1)


@pytest.mark.parametrize(
    ("text", "share"), [("B", 0.0), ("A is good, B bad.\nA", 1.0), ("neither", 0.5), ("", 0.5), ("**B**.", 0.0)]
)
def test_verdicts_are_read_from_their_end(text: str, share: float) -> None:
    assert first_wins(text) == share


def test_replies_without_ids_have_their_places_too(
    chat: ChatFormat, make_trajectory: Callable[..., Trajectory]
) -> None:
    """A dialogue that was built of messages: without them its turns would have no advantages."""
    from sweetrl.sweet.critic import own_replies

    sampled, imported = make_trajectory(3, 1), make_trajectory(3, 1, sampled=False)
    assert sampled.turns and not imported.turns
    texts = [message.content for message in imported.messages if message.role == "assistant"]
    assert [[reply.text for reply in turn] for turn in own_replies(imported, chat)] == [[text] for text in texts]
    final = Reply(chat.reply(texts[-1]), texts[-1])
    assert own_replies(imported, chat)[-1] == own_replies(sampled, chat)[-1] == [final]
