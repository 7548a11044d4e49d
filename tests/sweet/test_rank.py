from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.backend.suite import generate
from sweetrl.backend.suite.agents import read_request
from sweetrl.backend.suite.details import BY_NAME, KINDS
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.colbench.domain import Domain
from sweetrl.config.settings import CriticSettings, PolicySettings, RankSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import judged_metrics, ranking_metrics
from sweetrl.frontend import Frontend
from sweetrl.lm.data import encode
from sweetrl.lm.passes import model_layout
from sweetrl.protocols import Critic
from sweetrl.sweet import preferences as files
from sweetrl.sweet import rank
from sweetrl.sweet.candidates import sample_candidates
from sweetrl.sweet.critic import LogRatioCritic
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import (
    ANSWER_MARKER,
    Candidate,
    Completion,
    Message,
    Preference,
    Prompt,
    RankedState,
    Sampling,
    Trajectory,
    Usage,
)

SYSTEM = "You help a user."
BACKEND, FRONTEND = Backend(), Frontend()
TEXTS = ["Is there a maximum?", "What is the rate per hour?", f"{ANSWER_MARKER}\n```python\ndef price(hours):\n```"]

candidate = st.builds(
    lambda number, count, advantage: Candidate(
        (number,), ("", ANSWER_MARKER, "<html>")[number % 3] + str(number // 3), count, advantage / 4
    ),
    st.integers(0, 11),
    st.integers(1, 5),
    st.integers(-8, 8),
)
candidates = st.lists(candidate, max_size=8, unique_by=lambda reply: reply.token_ids)
settings = st.builds(
    RankSettings,
    pairs=st.integers(1, 4),
    margin=st.sampled_from([0.0, 0.5]),
    selection=st.sampled_from(["halves", "extremes"]),
    distinct=st.booleans(),
    reply_types=st.sampled_from(["any", "same", "no_questions"]),
)


@given(candidates, st.sampled_from([BACKEND, FRONTEND]), settings, st.integers(0, 9))
def test_chosen_pairs_obey_the_settings(drawn: list[Candidate], domain: Domain, rules: RankSettings, seed: int) -> None:
    pairs = rank.choose_pairs(drawn, domain, rules, random.Random(seed))
    assert len(pairs) <= rules.pairs
    for good, bad in pairs:
        assert good.text != bad.text
        assert good.advantage > bad.advantage
        assert good.advantage - bad.advantage >= rules.margin
        types = domain.reply_type(good.text), domain.reply_type(bad.text)
        assert rules.reply_types != "same" or types[0] == types[1]
        assert rules.reply_types != "no_questions" or "question" not in types
    if rules.reply_types == "any" and rules.distinct and drawn:
        ordered = sorted((reply.advantage for reply in drawn), reverse=True)
        half = len(drawn) // 2
        for good, bad in pairs:
            assert good.advantage >= ordered[max(half - 1, 0)] and bad.advantage <= ordered[-half]
            if rules.selection == "extremes":
                assert (good.advantage, bad.advantage) == (ordered[0], ordered[-1])
        assert len(set(pairs)) == len(pairs)
    assert pairs == rank.choose_pairs(drawn, domain, rules, random.Random(seed))


def test_mean_centered_advantages_compare_questions_with_answers() -> None:
    def state(turn: int, *replies: tuple[str, int, float]) -> RankedState:
        many = tuple(Candidate((place,), text, count, value) for place, (text, count, value) in enumerate(replies))
        return RankedState("t", 0, turn, (1,), many)

    answer = f"{ANSWER_MARKER} x"
    states = [
        state(0, ("needed", 3, 0.1), ("other", 1, -0.3), (answer, 4, -0.9)),
        state(1, ("needed", 4, -0.1), (answer, 2, -0.3), (answer + "y", 2, -0.5)),
    ]
    # Questions: (0.3 - 0.3 - 0.4) / 8 = -0.05; answers: (-3.6 - 0.6 - 1.0) / 8 = -0.65.
    first, second = rank.centered(states, BACKEND, "mean_centered")
    assert [reply.advantage for reply in first.candidates] == pytest.approx([0.15, -0.25, -0.25])
    assert [reply.advantage for reply in second.candidates] == pytest.approx([-0.05, 0.35, 0.15])
    # Of the samples: questions -0.3, -0.1 (four), 0.1 (three); answers -0.9 (four), -0.5 (two), -0.3 (two).
    first, second = rank.centered(states, BACKEND, "median_centered")
    assert [reply.advantage for reply in first.candidates] == pytest.approx([0.2, -0.2, 0.0])
    assert [reply.advantage for reply in second.candidates] == pytest.approx([0.0, 0.6, 0.4])
    rules = RankSettings(pairs=1, selection="extremes", reply_types="mean_centered")
    ask, answered = rank.choose_preferences(states, BACKEND, rules, 0)
    assert (ask.chosen_ids, answered.chosen_ids) == ((0,), (1,))
    assert answered.chosen_advantage == pytest.approx(0.35)
    assert answered.rejected_ids == (0,)
    rules = RankSettings(reply_types="any")
    assert {pair.chosen_ids for pair in rank.choose_preferences(states, BACKEND, rules, 0)} == {(0,)}


def test_repeated_replies_are_drawn_more_often_unless_distinct() -> None:
    candidates = [Candidate((1,), "a", 7, 1.0), Candidate((2,), "b", 1, 0.5), Candidate((3,), "c", 8, 0.0)]
    rules = RankSettings(pairs=1, distinct=False)
    drawn = Counter(rank.choose_pairs(candidates, BACKEND, rules, random.Random(n))[0][0].text for n in range(200))
    assert drawn["a"] > 150 and drawn["b"] > 5
    rules = RankSettings(pairs=64, distinct=False)
    assert len(rank.choose_pairs(candidates, BACKEND, rules, random.Random(0))) == 64


class FakeEngine:
    """Draws from TEXTS by the prompt's seed; remembers what it saw."""

    name = "fake"

    def __init__(self, chat: ChatFormat):
        self.chat, self.seen = chat, list[Prompt]()

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        self.seen += prompts
        result = []
        for prompt in prompts:
            chance = random.Random(prompt.seed)
            texts = [chance.choice(TEXTS) for _ in range(sampling.n)]
            result.append([Completion(self.chat.reply(text), (), text, "stop") for text in texts])
        return result

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def make_critic(
    tiny_model: Path, chat: ChatFormat, write_adapter: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Critic]:
    """Makes critics that see c or not, with one adapter that differs from its start."""
    from sweetrl.config.settings import ModelSettings
    from sweetrl.lm.adapters import load_adapter, load_base

    base, _ = load_base(ModelSettings(base=str(tiny_model), device="cpu"))
    model = load_adapter(base, write_adapter(tiny_model, tmp_path_factory.mktemp("critic"), 0.1))

    def make(privileged: bool = True) -> Critic:
        view = CriticSettings(privileged=privileged)
        return LogRatioCritic(model, BACKEND, chat, SYSTEM, view, model_layout(model, "trees"))

    return make


def rank_with(critic: Critic, dialogues: list[Trajectory], engine: FakeEngine, chat: ChatFormat) -> list[RankedState]:
    rows = [(dialogue, encode(dialogue, chat, SYSTEM)) for dialogue in dialogues]
    return rank.rank_sampled(rows, sample_candidates(rows, engine, Sampling(64, n=16), seed=5), critic.rate)


@pytest.fixture(scope="module")
def ranked(
    make_critic: Callable[..., Critic], chat: ChatFormat, trajectories: list[Trajectory]
) -> tuple[list[RankedState], FakeEngine]:
    engine = FakeEngine(chat)
    states = rank_with(make_critic(), trajectories[:8], engine, chat)
    return states, engine


def test_every_turn_of_every_dialogue_is_a_state(
    ranked: tuple[list[RankedState], FakeEngine], trajectories: list[Trajectory], chat: ChatFormat
) -> None:
    states, engine = ranked
    expected = [
        (talk.task.id, talk.attempt, turn, row.token_ids[:start])
        for talk in trajectories[:8]
        for row in [encode(talk, chat, SYSTEM)]
        for turn, (start, _) in enumerate(row.spans)
    ]
    assert [(state.task_id, state.attempt, state.turn, state.prompt_ids) for state in states] == expected
    assert [prompt.token_ids for prompt in engine.seen] == [prompt_ids for *_, prompt_ids in expected]
    assert len({prompt.seed for prompt in engine.seen}) == len(states)
    for state in states:
        assert sum(reply.count for reply in state.candidates) == 16
        assert len({reply.token_ids for reply in state.candidates}) == len(state.candidates) <= 3
        assert len({reply.advantage for reply in state.candidates}) == len(state.candidates)


def test_c_never_reaches_what_the_policy_learns_from(
    ranked: tuple[list[RankedState], FakeEngine], trajectories: list[Trajectory], chat: ChatFormat, tokenizer: Any
) -> None:
    states, _ = ranked
    preferences = list(rank.choose_preferences(states, BACKEND, RankSettings(), seed=5))
    replay = list(rank.find_replay(trajectories, chat, SYSTEM))
    data = files.preference_rows(preferences, replay, PolicySettings(sft_replay=1.0, sft_replay_turns="all"))
    texts = [tokenizer.decode(row.token_ids) for row in data.rows]
    references = {dialogue.task.ground_truth for dialogue in trajectories}
    assert not any(reference in text for text in texts for reference in references)
    # A row is the actor's own prompt and one reply, and only the reply is learnt from.
    for preference, (chosen, rejected) in zip(preferences, data.pairs, strict=True):
        for index, reply in ((chosen, preference.chosen_ids), (rejected, preference.rejected_ids)):
            row = data.rows[index]
            assert row.token_ids == preference.prompt_ids + reply
            assert row.spans == ((len(preference.prompt_ids), len(row.token_ids)),)


def test_the_critic_does_see_c(
    make_critic: Callable[..., Critic],
    chat: ChatFormat,
    trajectories: list[Trajectory],
    ranked: tuple[list[RankedState], FakeEngine],
) -> None:
    critic = make_critic(privileged=False)
    blind = rank_with(critic, trajectories[:1], FakeEngine(chat), chat)
    seeing = ranked[0][: len(blind)]
    assert [state.prompt_ids for state in blind] == [state.prompt_ids for state in seeing]
    assert all(a.candidates != b.candidates for a, b in zip(blind, seeing, strict=True))


def test_ranking_again_gives_the_same_whatever_the_block(
    make_critic: Callable[..., Critic],
    chat: ChatFormat,
    trajectories: list[Trajectory],
    ranked: tuple[list[RankedState], FakeEngine],
) -> None:
    critic, again = make_critic(), []
    for first in range(0, 8, 3):
        block = trajectories[first : min(first + 3, 8)]
        again += rank_with(critic, block, FakeEngine(chat), chat)
    assert again == ranked[0]


def test_replies_that_the_critic_has_no_room_to_read_are_left_out(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat
) -> None:
    """c stands before them: the actor's context holds more of a dialogue than the critic's."""
    from sweetrl.methods.critics import RandomCritic
    from sweetrl.sweet.data import critic_row

    dialogue = make_trajectory(0, 0)
    row = encode(dialogue, chat, SYSTEM)
    reply = row.token_ids[slice(*row.spans[-1])]
    limit = len(critic_row(dialogue, BACKEND, chat, SYSTEM, CriticSettings()).token_ids) + 1
    longer = tuple(Candidate((*reply, *range(3, 3 + more)), "x", 1) for more in range(4))
    sampled = [[longer] * len(row.spans)]
    for privileged, expected in ((True, 2), (False, 4)):
        room = limit + len(row.token_ids) - rank.tokens_read(dialogue, BACKEND, chat, SYSTEM, privileged)
        states = rank.rank_sampled([(dialogue, row)], sampled, RandomCritic(0).rate, lambda *_, room=room: room)
        assert len(states) == len(row.spans) and len(states[-1].candidates) == expected
        assert [reply.token_ids for reply in states[-1].candidates] == [reply.token_ids for reply in longer[:expected]]
    assert len(rank.rank_sampled([(dialogue, row)], sampled, RandomCritic(0).rate)[-1].candidates) == 4


def test_a_table_that_is_missing_or_of_something_else_is_one_sentence(
    trajectories: list[Trajectory], chat: ChatFormat, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="run the stage `rank` first"):
        Table(tmp_path / "no.parquet", Preference)
    write_table(tmp_path / files.SFT_REPLAY, files.Replay, list(rank.find_replay(trajectories, chat, SYSTEM)))
    with pytest.raises(UserError, match="column `turn` is missing"):
        Table(tmp_path / files.SFT_REPLAY, Preference)


def test_replay_is_final_replies_or_whole_dialogues(trajectories: list[Trajectory], chat: ChatFormat) -> None:
    replay = list(rank.find_replay(trajectories, chat, SYSTEM))
    final = files.preference_rows([], replay, PolicySettings(sft_replay=0.5))
    all_turns = files.preference_rows([], replay, PolicySettings(sft_replay=0.5, sft_replay_turns="all"))
    assert len(final.replay) == len(replay)
    assert all(
        final.rows[index].spans == replay_row.row.spans[-1:]
        for index, replay_row in zip(final.replay, replay, strict=True)
    )
    assert [all_turns.rows[index] for index in all_turns.replay] == [replay_row.row for replay_row in replay]
    assert files.preference_rows([], replay, PolicySettings()).replay == ()


def test_dialogues_are_drawn_by_seed_and_never_lost_ones(make_trajectory: Callable[..., Trajectory]) -> None:
    pool = [make_trajectory(n, 0, outcome="lost" if n % 3 == 0 else "answered") for n in range(30)]
    picked = rank.choose_dialogues(pool, 0.25, seed=1)
    assert len(picked) == 5 and not any(dialogue.outcome == "lost" for dialogue in picked)
    assert picked == rank.choose_dialogues(pool, 0.25, seed=1) != rank.choose_dialogues(pool, 0.25, seed=2)
    assert picked == sorted(picked, key=lambda dialogue: dialogue.task.id)


def test_metrics_say_whether_the_critic_knows_good_from_bad() -> None:
    task = next(iter(generate("train", 1, 3, 3)))
    facts, request = read_facts(task.hidden_information), read_request(task.problem_description)
    needed = BY_NAME[next(iter(facts))].questions
    irrelevant = BY_NAME[next(kind.name for kind in KINDS if kind.name not in request.domain.relevant)].questions
    messages = (Message("user", task.problem_description), Message("assistant", needed[0]))
    dialogue = Trajectory(task=task, attempt=0, messages=messages, answer=None, outcome="max_turns_reached", reward=0.0)

    def judged(advantages: tuple[float, float, float, float]) -> dict[str, float]:
        texts = (needed[0], needed[1], irrelevant[0], irrelevant[1])
        candidates = tuple(
            Candidate((n,), text, n + 1, value) for n, (text, value) in enumerate(zip(texts, advantages, strict=True))
        )
        return judged_metrics([RankedState(task.id, 0, 0, (1,), candidates)], [dialogue], BACKEND)

    metrics = judged((0.2, 0.1, 0.1, -0.4))
    assert metrics["ranked/needed_over_irrelevant"] == 3.5 / 4  # a tie is half a win
    assert metrics["judged/needed/share"] == 0.3 and metrics["judged/irrelevant/share"] == 0.7
    assert metrics["judged/needed/advantage"] == pytest.approx((0.2 + 2 * 0.1) / 3)
    assert judged((-1.0, -1.0, 0.0, 0.0))["ranked/needed_over_irrelevant"] == 0.0


def test_pages_are_compared_with_pages() -> None:
    texts = ("Blue?", "How?", "<html>1</html>", "<html>2</html>", "I WANT TO ANSWER:<html>1</html>")
    candidates = [Candidate((n,), text, 1, 0.1 * n) for n, text in enumerate(texts)]
    assert [FRONTEND.reply_type(text) for text in texts] == ["question", "question", "page", "page", "answer"]
    pairs = rank.choose_pairs(candidates, FRONTEND, RankSettings(reply_types="same", pairs=9), random.Random(0))
    assert {(good.text, bad.text) for good, bad in pairs} == {("How?", "Blue?"), ("<html>2</html>", "<html>1</html>")}
    states = [RankedState("t", 0, 0, (1,), tuple(candidates))]
    (state,) = rank.centered(states, FRONTEND, "mean_centered")
    assert [round(reply.advantage, 3) for reply in state.candidates] == [-0.05, 0.05, -0.05, 0.05, 0.0]
    preferences = list(rank.choose_preferences(states, FRONTEND, RankSettings(reply_types="no_questions", pairs=9), 0))
    assert {(pair.chosen_ids, pair.rejected_ids) for pair in preferences} == {((4,), (2,))}, "no question is in a pair"
    metrics = ranking_metrics(states, preferences, FRONTEND)
    assert metrics["pairs/answer_over_page"] == metrics["pairs"] == 1
    assert metrics["advantage/page"] == pytest.approx(0.25) and metrics["advantage/question"] == pytest.approx(0.05)
