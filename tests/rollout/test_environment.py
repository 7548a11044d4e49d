"""What dialogues need around them: users and rewards of one's own, found by name and made as the settings say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sweetrl import plugins
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import parse_settings
from sweetrl.engines.policy import Agent
from sweetrl.errors import UserError
from sweetrl.rollout.context import open_environment
from sweetrl.rollout.run import rollout_scored
from sweetrl.seeds import dialogue_seed, simulator_seed
from sweetrl.types import Trajectory

OWN = '''
import asyncio
from contextlib import contextmanager

import sweetrl
from sweetrl.errors import SimulatorError, UserLeft
from sweetrl.types import TestResult


class Words(sweetrl.Domain):
    """The answer is right when it is the task's word; the scripted user and the scorer write down what they did."""

    prompt = "Find out the word."

    @contextmanager
    def open(self):
        log = []
        yield log
        log.append("closed")

    def scripted_user(self, tools):
        tools.append("user")
        return super().scripted_user(tools)

    def reply(self, task, messages, seed):
        return "Ask somebody else."

    def scorer(self, tools):
        tools.append("scorer")
        return Right()


class Right:
    def score(self, dialogues):
        right = [(dialogue.answer or "").strip() == dialogue.task.ground_truth for dialogue in dialogues]
        tests = [(TestResult("word", equal, "equal" if equal else "different"),) for equal in right]
        return [sweetrl.Score(float(equal), test, semantics="words") for equal, test in zip(right, tests)]


class Terse:
    def __init__(self, word="Seven", patience=9):
        self.word, self.patience = word, patience

    def reply(self, task, messages, seed):
        if task.id == "train-00003":
            raise SimulatorError("the user fell silent")
        if sum(message.role == "assistant" for message in messages) > self.patience:
            raise UserLeft
        return f"{self.word}, {seed % 1000}."


class Thoughtful(Terse):
    """Replies late: only ever awaited."""

    def reply(self, task, messages, seed):
        raise AssertionError("the loop awaits answers")

    async def answer(self, task, messages, seed):
        await asyncio.sleep(seed % 3 / 1000)
        return Terse.reply(self, task, messages, seed)


seen = []


def brief(task, dialogue):
    assert dialogue.task == task and dialogue.tests[0].passed == (dialogue.reward == 1.0)
    seen.append((task.id, dialogue.reward))
    return {"word": dialogue.reward, "brevity": 0.25 * (len(dialogue.turns) < 3)}


class Penalty:
    reward_range = (-1.0, 0.0)

    def __call__(self, task, dialogue):
        return -len(dialogue.turns) / 4


def silent(task, dialogue):
    return None
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module above as words.py in the project's folder, which is where we are."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "words.py").write_text(OWN)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # "" would find it, too
    plugins.find.cache_clear()
    yield
    sys.modules.pop("words", None)
    plugins.find.cache_clear()


def words_domain(**sections: Any) -> Domain:
    return load_domain(parse_settings({"suite": "words:Words", "agent": {"max_turns": 4}, **sections}))


def play(domain: Domain, cast: Any, engine: Any, folder: Path, tasks: int = 5) -> list[Trajectory]:
    with open_environment(domain) as environment:
        context = environment.context(Agent(engine, cast.chat))
        attempts = cast.attempts(tasks, 1)
        return list(
            rollout_scored(
                attempts, context, TrajectoryStore(folder), seed=5, policy_name="base", batch=4, shard=2, lost_share=0.5
            )
        )


def test_everything_is_open_as_long_as_it_lasts(own: None, cast: Any) -> None:
    domain = words_domain(simulator={"reply_characters": 7})
    with open_environment(domain) as environment:
        assert environment.tools == ["user", "scorer"]
        context = environment.context(Agent(cast.engine(), cast.chat))
        assert (context.domain, context.simulator, context.scorer) == (
            domain, environment.simulator, environment.scorer,
        )  # fmt: skip
        assert context.agent == domain.settings.agent and context.agent.max_turns == 4
        dialogue = context.open(cast.task(0), 0, 5)
        assert dialogue.texts[0] == ("system", "Find out the word.")
        dialogue.take(cast.engine("Why?").sample([dialogue.prompt()], context.sampling())[0][0])
        dialogue.ask()
        assert dialogue.environment.messages[-1].content == "Ask som"  # cut where the settings say
    assert environment.tools == ["user", "scorer", "closed"]


