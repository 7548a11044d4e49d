"""A small project with dialogues of every kind, made without a model: two policies, a collection, and its ranking."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.details import BY_NAME
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.io import write_json
from sweetrl.paths import EVALUATION
from sweetrl.sweet.preferences import CANDIDATES, PREFERENCES, TOKEN_RATIOS
from sweetrl.sweet.tables import write_table
from sweetrl.types import (
    AgentTurn,
    Candidate,
    Message,
    Preference,
    RankedState,
    ReplyRatios,
    Task,
    TestResult,
    TokenRatios,
    Trajectory,
)

TESTS = list(islice(generate("test", 24, 7, 2), 24))
TRAINING = list(islice(generate("train", 8, 7, 2), 8))
EXPLAINED = 3  # dialogues whose token log-ratios are stored
# What somebody may put into a dialogue: markup, a script's end, letters that turn or hide, control characters.
HOSTILE = (
    '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script></script>'
    "\u202egnp.exe\u2066 \x1b[31mred\x07 \u2028 <!-- javascript:alert(1) ${window.pwned=1} {{7*7}} \U0001f600"
)


def ids(text: str) -> tuple[int, ...]:
    """Ids that stand for a text."""
    return tuple(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:6])


def answer(program: str) -> str:
    return f"I WANT TO ANSWER:\n```python\n{program}\n```"


def dialogue(task: Task, kinds: Sequence[str], program: str, passed: int, policy: str, attempt: int = 0) -> Trajectory:
    """A dialogue in which the agent asks about kinds of detail (or sends other text as it is), then answers."""
    user = ScriptedSimulator()
    messages = [Message("user", task.problem_description)]
    for kind in kinds:
        messages.append(Message("assistant", BY_NAME[kind].questions[0] if kind in BY_NAME else kind))
        messages.append(Message("user", user.reply(task, messages, 0)))
    messages.append(Message("assistant", answer(program)))
    turns = tuple(
        AgentTurn(index, message.content, ids(message.content), (-0.5,) * 6, "stop")
        for index, message in enumerate(messages)
        if message.role == "assistant"
    )
    tests = tuple(
        TestResult(name, True, "passed") if number < passed else TestResult(name, False, "wrong", "returned 1")
        for number, (name, _) in enumerate(task.test_cases)
    )
    return Trajectory(
        task,
        attempt,
        tuple(messages),
        turns,
        answer(program).partition(":\n")[2],
        passed / len(tests),
        tests,
        seed=2**62 + 1,
        policy=policy,
        simulator="scripted",
    )


def evaluated(number: int, task: Task, policy: str) -> Trajectory:
    """`trained` asks for all details and fails every sixth task; `base` asks for one and solves every fourth."""
    facts, count = read_facts(task.hidden_information), len(task.test_cases)
    kinds = list(facts)
    if policy == "trained":
        solved = number % 6 != 5
        questions = [*kinds, kinds[0]] if number % 4 == 3 else kinds
        if number % 5 == 2:
            questions = [*[kind for kind in BY_NAME if kind not in facts][:3], *questions]
        program = task.ground_truth
        for values in () if solved else facts.values():
            for value in values:
                program = program.replace(f"= {value}\n", f"= {value}1\n")
        return dialogue(task, questions, program, count if solved else 4, policy)
    solved = number % 4 == 0
    program = task.ground_truth if solved else f"{task.ground_truth.splitlines()[0]}\n    return 1"
    return dialogue(task, kinds if solved else kinds[:1], program, count if solved else number % 3, policy)


def ranked(spoken: Trajectory, number: int) -> tuple[list[RankedState], list[Preference]]:
    """Candidates at every turn: the reply itself and two others; at one state the needed question comes last."""
    states, pairs = [], []
    kinds = list(read_facts(spoken.task.hidden_information))
    for turn, reply in enumerate(spoken.turns):
        worst = -0.4 if number == 2 and turn == 0 else 0.2
        texts = [(reply.raw, worst), ("Zero: is that a number at all?", 0.1 - turn / 10), (answer("y = 2"), -0.3)]
        if kinds and turn == 0:
            texts.append((BY_NAME[kinds[-1]].questions[1], worst - 0.01))
        candidates = tuple(
            Candidate(ids(text), text, 1 + place, value) for place, (text, value) in enumerate(dict(texts).items())
        )
        key = (spoken.task.id, spoken.attempt, turn)
        states.append(RankedState(*key, (1, 2, 3), candidates))
        best, least = candidates[0], candidates[2]
        pairs.append(Preference(*key, (1, 2, 3), best.token_ids, least.token_ids, best.advantage, least.advantage))
    return states, pairs


def explained(state: RankedState) -> TokenRatios:
    """Six tokens of each candidate whose mean is its advantage; the first is hostile."""
    texts = (HOSTILE, *(f"token{place} " for place in range(1, 6)))
    steps = (0.25, -0.25, 0.5, -0.5, 0.0, 0.0)
    replies = tuple(ReplyRatios(texts, tuple(reply.advantage + step for step in steps)) for reply in state.candidates)
    return TokenRatios(state.task_id, state.attempt, state.turn, replies)


def make_project(root: Path) -> Path:
    """Write the project's folder."""
    for policy in ("base", "trained"):
        dialogues = [evaluated(number, task, policy) for number, task in enumerate(TESTS)]
        if policy == "trained":
            dialogues[3] = with_words(dialogues[3], HOSTILE)
        store = TrajectoryStore(root / "data/evaluation" / policy)
        store.write_shard(0, dialogues[:20])
        store.write_shard(1, dialogues[20:])
    collected = []
    for number, task in enumerate(TRAINING):
        kinds = list(read_facts(task.hidden_information))
        collected.append(dialogue(task, kinds, task.ground_truth, 10, "models/base"))
        collected.append(dialogue(task, kinds[:1], "x = 1", number, "models/base", 1))
    collected[-1] = replace(collected[-1], outcome="lost", reward=None, tests=(), error="the user could not reply")
    TrajectoryStore(root / "data/trajectories").write_shard(0, collected)
    both = [ranked(spoken, number) for number, spoken in enumerate(collected[:6])]
    write_table(root / "data/preferences" / CANDIDATES, RankedState, [state for states, _ in both for state in states])
    write_table(root / "data/preferences" / PREFERENCES, Preference, [pair for _, pairs in both for pair in pairs])
    sample = [explained(state) for states, _ in both[:EXPLAINED] for state in states]
    write_table(root / "data/preferences" / TOKEN_RATIOS, TokenRatios, sample)
    (root / "reports").mkdir()
    (root / "reports/report.html").write_text("<html><body><main>\n<h1>Report</h1></main></body></html>")
    worse = {"value": -0.19, "low": -0.2, "high": -0.18, "p_value": 0.001, "test": "a test"}
    write_json(root / EVALUATION, {"tasks": 24, "confidence": 0.95, "difference": {"reward": worse}})
    (root / "params.yaml").write_text("suite: backend\nagent: {max_turns: 7}\n")
    return root


def with_words(spoken: Trajectory, words: str) -> Trajectory:
    """The same dialogue with another first reply of the user, other raw words of the agent, and kept prompts."""
    messages = list(spoken.messages)
    messages[2] = Message("user", words)
    raw = f"<think>{words}</think>{words} OUTPUT: {spoken.messages[1].content}"
    turns = (
        replace(spoken.turns[0], raw=raw, prompt_ids=(7, 8)),
        replace(spoken.turns[1], prompt_kept=2, prompt_ids=(9, 10, 11)),
        *spoken.turns[2:],
    )
    return replace(spoken, messages=tuple(messages), turns=turns)
