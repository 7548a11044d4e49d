"""The Python API, as somebody without a pipeline uses it; docs/extending.md is run by tests/test_docs.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sweetrl
from sweetrl.methods.baselines import Rft
from sweetrl.types import TrajectoryPair

ROOT = Path(__file__).resolve().parents[2]
ADAPTED = sweetrl.Policy.load(ROOT / "models/base", adapter="sft")
REMOTE = sweetrl.Policy.server("http://localhost:1/v1", model="large")


@pytest.fixture(scope="module")
def env() -> sweetrl.Domain:
    return sweetrl.domain("backend", agent={"max_new_tokens": 160}, collect={"batch": 16})


@pytest.fixture(scope="module")
def policy() -> sweetrl.Policy:
    return sweetrl.Policy.load(ROOT / "models/base", threads=1)


@pytest.fixture(scope="module")
def dialogues(env: sweetrl.Domain, policy: sweetrl.Policy) -> list[sweetrl.Trajectory]:
    return list(sweetrl.collect(env, policy, tasks=6, attempts=4, seed=7))


def test_dialogues_are_a_function_of_the_arguments(
    env: sweetrl.Domain, policy: sweetrl.Policy, dialogues: list[sweetrl.Trajectory]
) -> None:
    task = dialogues[0].task
    assert [(dialogue.task.id, dialogue.attempt) for dialogue in dialogues[:4]] == [(task.id, n) for n in range(4)]
    assert all(dialogue.reward is not None for dialogue in dialogues)
    some = sweetrl.collect(env, policy, tasks=[task], attempts=4, seed=7)
    assert [dialogue.messages for dialogue in some] == [dialogue.messages for dialogue in dialogues[:4]]
    others = sweetrl.collect(env, policy, tasks=[task], attempts=4, seed=8)
    assert [dialogue.messages for dialogue in others] != [dialogue.messages for dialogue in dialogues[:4]]


def test_a_folder_belongs_to_one_call_which_may_be_repeated(
    env: sweetrl.Domain, policy: sweetrl.Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "dialogues"
    first = list(sweetrl.collect(env, policy, tasks=2, attempts=1, seed=7, out=out))
    with monkeypatch.context() as patch:
        patch.setattr("sweetrl.rollout.run.rollout", None)  # no dialogue is made again
        assert list(sweetrl.collect(env, policy, tasks=2, attempts=1, seed=7, out=out)) == first
    for other in ({"seed": 8}, {"attempts": 2}, {"tasks": 1}):
        with pytest.raises(sweetrl.UserError, match="the dialogues of another call are here"):
            sweetrl.collect(env, policy, **{"tasks": 2, "attempts": 1, "seed": 7, "out": out, **other})
    with pytest.raises(sweetrl.UserError, match="the dialogues of another call are here"):
        sweetrl.evaluate(env, policy, 1, out=out)


def test_whole_dialogues_train_a_policy_from_a_generator_as_from_a_list(
    env: sweetrl.Domain, policy: sweetrl.Policy, dialogues: list[sweetrl.Trajectory], tmp_path: Path
) -> None:
    options = {"learning_rate": 1e-3, "epochs": 1, "min_reward": 0.1}
    first = sweetrl.train("rft", env, policy, dialogues=dialogues, out=tmp_path / "list", **options)
    second = sweetrl.train(Rft(), env, policy, dialogues=(d for d in dialogues), out=tmp_path / "generator", **options)
    assert first.adapter == tmp_path / "list" and second.adapter is not None
    weights = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("list", "generator")]
    assert weights[0] == weights[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generator", "list"], "unfinished work is removed"
    pairs = sweetrl.train("multi-turn-dpo", env, policy, dialogues=(d for d in dialogues), learning_rate=1e-3, epochs=1)
    assert pairs.adapter is not None and pairs.adapter.exists()


def test_any_critic_ranks(
    env: sweetrl.Domain, policy: sweetrl.Policy, dialogues: list[sweetrl.Trajectory], tmp_path: Path
) -> None:
    class Longest:
        def rate(self, work: Any) -> list[list[list[float]]]:
            return [[[float(len(reply.text)) for reply in turn] for turn in turns] for _, turns in work]

    ranking = sweetrl.rank(env, policy, Longest(), dialogues, share=0.2, candidates=4, seed=7, out=tmp_path / "ranking")
    assert ranking.preferences
    for state in ranking.states:
        lengths = [len(candidate.text) for candidate in state.candidates]
        advantages = [candidate.advantage for candidate in state.candidates]
        assert max(lengths) == lengths[advantages.index(max(advantages))]
    assert (tmp_path / "ranking" / "candidates.parquet").exists()


@pytest.mark.parametrize("critic", ["privileged-ratio", "rollout-value"])
def test_critics_that_need_no_training_rank_by_their_names(
    env: sweetrl.Domain, policy: sweetrl.Policy, dialogues: list[sweetrl.Trajectory], critic: str
) -> None:
    options = {"share": 0.05, "candidates": 3, "rollouts": 1, "margin": 0.0, "seed": 7}
    ranking = sweetrl.rank(env, policy, critic=critic, dialogues=dialogues, **options)
    assert ranking.preferences or critic == "rollout-value"
    assert ranking.metrics["recorded_worst_difference"] < 1e-4 and ranking.metrics["recorded_tokens"] > 0
    values = [candidate.advantage for state in ranking.states for candidate in state.candidates]
    if critic == "privileged-ratio":
        assert all(values) and "rollouts" not in ranking.metrics
    else:
        assert all(0.0 <= value <= 1.0 for value in values)
        assert ranking.metrics["rollouts"] == len(values) and ranking.metrics["rollout_replies"] > 0


def test_all_weights_of_critic_and_policy_may_be_trained(
    env: sweetrl.Domain, policy: sweetrl.Policy, dialogues: list[sweetrl.Trajectory]
) -> None:
    full = sweetrl.Policy.load(ROOT / "models/base", threads=1, train="full")
    how = {"learning_rate": 1e-4, "epochs": 1, "seed": 7}
    pairs = [TrajectoryPair(dialogue.task.id, 0, 1, 1.0, 0.0) for dialogue in dialogues[::4]]
    critic = sweetrl.train_critic(env, full, dialogues, pairs, **how)
    advantages = critic.advantages(dialogues[0])
    assert any(abs(value) > 1e-5 for value in advantages), "it is no longer the reference"
    options = {"share": 0.2, "candidates": 4, "margin": 0.0, "seed": 7}
    ranking = sweetrl.rank(env, full, critic, dialogues, **options)
    alone = sweetrl.rank(env, policy, "random", dialogues, **options)
    texts = [[[reply.text for reply in state.candidates] for state in each.states] for each in (ranking, alone)]
    assert texts[0] == texts[1], "the base samples, whatever the critic is"
    trained = sweetrl.train("sweet", env, full, ranking=ranking, **how)
    evaluation = sweetrl.evaluate(env, [full, trained], 2, seed=7)
    assert set(evaluation.summaries) == {"base", "trained"} and trained.full


def test_what_the_base_did_not_sample_stops_critic_and_ranking(
    env: sweetrl.Domain, policy: sweetrl.Policy, dialogues: list[sweetrl.Trajectory]
) -> None:
    """Other weights under the name of the base: their dialogues have other log-probs."""
    others = []
    for dialogue in dialogues:
        turns = (replace(turn, logprobs=tuple(x - 0.1 for x in turn.logprobs)) for turn in dialogue.turns)
        others.append(replace(dialogue, turns=tuple(turns)))
    pairs = [TrajectoryPair(others[0].task.id, 0, 1, 1.0, 0.0)]
    for call in (
        lambda: sweetrl.train_critic(env, policy, others, pairs, seed=7),
        lambda: sweetrl.rank(env, policy, "privileged-ratio", others, share=0.2, candidates=2, seed=7),
    ):
        with pytest.raises(sweetrl.UserError, match="collect again"):
            call()


def test_an_agent_at_a_server_is_collected_from_and_compared(env: sweetrl.Domain, fake_server: Any) -> None:
    with fake_server() as server:
        there = sweetrl.Policy.server(server.url, model="m")
        evaluation = sweetrl.evaluate(env, {"one": there, "two": there}, 3, seed=7)
    assert evaluation.comparison == {} and set(evaluation.summaries) == {"one", "two"}
    assert evaluation.summaries["one"]["reward"] == evaluation.summaries["two"]["reward"]
    assert all(not turn.token_ids for dialogue in evaluation.dialogues["one"] for turn in dialogue.turns)


def test_policies_that_have_exchanged_their_names_are_another_call(
    env: sweetrl.Domain, fake_server: Any, tmp_path: Path
) -> None:
    with fake_server() as server:
        large, small = (sweetrl.Policy.server(server.url, model=model) for model in ("large", "small"))
        sweetrl.evaluate(env, {"base": large, "trained": small}, 2, seed=7, out=tmp_path / "out")
        with pytest.raises(sweetrl.UserError, match="the dialogues of another call are here"):
            sweetrl.evaluate(env, {"trained": large, "base": small}, 2, seed=7, out=tmp_path / "out")


def test_an_evaluation_has_its_own_temperature_and_collecting_the_agents(fake_server: Any) -> None:
    env = sweetrl.domain("backend", agent={"temperature": 0.9}, evaluate={"temperature": 0.2})
    for name, temperature in (("collect", 0.9), ("evaluate", 0.2)):
        with fake_server() as server:
            getattr(sweetrl, name)(env, sweetrl.Policy.server(server.url, model="m"), 2, seed=7)
        assert {body["temperature"] for body in server.bodies} == {temperature}, name


def test_an_evaluation_lets_the_agent_talk_as_its_method_does(fake_server: Any) -> None:
    """As the pipeline: an agent of `single-turn` answers at once, and collecting is with all turns."""
    env = sweetrl.domain("backend", method="single-turn", agent={"max_turns": 5})
    with fake_server() as server:
        policy = sweetrl.Policy.server(server.url, model="m")
        (evaluated,) = sweetrl.evaluate(env, {"one": policy}, 2, seed=7).dialogues.values()
        collected = sweetrl.collect(env, policy, 2, attempts=1, seed=7)
    assert {len(each.turns) for each in evaluated} == {1}
    assert max(len(each.turns) for each in collected) > 1


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sweetrl.domain("bckend"), "bckend"),
        (lambda: sweetrl.domain("backend", agent={"turns": 3}), "turns"),
        (lambda: sweetrl.Policy.load("models/base", treads=2), "treads"),
        (lambda: sweetrl.Policy.server("http://localhost", model="m", rows=2), "rows"),
        (lambda: sweetrl.train("swet", sweetrl.domain("backend"), sweetrl.Policy()), "swet"),
        (lambda: sweetrl.train("sweet", sweetrl.domain("backend"), sweetrl.Policy(), dialogues=[]), "`ranking`"),
        (lambda: sweetrl.train("rft", sweetrl.domain("backend"), sweetrl.Policy(), clip=1), "clip"),
        (lambda: sweetrl.train("rft", sweetrl.domain("backend"), ADAPTED, dialogues=[]), "train: the policy has the"),
        (lambda: sweetrl.train("rft", sweetrl.domain("backend"), REMOTE, dialogues=[]), "train: the policy is `large`"),
        (lambda: sweetrl.train_critic(sweetrl.domain("backend"), REMOTE, []), "train_critic: the policy is `large`"),
        (lambda: sweetrl.rank(sweetrl.domain("backend"), ADAPTED, "random", []), "rank: the policy has the"),
        (lambda: sweetrl.collect(sweetrl.domain("backend"), sweetrl.Policy(), tasks=[]), "there are no tasks"),
        (lambda: sweetrl.play(sweetrl.domain("backend"), sweetrl.Policy.load("models/none")), "models/none"),
    ],
)
def test_bad_input_is_one_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(sweetrl.UserError) as error:
        call()
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_conversation_with_an_agent_from_outside(env: sweetrl.Domain) -> None:
    task = next(env.tasks("test", 1, 7, 3))
    with sweetrl.opened(env) as world:
        talk = world.begin(task, seed=7, agent="mine")
        assert talk.request == task.problem_description and talk.system and not talk.done
        with pytest.raises(RuntimeError, match="goes on"):
            talk.score()
        assert talk.say("What is the rate?") == talk.messages[-1].content
        assert talk.say(f"I WANT TO ANSWER:\n```python\n{task.ground_truth}\n```") is None
        with pytest.raises(RuntimeError):
            talk.say("More?")
        dialogue = talk.score()
        assert dialogue.reward == 1.0 and dialogue.success and dialogue.policy == "mine" and dialogue is talk.score()
        wrong = world.begin(task, seed=7)
        assert wrong.say("I WANT TO ANSWER:\n```python\npass\n```") is None
        assert wrong.outcome == "answered" and wrong.score().reward == 0.0
        half = world.begin(task, seed=7)
        half.say("What is the rate \ud800?")
        assert half.messages[1].content == "What is the rate ??"