# Users of one's own


@pytest.mark.parametrize("kind", ["Terse", "Thoughtful"])
@pytest.mark.parametrize("loop", ["together", "each on its own"])
def test_a_user_of_ones_own_plays_in_both_loops(own: None, cast: Any, tmp_path: Path, kind: str, loop: str) -> None:
    """By path and options; at once, or awaited. The user's replies follow from the seeds, whatever the loop."""
    engine = cast.engine("Why?", "How?", "I WANT TO ANSWER: seven")
    simulator = {"kind": f"words:{kind}", "options": {"word": "Eight", "patience": 2}}
    speaks = engine if loop == "together" else cast.slow_engine(engine)
    dialogues = play(words_domain(simulator=simulator), cast, speaks, tmp_path / "out")
    assert {dialogue.simulator for dialogue in dialogues} == {kind}
    for dialogue in dialogues:
        replies = [message.content for message in dialogue.messages[1:] if message.role == "user"]
        seeds = [simulator_seed(dialogue_seed(5, dialogue.task.id, 0), turn) for turn in (1, 2)]
        assert replies == ([] if dialogue.error else [f"Eight, {seed % 1000}." for seed in seeds])
    assert [dialogue.outcome for dialogue in dialogues] == ["answered"] * 3 + ["lost", "answered"]
    assert dialogues[3].error == "the user fell silent"
    hasty = {"kind": f"words:{kind}", "options": {"patience": 1}}
    dialogues = play(words_domain(simulator=hasty), cast, speaks, tmp_path / "hasty")
    assert [dialogue.outcome for dialogue in dialogues] == ["user_left"] * 3 + ["lost", "user_left"]
    for dialogue in (*dialogues[:3], dialogues[4]):
        assert (dialogue.answer, dialogue.reward, dialogue.messages[2].content[:6]) == ("How?", 0.0, "Seven,")


# Rewards of one's own


def test_a_reward_of_ones_own_is_over_the_domains(own: None, cast: Any, tmp_path: Path) -> None:
    """It sees what the domain's scorer says, names its parts, and leaves success as it is."""
    domain = words_domain(reward={"function": "words:brief"}, simulator={"kind": "words:Terse"})
    right = "I WANT TO ANSWER: def f(x):\n    return x"
    numbers = {}
    for name, replies in {"short": ["Why?", right], "long": ["Why?", "How?", right], "wrong": ["No."] * 4}.items():
        *scored, lost = play(domain, cast, cast.engine(*replies), tmp_path / name, 4)
        assert (lost.outcome, lost.reward, lost.parts, lost.solved) == ("lost", None, {}, None)
        ((numbers[name]),) = {
            (trial.reward, tuple(sorted(trial.parts.items())), trial.solved, trial.success, trial.tests[0].passed)
            for trial in scored
        }
    assert numbers == {
        "short": (1.25, (("brevity", 0.25), ("word", 1.0)), True, True, True),
        "long": (1.0, (("brevity", 0.0), ("word", 1.0)), True, True, True),
        "wrong": (0.0, (("brevity", 0.0), ("word", 0.0)), False, False, False),
    }
    seen = sys.modules["words"].seen
    assert len(seen) == 9 and "train-00003" not in {name for name, _ in seen}  # a lost dialogue has no reward


def test_a_reward_of_ones_own_says_where_it_ends(own: None, cast: Any, tmp_path: Path) -> None:
    domain = words_domain(reward={"function": "words:Penalty"})
    (dialogue,) = play(domain, cast, cast.engine(*["Why?"] * 4), tmp_path / "four", 1)
    assert (dialogue.reward, dialogue.parts, dialogue.success) == (-1.0, {}, False)
    domain = words_domain(reward={"function": "words:Penalty"}, agent={"max_turns": 5})
    with pytest.raises(UserError, match=r"task train-00000: the reward words:Penalty returned -1.25, outside -1 to 0"):
        play(domain, cast, cast.engine(*["Why?"] * 5), tmp_path / "five", 1)


def test_what_is_no_reward_is_one_sentence(own: None, cast: Any, tmp_path: Path) -> None:
    domain = words_domain(reward={"function": "words:silent"})
    with pytest.raises(UserError, match="task train-00000: the reward words:silent returned None; it must return"):
        play(domain, cast, cast.engine("I WANT TO ANSWER: seven"), tmp_path / "out", 1)
