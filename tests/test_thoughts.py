"""What a model thinks is never said, never searched and never the answer: by any marks, on every side."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import sweetrl
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.files import parse_trajectory, trajectory_row
from sweetrl.colbench.logs import parse_log
from sweetrl.colbench.users import LlmSimulator
from sweetrl.config.settings import AgentSettings, ModelSettings, RankSettings, parse_settings
from sweetrl.engines.policy import Policy
from sweetrl.errors import SimulatorError, UserError
from sweetrl.evaluation.checks import turn_record
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.methods.critics import first_wins
from sweetrl.rollout import scored
from sweetrl.serve.chat_requests import ChatRequest
from sweetrl.serve.endpoint import _written
from sweetrl.serve.recorder import Recorder
from sweetrl.serve.source import Handed
from sweetrl.sweet.candidates import states_of
from sweetrl.sweet.rank import choose_pairs
from sweetrl.sweet.training import TrainingJob
from sweetrl.thoughts import MARKS, split_thoughts, thought_length
from sweetrl.tracking.chat_agent import AgentConfig, agent_config
from sweetrl.types import AgentTurn, Candidate, Completion, Sampling, Task, Trajectory
from sweetrl.viewer.dialogue import plain

OWN = ("<muse>", "</muse>")
MODEL = ModelSettings(thought_marks=" ".join(OWN))
DOMAIN = sweetrl.domain("backend", model={"thought_marks": MODEL.thought_marks})
TASK = Task("t", "Write f.", "def f(x):\n    return x * 7", (("test1", "f(1)"),))
SECRET = "return x * 7 I WANT TO ANSWER: 7 OUTPUT: A"
QUERY = "What is the rate?"
REPLIES = {
    "closed": "{0}" + SECRET + "{1}\n\n" + QUERY,
    "opened by the template": "\n" + SECRET + "{1}\n\n" + QUERY,
    "an empty one first": "{0}\n{1}{0}" + SECRET + "{1}" + QUERY,
    "afterwards": QUERY + "\n{0}" + SECRET + "{1}",
    "afterwards, broken off": QUERY + "\n{0}" + SECRET,
}


class Thinker:
    """A model that always gives the same reply."""

    name = "thinker"

    def __init__(self, text: str) -> None:
        self.text = text

    async def say(self, instruction: Any, seed: int) -> str:
        return self.text


class Pieces:
    """A tokenizer of bytes, but that the end of a mark is one token with the letter or the blank lines behind it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def encode(self, text: str) -> tuple[int, ...]:
        parts = re.findall(rb"[>\]]\n+|[>\]]\w|.", text.encode(), re.DOTALL)
        self.pieces += parts
        return tuple(range(len(self.pieces) - len(parts), len(self.pieces)))

    def decode(self, ids: list[int], **_: Any) -> str:
        return b"".join(self.pieces[index] for index in ids).decode("utf-8", "replace")


def dialogue(*raw: str, tokenizer: Pieces | None = None) -> Trajectory:
    environment = Environment(TASK, DOMAIN, None)  # type: ignore[arg-type]
    turns = []
    for reply in raw:
        if turns:
            environment.hear("Seven.")
        turns.append(AgentTurn(len(environment.messages), reply, tokenizer.encode(reply) if tokenizer else ()))
        environment.say(reply)
    return Trajectory(TASK, 0, environment.messages, tuple(turns), reward=0.0)


@pytest.mark.parametrize("marks", [*MARKS, OWN], ids=lambda marks: marks[0])
@pytest.mark.parametrize("kind", REPLIES)
def test_a_thought_is_said_on_no_side(marks: tuple[str, str], kind: str) -> None:
    raw = REPLIES[kind].format(*marks)
    thoughts, spoken = split_thoughts(raw, MODEL.marks)
    assert SECRET in thoughts and spoken == QUERY

    trajectory = dialogue(raw, raw)  # the agent's side
    assert [message.content for message in trajectory.messages] == ["Write f.", QUERY, "Seven.", QUERY]
    assert trajectory.turns[0].raw == raw and turn_record(trajectory, DOMAIN) is None
    assert DOMAIN.reply_type(raw) == "question"
    row = Row((1, 2, 3, 4), ((1, 2), (3, 4)))
    contexts = [prompt.messages for _, _, prompt in states_of([(trajectory, row)], "You are.", 0, MODEL.marks)]
    assert contexts[1][2:] == (("assistant", QUERY), ("user", "Seven."))
    same = [Candidate((place,), text, 1, place) for place, text in enumerate((raw, QUERY, raw.replace(SECRET, "hm")))]
    assert choose_pairs(same, DOMAIN, RankSettings(), Random(0)) == []
    turn = plain(trajectory, DOMAIN)["turns"][0]
    assert SECRET in turn["thoughts"] and turn["raw"] is None and turn["kind"] == "question"

    user = LlmSimulator(Thinker(raw), DOMAIN, leaks="refuse")  # type: ignore[arg-type]
    assert asyncio.run(user.answer(TASK, trajectory.messages[:2], 0)) == QUERY
    assert first_wins(raw.replace(QUERY, "The second: B."), MODEL.marks) == 0.0  # the judge's

    log = {"messages": [{"role": "user", "content": "Write f."}, {"role": "assistant", "content": raw}], "reward": 0.0}
    assert parse_log(log, "log", DOMAIN).messages == trajectory.messages[:2]
    official = trajectory_row(trajectory)
    official["dialogue_history"][1]["content"] = raw  # of a file whose maker showed them
    assert [parse_trajectory(official, "file", DOMAIN).messages[index].content for index in (1, 3)] == [QUERY, QUERY]


