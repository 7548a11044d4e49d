"""Stage `rank` as a program: killed in the middle and run again it writes the bytes of an undisturbed run.

With a server it asks for what is missing only, and what it gets does not depend on the server's faults.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import LoraSettings, ModelSettings, parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter
from sweetrl.models.load import load_tokenizer
from sweetrl.paths import PREFERENCES, SAMPLES
from sweetrl.seeds import state_seed
from sweetrl.stages.rank import rank
from sweetrl.sweet import preferences as files
from sweetrl.sweet.tables import Table
from sweetrl.types import AgentTurn, Message, Preference, RankedState, Task, TokenRatios, Trajectory
from tests.stages.conftest import finish, kill_when, start

PARAMS = """
seed: 7
model: {base: models/base, device: cpu, threads: 1}
agent: {max_new_tokens: 6}
rank: {share: 1.0, candidates: 4, block: 2, token_ratios: 7}
"""
PROGRAM = ("-m", "sweetrl.stages.rank")
NAMES = (files.CANDIDATES, files.PREFERENCES, files.SFT_REPLAY, files.TOKEN_RATIOS)


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a project folder with a base, a critic and trajectories; equal in everything but its place."""
    import torch

    base, tokenizer = load_base(ModelSettings(base=str(tiny_model), device="cpu"))
    critic = attach_adapter(base, LoraSettings(rank=4), seed=0)
    for name, parameter in critic.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape)
    chat = ChatFormat(tokenizer)
    trajectories = []
    for number in range(12):
        chance = random.Random(number)
        task = Task(f"train-{number:05d}", "I want a function.", f"def price(hours):\n    return hours * {number}")
        messages, turns = [Message("user", task.problem_description)], []
        for text in [
            *chance.choices(["What is the rate?", "Is there a maximum?"], k=2),
            "I WANT TO ANSWER:\ndef f(): 0",
        ]:
            turns.append(AgentTurn(len(messages), text, chat.reply(text), finish_reason="stop"))
            messages += [Message("assistant", text), Message("user", "The rate is 7.")]
        trajectories.append(
            Trajectory(task, 0, tuple(messages[:-1]), tuple(turns), reward=float(number % 2), seed=number)
        )

    def make(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(tiny_model, folder / "models/base")
        save_adapter(critic, folder / "models/critic", "models/base")
        (folder / "params.yaml").write_text(PARAMS)
        TrajectoryStore(folder / "data/trajectories").write_shard(0, trajectories)
        return folder

    return make


@pytest.mark.slow
def test_a_killed_ranking_ends_with_the_bytes_of_an_undisturbed_one(project: Callable[[str], Path]) -> None:
    undisturbed, killed = project("undisturbed"), project("killed")
    kill_when(start(killed, *PROGRAM), lambda: list(killed.glob(".scratch/rank-*/block-*.parquet")))
    assert not (killed / "data/preferences").exists()
    for folder in (undisturbed, killed):
        output = finish(start(folder, *PROGRAM))
    for name in NAMES:
        path = Path("data/preferences") / name
        assert (killed / path).read_bytes() == (undisturbed / path).read_bytes(), name
    states = Table(undisturbed / "data/preferences" / files.CANDIDATES, RankedState)
    assert len(states) == 36 and all(sum(candidate.count for candidate in state.candidates) == 4 for state in states)
    assert Table(undisturbed / "data/preferences" / files.PREFERENCES, Preference)
    assert len(Table(undisturbed / "data/preferences" / files.SFT_REPLAY, files.Replay)) == 6
    explained = Table(undisturbed / "data/preferences" / files.TOKEN_RATIOS, TokenRatios)
    assert len(explained) == 21, "7 dialogues of 3 turns, of blocks of 2"
    for state, explanation in zip(states, explained, strict=False):
        means = [sum(reply.ratios) / len(reply.ratios) for reply in explanation.replies]
        assert means == pytest.approx([each.advantage for each in state.candidates], abs=1e-5)
    assert "36 states" in output


# With a server

STATES = 36  # 12 dialogues of 3 turns
REPLIES = ("What is the rate?", "Is there a maximum?", "I WANT TO ANSWER:\ndef f(): 0")


def replies(body: dict[str, Any]) -> str:
    """One of three replies, by the seed and the messages."""
    context = json.dumps([body.get("messages") or body.get("prompt"), body["seed"]])
    return random.Random(context).choice(REPLIES)


def with_server(url: str, kind: str = "vllm", **changes: Any) -> Any:
    """The settings of PARAMS, with candidates from a server."""
    retries = {"timeout_seconds": 20.0, "backoff_seconds": 0.01, "attempts": 12}
    engine = {"kind": kind, "urls": url, "model": "base", "concurrency": 4, **retries}
    values: dict[str, Any] = {
        "seed": 7,
        "suite": "backend",
        "model": {"base": "models/base", "device": "cpu", "threads": 1},
        "agent": {"max_new_tokens": 32},
        "engine": engine,
        "rank": {"share": 1.0, "candidates": 4, "block": 2},
    }
    return parse_settings(values | changes)


def written() -> dict[str, bytes]:
    """The bytes that the stage has written in the working directory."""
    return {name: (PREFERENCES / name).read_bytes() for name in NAMES}


def ranked() -> list[RankedState]:
    return Table(PREFERENCES / files.CANDIDATES, RankedState)


@pytest.fixture
def here(project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Callable[[str], Path]:
    """Make a project folder and go there."""

    def make(name: str) -> Path:
        folder = project(name)
        monkeypatch.chdir(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def test_a_server_gives_candidates_whatever_it_does_to_requests(
    here: Callable[[str], Path], fake_server: Any, tokenizer: Any, logged: dict[str, float]
) -> None:
    here("undisturbed")
    with fake_server(reply=replies, tokenizer=tokenizer) as server:
        rank(with_server(server.url))
        bodies = server.bodies
    assert len(bodies) == STATES and {body["n"] for body in bodies} == {4}, "one request for a state's replies"
    assert {body["max_tokens"] for body in bodies} == {32} and len({body["seed"] for body in bodies}) == STATES
    prompts = {body["seed"]: body["prompt"] for body in bodies}
    chat, states = ChatFormat(tokenizer), ranked()
    for state in states:
        seed = state_seed(7, "candidates", state.task_id, state.attempt, state.turn)
        assert prompts[seed] == list(state.prompt_ids)  # the ids that the actor saw, not its text tokenised again
        texts = [replies({"prompt": prompts[seed], "seed": seed + index}) for index in range(4)]
        assert [(reply.text, reply.count) for reply in state.candidates] == [
            (text, texts.count(text)) for text in dict.fromkeys(texts)
        ]
        assert [reply.token_ids for reply in state.candidates] == [chat.reply(reply.text) for reply in state.candidates]
        assert len({reply.advantage for reply in state.candidates}) == len(state.candidates), "a critic has ranked them"
    assert (logged["requests"], logged["failed_requests"], logged["states_lost"]) == (STATES, 0, 0)
    assert logged["generated_tokens"] > 0 and logged["gpu_seconds"] == 0.0
    assert not SAMPLES.exists(), "what weights a server has nobody knows: its replies are not kept for other runs"

    undisturbed = written()
    here("disturbed")
    with fake_server(reply=replies, tokenizer=tokenizer, share=0.2, faults=("429", "500", "drop", "cut")) as server:
        rank(with_server(server.url))
        assert server.requests > STATES
    assert written() == undisturbed


@pytest.mark.slow
def test_a_killed_ranking_asks_for_nothing_twice(
    here: Callable[[str], Path], fake_server: Any, tokenizer: Any, project: Callable[[str], Path]
) -> None:
    killed = here("killed")
    with fake_server(reply=replies, tokenizer=tokenizer, latency=lambda body: 0.1) as server:
        settings = with_server(server.url)
        (killed / "params.yaml").write_text(json.dumps(settings.model_dump(mode="json", by_alias=True)))
        kill_when(start(killed, *PROGRAM), lambda: server.requests >= 12)
        time.sleep(0.3)  # what is under way
        (journals,) = killed.glob(".scratch/rank-*/asked")
        lines = [line for path in sorted(journals.iterdir()) for line in path.read_bytes().splitlines(keepends=True)]
        done = sum(line.endswith(b"\n") for line in lines)
        assert 4 <= done < STATES
        with (journals / "000000.jsonl").open("ab") as broken:
            broken.write(b'{"number": 0, "ta')  # a line that was being written
        first = [(tuple(body["prompt"]), body["seed"]) for body in server.bodies]
        server.latency = lambda body: 0.0
        server.bodies.clear()
        rank(settings)
        assert server.requests == STATES - done
        second = [(tuple(body["prompt"]), body["seed"]) for body in server.bodies]
        assert len({*first, *second}) == STATES and len(set(second) & set(first)) <= 4  # those without a reply yet
        resumed = written()
        here("undisturbed")
        rank(settings)
    assert written() == resumed


def test_shares_ask_for_their_blocks_and_are_put_together_without_a_server(
    here: Callable[[str], Path], fake_server: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("shares")
    with fake_server(reply=replies, tokenizer=tokenizer) as server:
        settings = with_server(server.url)
        for share in ("0/2", "1/2"):
            monkeypatch.setenv("SWEETRL_SHARE", share)
            rank(settings)
            assert not PREFERENCES.exists()
        assert server.requests == STATES
    monkeypatch.delenv("SWEETRL_SHARE")
    rank(settings)
    together = written()
    here("whole")
    with fake_server(reply=replies, tokenizer=tokenizer, port=server.port) as again:
        rank(settings)
        assert again.requests == STATES
    assert written() == together


def test_states_whose_replies_hold_no_words_are_lost(
    here: Callable[[str], Path], fake_server: Any, tokenizer: Any
) -> None:
    """A model that thinks may come to its limit before it speaks; an empty ranking would teach nothing."""
    here("thinking")
    with fake_server(reply=replies) as server:
        chat = server._chat

        def thinking(body: dict[str, Any]) -> tuple[int, Any]:
            status, reply = chat(body)
            for choice in reply["choices"]:
                choice |= {"finish_reason": "length", "message": {"role": "assistant", "content": None}}
            return status, reply

        server._chat = thinking
        settings = with_server(server.url)
        engine = settings.engine.model_copy(update={"kind": "openai", "model": "m"})
        with pytest.raises(UserError, match="all replies end at their limit of 32 tokens without a word; raise agent"):
            rank(settings.model_copy(update={"engine": engine}))
    assert not PREFERENCES.exists()


def test_lost_states_stop_the_stage_when_there_are_too_many(
    here: Callable[[str], Path], fake_server: Any, tokenizer: Any
) -> None:
    here("lost")
    with fake_server(reply=replies, tokenizer=tokenizer) as server:
        complete = server._completions
        refusal = (400, {"error": {"message": "no such luck"}})
        server._completions = lambda body: refusal if body["seed"] % 4 == 0 else complete(body)
        with pytest.raises(
            UserError, match=r"\d+ of 36 states are lost, more than the allowed share of 0.05 .*such luck"
        ):
            rank(with_server(server.url))
        assert not PREFERENCES.exists()
        allowed = with_server(server.url, collect={"lost_share": 0.6})
        rank(allowed)
        unlucky = sum(body["seed"] % 4 == 0 for body in server.bodies)
        states = ranked()
        run = read_json(Path("reports/runs/rank.json"))["metrics"]
        empty = [state for state in states if not state.candidates]
        assert len(states) == STATES and 0 < len(empty) == run["states_lost"] < unlucky + 1
        assert Table(PREFERENCES / files.PREFERENCES, Preference)
        # The first run's answers are there still: with its settings only what it has not got is asked for.
        server._completions = complete
        (journals,) = Path(".scratch").glob("rank-*/asked")
        answered = sum(len(path.read_bytes().splitlines()) for path in journals.iterdir())
        server.bodies.clear()
        rank(with_server(server.url))
        assert 0 < server.requests == STATES - answered
        assert all(state.candidates for state in ranked())


def cut(chat: Callable[[dict[str, Any]], tuple[int, Any]]) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    """A server whose questions are all broken off by the token limit."""

    def reply(body: dict[str, Any]) -> tuple[int, Any]:
        status, response = chat(body)
        for choice in response["choices"]:
            if "?" in choice["message"]["content"]:
                choice["finish_reason"] = "length"
        return status, response

    return reply


def test_a_server_that_knows_text_only(here: Callable[[str], Path], fake_server: Any, tokenizer: Any) -> None:
    here("text")
    with fake_server(reply=replies) as server:
        server._chat = cut(server._chat)
        rank(with_server(server.url, "openai"))
        bodies = server.bodies
    assert len(bodies) == STATES and {body["n"] for body in bodies} == {4}
    chat, states = ChatFormat(tokenizer), ranked()
    for state in states:
        for reply in state.candidates:
            ids = chat.reply(reply.text)
            assert reply.token_ids == (ids[:-1] if "?" in reply.text else ids), "a cut reply has no end of turn"
    dialogues = TrajectoryStore(Path("data/trajectories"))
    contexts = [dialogue.messages[: 2 * turn + 1] for dialogue in dialogues for turn in range(3)]
    expected = [[(message.role, message.content) for message in messages] for messages in contexts]
    sent = [[(message["role"], message["content"]) for message in body["messages"]] for body in bodies]
    assert sorted(prompt[1:] for prompt in sent) == sorted(expected) and {prompt[0][0] for prompt in sent} == {"system"}


def test_what_a_context_has_no_room_for_is_not_lost(
    here: Callable[[str], Path], fake_server: Any, tokenizer: Any
) -> None:
    here("room")
    with fake_server(reply=replies, tokenizer=tokenizer, context=1) as server:
        rank(with_server(server.url))
        assert server.requests == 0
    states = ranked()
    assert len(states) == STATES and not any(state.candidates for state in states)
    assert read_json(Path("reports/runs/rank.json"))["metrics"]["states_lost"] == 0
