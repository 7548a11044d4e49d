"""The loop of engine and environments: what the agent sees, what is recorded, and how dialogues end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import AgentSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.stream import Stream
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.lm.data import encode, rewrite
from sweetrl.rollout.driver import advance_each
from sweetrl.rollout.run import rollout
from sweetrl.seeds import dialogue_seed
from sweetrl.types import Message, Trajectory

AGENT = AgentSettings(max_turns=4, max_new_tokens=12)


def test_a_dialogue_until_its_answer(chat: ChatFormat, cast: Any) -> None:
    engine = cast.engine("Why?", "thought OUTPUT: How?", "I WANT TO ANSWER: aa", cut=[1])
    (dialogue,) = rollout([(cast.task(3), 2)], cast.context(engine, AGENT), seed=5, policy_name="base")
    assert [message.role for message in dialogue.messages] == ["user", "assistant"] * 3
    assert dialogue.messages[0] == Message("user", "I want function number 3.")
    assert dialogue.messages[3].content == " How?"
    assert dialogue.messages[4].content == "That is question 2."
    assert (dialogue.answer, dialogue.outcome, dialogue.error, dialogue.reward) == (" aa", "answered", "", None)
    assert (dialogue.attempt, dialogue.policy, dialogue.simulator) == (2, "base", "counting")
    assert dialogue.seed == dialogue_seed(5, dialogue.task.id, 2)
    assert [turn.message_index for turn in dialogue.turns] == [1, 3, 5]
    assert [turn.raw for turn in dialogue.turns] == ["Why?", "thought OUTPUT: How?", "I WANT TO ANSWER: aa"]
    assert [turn.finish_reason for turn in dialogue.turns] == ["stop", "length", "stop"]
    assert [turn.token_ids for turn in dialogue.turns] == [
        chat.reply("Why?"),
        chat.reply("thought OUTPUT: How?")[:-1],
        chat.reply("I WANT TO ANSWER: aa"),
    ]


def test_the_context_is_the_sampled_ids_and_what_came_between(chat: ChatFormat, cast: Any) -> None:
    engine = cast.engine("Why?", "How?", "I WANT TO ANSWER: aa", cut=[1])
    rollout([(cast.task(0), 0)], cast.context(engine, AGENT), seed=5)
    first, second, third = (prompts[0] for prompts in engine.batches)
    after_first = chat.reply("Why?") + chat.follow(True, "That is question 1.")
    after_second = chat.reply("How?")[:-1] + chat.follow(False, "That is question 2.")
    assert second.token_ids == first.token_ids + after_first
    assert third.token_ids == second.token_ids + after_second
    seeds = [prompt.seed for prompt in (first, second, third)]
    assert seeds == [dialogue_seed(5, "train-00000", 0, turn) for turn in range(3)]


STRIPPING = (
    "{{ '<|begin|>' }}{% for m in messages %}{% set words = m['content'] %}{% if m['role'] == 'assistant' %}"
    "{% set words = words.split('</think>')[-1].lstrip() %}{% endif %}{{ '<|' + m['role'] + '|>' + words + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.mark.parametrize(("template", "sequences"), [("", 1), (STRIPPING, 3)])
def test_what_the_engine_was_sent_is_what_is_learnt_from(
    tiny_model: Path, tmp_path: Path, cast: Any, template: str, sequences: int
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = template or tokenizer.chat_template
    chat = ChatFormat(tokenizer)
    engine = cast.engine("<think>hm</think>\n\nWhy?", "<think>hm</think>\n\nHow?", "I WANT TO ANSWER: aa", cut=[1])
    engine.chat = chat
    context = replace(cast.context(engine, AGENT), chat=chat)
    TrajectoryStore(tmp_path).write_shard(0, list(rollout([(cast.task(0), 0)], context, seed=5)))
    (dialogue,) = TrajectoryStore(tmp_path)
    row = encode(dialogue, chat, "another system prompt")
    assert [row.prompt(turn) for turn in range(3)] == [prompt.token_ids for (prompt,) in engine.batches]
    assert [row.token_ids[start:end] for start, end in row.spans] == [turn.token_ids for turn in dialogue.turns]
    assert len(row.starts) == sequences
    assert row == rewrite(dialogue, chat, context.domain.system_prompt(AGENT.prompt))
    assert sum(len(turn.prompt_ids) for turn in dialogue.turns) < 2 * row.longest


def test_lost_dialogues_name_the_cause_and_disturb_nobody(cast: Any) -> None:
    engine = cast.engine("Why?", "I WANT TO ANSWER: a")
    attempts = [(cast.task(number), 0) for number in range(3)]
    first, muted, third = rollout(attempts, cast.context(engine, AGENT, cast.user(mute=[1])))
    assert (muted.outcome, muted.answer, muted.error) == ("lost", None, "the user fell silent")
    assert [turn.raw for turn in muted.turns] == ["Why?"]
    assert first.outcome == third.outcome == "answered"
    engine = cast.engine("Why?")  # has nothing to say after that: no room in its context
    (dialogue,) = rollout(attempts[:1], cast.context(engine, AGENT))
    assert dialogue.outcome == "lost"
    assert "no room" in dialogue.error and dialogue.outgrown and not muted.outgrown
    assert dialogue.messages[-1].role == "user"


def test_progress_counts_every_dialogue_once(cast: Any) -> None:
    done: list[int] = []
    attempts = [(cast.task(number), 0) for number in range(7)]
    engine = cast.engine("Why?", "I WANT TO ANSWER: a")
    rollout(attempts, cast.context(engine, AGENT, cast.user(mute=[2])), batch=3, progress=done.append)
    assert sum(done) == 7
    assert [len(prompts) for prompts in engine.batches] == [3, 2, 3, 3, 1, 1]


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> TransformersEngine:
    return TransformersEngine(tiny_model, device="cpu", threads=1, rows=8)


def test_a_real_engine_repeats_itself_to_the_last_bit(
    tiny: TransformersEngine, cast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [(cast.task(number), attempt) for number in range(5) for attempt in range(2)]

    def run(selection: list[Any], batch: int = 16) -> list[Any]:
        return rollout(selection, cast.context(tiny, AGENT, chat=tiny.chat), seed=1, batch=batch)

    def assert_equal_up_to_rounding(first: Trajectory, second: Trajectory) -> None:
        assert first.messages == second.messages
        assert [turn.token_ids for turn in first.turns] == [turn.token_ids for turn in second.turns]
        for left, right in zip(first.turns, second.turns, strict=True):
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)

    together = run(attempts)
    assert together == run(attempts)
    assert len({dialogue.turns[0].token_ids for dialogue in together}) == len(together)  # attempts differ
    for pair in zip(together, run(attempts[:3], batch=2) + run(attempts[3:], batch=5), strict=True):
        assert_equal_up_to_rounding(*pair)
    # In slots, each dialogue on its own: the same.
    monkeypatch.setattr(tiny, "slotted", True)
    stream, singly = Stream(tiny), list[Any]()
    context = cast.context(stream, AGENT, chat=tiny.chat)
    dialogues = [context.open(task, attempt, 1) for task, attempt in attempts]
    advance_each(iter(dialogues), stream, context.simulator, context.sampling(), singly.append, 8)
    assert len(singly) == len(dialogues)
    for trajectory, dialogue in zip(together, dialogues, strict=True):
        assert_equal_up_to_rounding(trajectory, dialogue.close(""))
    other = rollout(attempts, cast.context(tiny, AGENT, chat=tiny.chat), seed=2)
    assert [dialogue.turns[0].token_ids for dialogue in other] != [dialogue.turns[0].token_ids for dialogue in together]
