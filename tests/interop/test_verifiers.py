"""Domains as environments of verifiers: its model talks to the domain's user, and gets the domain's reward."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sweetrl
from sweetrl.colbench.files import task_row
from sweetrl.types import Task, Trajectory
from tests.interop.shared import check_hidden, complete_server, example

vf = pytest.importorskip("verifiers.v1", reason="needs verifiers: pip install 'sweetrl[verifiers]'")

from sweetrl.interop import verifiers as adapter  # noqa: E402
from sweetrl.interop.verifiers import DomainEnv, load_environment  # noqa: E402

HERE = Path(__file__).resolve().parent
SEAT = {"harness": {"id": "chat-in-process"}}
Reply = Callable[[dict[str, Any]], str]


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The harness can be found, and runs leave nothing behind."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr("verifiers.v1.runtimes.subprocess.CACHE_DIR", tmp_path)


@pytest.fixture
def server(fake_server: Any) -> Any:
    return complete_server(fake_server)


def programmer(tasks: Sequence[Task]) -> Reply:
    """Asks once (with thoughts that the user does not see), then gives the reference to every other task."""
    task_of = {task.problem_description: (number, task) for number, task in enumerate(tasks)}

    def reply(body: dict[str, Any]) -> str:
        number, task = task_of[body["messages"][1]["content"]]
        if not any(message["role"] == "assistant" for message in body["messages"]):
            return "I wonder. OUTPUT:Is there a limit, and what is the rate?  \n"
        return "I WANT TO ANSWER:\n" + (task.ground_truth if number % 2 == 0 else "def f():\n    return 'rubbish'")

    return reply


def clerk(body: dict[str, Any]) -> str:
    """Fills examples.forms from what the caller says, asking for one field after the other."""
    from examples import forms

    spoken = [message["content"] for message in body["messages"][1:]]
    names = next(names for form, names in forms.FORMS.items() if form in spoken[0])
    answers = dict(zip(names, spoken[2::2], strict=False))
    if len(answers) < len(names):
        return forms.FIELDS[names[len(answers)]][0]
    values = {name: words.split()[-1].rstrip(".") for name, words in answers.items()}
    return f"{forms.MARKER}\n{forms.fill(values)}"


def by_sweetrl(world: Any, task: Task, seed: int, attempt: int, reply: Reply) -> Trajectory:
    """The same dialogue without verifiers."""
    talk = world.begin(task, seed, attempt, "base")
    messages = [{"role": "system", "content": talk.system}, {"role": "user", "content": talk.request}]
    words: str | None = talk.request
    while words is not None:
        answer = reply({"messages": messages, "seed": 0})
        words = talk.say(answer)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": words}]
    return talk.score()


def context(server: Any) -> Any:
    client = vf.EvalClientConfig(base_url=server.url, api_key_var="NO_KEY")
    return vf.ModelContext(client=client, model="base", sampling=vf.SamplingConfig())


def play(env: DomainEnv, server: Any, attempts: int = 1) -> list[Any]:
    """Run `attempts` episodes of every task, all of them at once; return them in order."""

    async def run() -> list[Any]:
        async with env.serving():
            slots = [slot for task in env.taskset for slot in env.slots(task, attempts)]
            return await asyncio.gather(*(env.run_slot(slot, context(server)) for slot in slots))

    return asyncio.run(run())


def only(episode: Any) -> Any:
    assert episode.ok, [error.message for error in episode.errors]
    (trace,) = episode.traces
    return trace


def same(trace: Any, spoken: Trajectory) -> None:
    """The trace holds the dialogue (the agent's raw words, the user's as they are) and its score."""
    raw = {turn.message_index: turn.raw for turn in spoken.turns}
    expected = [(message.role, raw.get(index, message.content)) for index, message in enumerate(spoken.messages)]
    assert [(message.role, message.content) for message in trace.messages[1:]] == expected
    assert trace.reward == spoken.reward
    assert trace.metrics["success"] == float(spoken.success)
    assert trace.metrics["turns"] == len(spoken.turns)
    assert trace.metrics["answered"] == float(spoken.outcome == "answered")
    assert {name[7:]: value for name, value in trace.metrics.items() if name.startswith("reward/")} == spoken.parts
    assert trace.info["sweetrl"]["outcome"] == spoken.outcome
    assert trace.info["sweetrl"]["attempt"] == spoken.attempt


def test_backend_dialogues_are_those_of_sweetrl(server: Any) -> None:
    options: dict[str, Any] = {"agent": {"max_turns": 4}}
    env = load_environment("backend", split="test", count=3, seed=11, seat=SEAT, **options)
    domain = sweetrl.domain("backend", **options)
    tasks = list(domain.tasks("test", 3, 11, domain.settings.tasks.difficulty))
    agent = programmer(tasks)
    with server(reply=agent) as model:
        traces = [only(episode) for episode in play(env, model, attempts=2)]
    with sweetrl.opened(domain) as world:
        for number, task in enumerate(tasks):
            attempts = sorted(traces[2 * number :][:2], key=lambda trace: trace.info["sweetrl"]["attempt"])
            for attempt, trace in enumerate(attempts):
                spoken = by_sweetrl(world, task, 11, attempt, agent)
                assert trace.messages[0].content == domain.system_prompt("short")
                assert spoken.reward == (number % 2 == 0)
                same(trace, spoken)


def test_an_own_domain_with_parts(server: Any) -> None:
    env = load_environment("examples.forms:Forms", count=6, seed=3, seat=SEAT)
    with server(reply=clerk) as model:
        traces = [only(episode) for episode in play(env, model)]
    domain = sweetrl.domain("examples.forms:Forms")
    with sweetrl.opened(domain) as world:
        for task, trace in zip(domain.tasks("train", 6, 3, 3), traces, strict=True):
            same(trace, by_sweetrl(world, task, 3, 0, clerk))
    assert [trace.metrics["reward/right"] for trace in traces] == [0.9] * 6
    assert [trace.reward for trace in traces] == [1.0] * 6


def test_the_user_hears_every_blank(server: Any) -> None:
    def says(body: dict[str, Any]) -> str:
        return ("  OUTPUT: one \n", "", "\n two")[sum(message["role"] == "assistant" for message in body["messages"])]

    options: dict[str, Any] = {"agent": {"max_turns": 3}, "simulator": {"kind": "chat_in_process:Echo"}}
    env = load_environment("backend", count=1, seed=2, seat=SEAT, **options)
    with server(reply=says) as model:
        (trace,) = (only(episode) for episode in play(env, model))
    domain = sweetrl.domain("backend", **options)
    with sweetrl.opened(domain) as world:
        spoken = by_sweetrl(world, next(domain.tasks("train", 1, 2, 3)), 2, 0, says)
    heard = [message.content for message in trace.messages if message.role == "user"]
    assert heard == [message.content for message in spoken.messages if message.role == "user"]
    assert [text.partition(": ")[2] for text in heard[1:]] == ["' one \\n'", "''"]


def test_tasks_cross_the_wire_without_their_secrets(server: Any) -> None:
    """An environment server makes the task again from the row that a trainer sends, which has no secrets."""
    from verifiers.v1.serve.client import EnvClient
    from verifiers.v1.serve.pool import env_config_data
    from verifiers.v1.serve.server import EnvServer

    env = load_environment("backend", split="test", count=3, seed=11, seat=SEAT)
    domain = sweetrl.domain("backend")
    tasks = list(domain.tasks("test", 3, 11, 3))
    rows = [task.data.model_dump(mode="json") for task in env.taskset]
    text = json.dumps([rows, env_config_data(env.config)])
    check_hidden(tasks, text)

    async def serve(model: Any) -> list[Any]:
        served = EnvServer(vf.resolve_env_config(json.loads(text)[1]), "tcp://127.0.0.1:0")
        running = asyncio.create_task(served.run())
        client, sent = EnvClient(served.address), context(model)
        try:
            changed = rows[2] | {"request": "Something else."}
            runs = [client.run(sent.client, "base", sent.sampling, row) for row in (rows[2], rows[1], changed)]
            return list(await asyncio.gather(*runs))
        finally:
            await client.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with server(reply=programmer(tasks)) as model:
        right, wrong, strange = asyncio.run(serve(model))
    assert (only(right).reward, only(wrong).reward) == (1.0, 0.0)
    assert not strange.ok and not strange.traces
    assert "there is another one at place 2; take the same domain" in strange.errors[0].message


def test_task_files(server: Any, tmp_path: Path) -> None:
    tasks = list(sweetrl.domain("backend").tasks("test", 3, 2, 3))
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(task_row(task)) + "\n" for task in tasks), encoding="utf-8")
    files = {"source": "files", "test_file": str(path)}
    env = load_environment("backend", split="test", count=2, seed=1, seat=SEAT, tasks=files)
    assert [task.data.id for task in env.taskset] == [task.id for task in tasks[:2]]
    assert [task.data.idx for task in env.taskset.skip(1)] == [1]
    with server(reply=programmer(tasks)) as model:
        assert [only(episode).reward for episode in play(env, model)] == [1.0, 0.0]


def test_a_limit_of_verifiers_breaks_a_dialogue_off(server: Any) -> None:
    env = load_environment("backend", count=1, seat=SEAT | {"max_turns": 2})
    with server(reply=lambda body: "What is the rate?") as model:
        trace = only(play(env, model)[0])
    assert trace.stop_condition == "max_turns" and trace.reward == 0.0
    assert [trace.metrics[name] for name in ("success", "answered", "turns")] == [0.0, 0.0, 2.0]
    assert trace.info["sweetrl"]["outcome"] == "broken_off"


def test_users_who_leave_and_users_who_are_not_there(server: Any) -> None:
    with server(reply=lambda body: "What is the rate?") as model:
        env = load_environment("backend", count=1, seat=SEAT, simulator={"kind": "chat_in_process:Leaves"})
        trace = only(play(env, model)[0])
        assert trace.reward == 0.0 and trace.info["sweetrl"]["outcome"] == "user_left"

        env = load_environment("backend", count=1, seat=SEAT, simulator={"kind": "chat_in_process:Gone"})
        (episode,) = play(env, model)
    assert not episode.ok and not episode.traces[0].ok and not episode.traces[0].rewards
    assert "the dialogue is lost: nobody is there" in episode.errors[0].message


def test_a_repeated_episode_is_the_same_attempt(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifiers.v1.utils.retries.backoff", lambda attempt: 0.0)
    options: dict[str, Any] = {"agent": {"max_turns": 2}, "simulator": {"kind": "chat_in_process:Late"}}
    patient = load_environment("backend", count=1, seed=4, seat=SEAT, **options)
    patient.config.retries = vf.RetryConfig(max_retries=1)
    with server(reply=lambda body: "What is the rate?") as model:
        traces = [only(episode) for episode in play(patient, model, attempts=2)]
    assert sorted(trace.info["sweetrl"]["attempt"] for trace in traces) == [0, 1]
    assert sorted(importlib.import_module("chat_in_process").Late.seen.values()) == [2, 2]


def test_an_own_reward_is_for_one_thread_at_a_time(server: Any) -> None:
    env = load_environment("backend", count=1, seat=SEAT, reward={"function": "chat_in_process:alone"})
    with server(reply=lambda body: "I WANT TO ANSWER: nothing") as model:
        traces = [only(episode) for episode in play(env, model, attempts=6)]
    assert [(trace.reward, trace.metrics["success"]) for trace in traces] == [(0.5, 0.0)] * 6


def test_the_model_fails(server: Any) -> None:
    env = load_environment("backend", count=1, seat=SEAT)
    with server(reply=lambda body: "What?", scripted=["", *["500"] * 3]) as model:
        (episode,) = play(env, model)
    assert not episode.ok and not episode.traces[0].rewards
    assert episode.traces[0].errors[0].type == "ProviderError"


def test_the_example(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of the module and docs/interop.md; only the harness differs, as the default needs a package index."""
    tasks = list(sweetrl.domain("backend").tasks("test", 2, 7, 3))
    with server(reply=programmer(tasks)) as model:
        changes = {"http://localhost:8000/v1": model.url, "count=20": f"count=2, seat={SEAT}"}
        exec(example(adapter, "import asyncio", changes), {})
    assert capsys.readouterr().out == "4.0\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": 3}, "there is no section `name`"),
        ({"count": 0}, r"load_environment: `count`: Input should be greater than or equal to 1\."),
        ({"seat": {"max_turn": 1}}, r"load_environment: `agent\.max_turn`: Extra inputs are not permitted\."),
    ],
)
def test_what_is_wrong_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(sweetrl.UserError, match=sentence) as error:
        list(load_environment(**options).taskset)
    assert "\n" not in str(error.value)