@pytest.mark.parametrize("marks", [*MARKS, OWN], ids=lambda marks: marks[0])
def test_thoughts_without_end_say_nothing(marks: tuple[str, str]) -> None:
    raw = marks[0] + SECRET
    trajectory = dialogue(raw)
    assert trajectory.messages[1].content == "" and not DOMAIN.answers(trajectory.messages[1].content)
    assert first_wins(raw, MODEL.marks) == 0.5
    for text, why in ((raw, "thoughts have no end"), (raw + marks[1], "said nothing$")):
        with pytest.raises(SimulatorError, match=why):
            asyncio.run(LlmSimulator(Thinker(text), DOMAIN).answer(TASK, trajectory.messages, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("marks", [MARKS[0], OWN], ids=lambda marks: marks[0])
def test_a_served_agent_tells_its_thoughts_apart_and_they_come_back(marks: tuple[str, str], tmp_path: Path) -> None:
    raw = REPLIES["closed"].format(*marks)
    config = AgentConfig("base", thought_marks=MODEL.thought_marks)
    user = {"role": "user", "content": "Write f."}
    request = ChatRequest((user,), Sampling(8), 0, False, False, 1, True)
    reply = Completion((1, 2), (), raw, "stop")
    written = _written(request, [reply], 3, Handed("agent", "1", tmp_path, "base", config))
    message = written["choices"][0]["message"]
    assert message["content"] == QUERY and message["reasoning_content"] == SECRET
    bare = _written(request, [Completion((1,), (), QUERY, "stop")], 3, Handed("agent", "1", tmp_path, "base", config))
    assert "reasoning_content" not in bare["choices"][0]["message"]

    recorder = Recorder(tmp_path / "kept")
    name = recorder.turn(request, [raw], "agent", config.split)
    shown = {"role": "assistant", "content": QUERY}
    follow = ChatRequest((user, shown, user), Sampling(8), 0, False, False, 2, True, name or "")
    assert name and recorder.turn(follow, [raw], "agent", config.split) == name, "what the client was shown is known"
    parsed = parse_log({"messages": recorder.open[name]["messages"], "reward": 1.0}, "log", DOMAIN)
    assert parsed.messages[1].content == QUERY
    assert parsed.turns[0].raw == f"{OWN[0]}\n{SECRET}\n{OWN[1]}\n\n{QUERY}", "with the marks of the model that learns"


@pytest.mark.parametrize(
    ("reply", "thoughts"),
    [
        ("What?", ""),
        ("<think>hm</think>\n\nWhat?", "<think>hm</think>\n\n"),
        ("hm</think>\n\n écru?", "hm</think>\n\n "),
        ("<think>h\u00e9</think>What?", "<think>h\u00e9</think"),  # `>W` is one token, with a letter that is said
        ("[THINK]a <think> b[/THINK]\nWhat?", "[THINK]a <think> b[/THINK]\n"),
        ("<think></think>\n\nWhat? <think>hm</think>", "<think></think>\n\n"),
        ("What? <think>hm</think>", ""),
        ("<think>hm", "<think>hm"),
    ],
)
def test_what_is_learnt_begins_with_what_is_said(reply: str, thoughts: str) -> None:
    tokenizer = Pieces()
    ids = tokenizer.encode(reply)
    length = thought_length(ids, tokenizer)
    assert tokenizer.decode(list(ids[:length])) == thoughts
    job: Any = SimpleNamespace(tokenizer=tokenizer, model=MODEL, learn_thoughts=False, settings=RankSettings())
    job.learnt = lambda rows: TrainingJob.learnt(job, rows)
    row = Row((*ids, *ids), ((0, len(ids)), (len(ids), 2 * len(ids))))
    (learnt,) = TrainingJob.learnt_data(job, PreferenceData([row], [(0, 0)])).rows
    kept = min(length, len(ids) - 1)
    assert learnt == Row(row.token_ids, ((kept, len(ids)), (len(ids) + kept, 2 * len(ids)))), "or its last token"
    job.learn_thoughts = True
    assert TrainingJob.learnt_data(job, data := PreferenceData([row], [(0, 0)])) is data


def test_tokens_of_thoughts_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Pieces()
    monkeypatch.setattr(scored, "load_tokenizer", lambda base: tokenizer)
    thoughtful, thoughtless = dialogue("<think>abc</think>What?", QUERY, tokenizer=tokenizer), dialogue(QUERY)
    count = scored.thought_counter(MODEL)
    assert (count(thoughtful), count(thoughtless), count(dialogue("<think>abc</think>What?"))) == (16, 0, 0)
    assert scored.summarize([thoughtful], count)[scored.THOUGHTS] == 8.0
    assert scored.THOUGHTS not in scored.summarize([thoughtless], count)


def test_thoughts_have_a_limit_of_their_own_beside_the_replys() -> None:
    agent = AgentSettings(max_new_tokens=20, max_thought_tokens=100, temperature=0.5)
    assert agent.sampling(3) == Sampling(120, 0.5, 1.0, 3)
    config = agent_config(ModelSettings(template_options={"enable_thinking": False}), agent, "You are.", Path())
    assert isinstance(hash(Policy(ModelSettings(template_options={"a": 1}))), int)
    assert config.max_new_tokens == 120 and config.template_options == {"enable_thinking": False}
    with pytest.raises(UserError, match=r"`model.thought_marks` = '<a>': .*give pairs"):
        parse_settings({"model": {"thought_marks": "<a>"}})
