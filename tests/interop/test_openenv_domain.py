"""Any OpenEnv server as a domain: real servers on localhost, good and bad, from Python and through the stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openenv", reason="openenv is not installed (extra `openenv`)")

from openenv.core import GenericEnvClient
from websockets.exceptions import ConnectionClosedError

import sweetrl
from sweetrl.colbench.store import TrajectoryStore, read_task_table
from sweetrl.errors import UserError
from sweetrl.interop.openenv import create_app
from sweetrl.interop.openenv_format import Format
from sweetrl.interop.openenv_wire import Connection, InvalidAction, Server, ServerError
from sweetrl.interop.worlds import World
from sweetrl.paths import EVALUATION, EVALUATION_DIALOGUES, TEST_TASKS, TRAIN_TASKS, TRAJECTORIES
from sweetrl.settings import parse_settings
from sweetrl.types import Task, Trajectory
from tests.interop.openenv_servers import (
    Guess,
    GuessAction,
    GuessObservation,
    guess_app,
    letters_app,
    raw_server,
    served,
)

NAME = "sweetrl.interop.openenv:OpenEnvDomain"
FORMS = "examples.forms:Forms"


def domain_at(url: str, *, agent: Mapping[str, Any] | None = None, seed: int = 7, **options: Any) -> sweetrl.Domain:
    return sweetrl.domain(
        NAME, seed=seed, agent={"max_turns": 10, **(agent or {})}, suite_options={"url": url, **options}
    )


def bisect(hints: Sequence[str]) -> str:
    """The next guess of somebody who halves what is left."""
    low, high = 0, 100
    for hint in hints:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if hint == "Higher." else (low, middle - 1)
    return str((low + high) // 2)


def bisecting(body: Mapping[str, Any]) -> str:
    """The same as a policy: the reply of a server of chat completions."""
    return bisect([one["content"] for one in body["messages"] if one["role"] == "user"][1:])


def play(env: sweetrl.Domain, task: Task, agent: Callable[[Sequence[str]], str] = bisect) -> Trajectory:
    with sweetrl.opened(env) as world:
        talk = world.begin(task)
        hints: list[str] = []
        while (hint := talk.say(agent(hints))) is not None:
            hints.append(hint)
        return talk.score()


def by_openenv(url: str, start: Mapping[str, Any]) -> tuple[list[str], float]:
    """The same episode by OpenEnv's own client: (hints, sum of rewards)."""
    with GenericEnvClient(url).sync() as client:
        client.reset(**start)
        hints: list[str] = []
        total = 0.0
        while True:
            found = client.step({"guess": int(bisect(hints))})
            total += found.reward
            if found.done:
                return hints, total
            hints.append(found.observation["hint"])


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    with served(guess_app()) as url:
        yield url


# Real servers


def test_an_episode_has_the_rewards_of_the_server(guess: str) -> None:
    env = domain_at(guess, reference_field="secret", reward_range=[-3, 1])
    assert env.reward_range == (-3.0, 1.0)
    tasks = list(env.tasks("test", 6, 7, 3))
    assert len({task.problem_description for task in tasks}) == 6
    assert tasks == list(env.tasks("test", 6, 7, 3)) and not set(tasks) & set(env.tasks("train", 6, 7, 3))
    for task in tasks:
        found = play(env, task)
        hints, total = by_openenv(guess, json.loads(task.hidden_information or ""))
        assert [one.content for one in found.messages[2::2]] == hints
        assert found.reward == pytest.approx(total) and found.outcome == "user_left"
        assert found.answer == task.ground_truth == env.reference(task) and env.knows(task)
        assert found.success == (total >= 1.0)


def test_the_agent_is_told_what_an_action_is(guess: str) -> None:
    assert domain_at(guess).system_prompt("short") == (
        "Guess environment\n\n"
        "Each of your replies is an action, as it is: the guess (JSON of type integer): A number from 0 to 100."
    )


def test_a_reply_that_is_no_action_costs_a_turn_and_no_more(guess: str) -> None:
    env = domain_at(guess, agent={"max_turns": 4})
    task = next(env.tasks("test", 1, 7, 3))
    found = play(env, task, lambda hints: ["seven", "[7]", "700", "-1"][len(hints)])
    assert [one.content for one in found.messages[2::2]] == [
        "That is no action: it must be JSON",
        "That is no action: guess: Input should be a valid integer",
        "That is no action: guess: Input should be less than or equal to 100",
    ]
    assert (found.reward, found.outcome, found.success) == (0.0, "max_turns_reached", False)


def test_collect_and_evaluate_by_a_policy_at_a_server(guess: str, fake_server: Any, tmp_path: Path) -> None:
    env = domain_at(guess)
    with fake_server(reply=bisecting) as server:
        policy = sweetrl.Policy.server(server.url, model="fake")
        stores = [sweetrl.collect(domain_at(guess, sessions=n), policy, 6, attempts=2) for n in (1, 3, 32)]
        evaluation = sweetrl.evaluate(env, {"one": policy}, 4)
    first = [(one.task.id, one.messages, one.reward) for one in stores[0]]
    assert [[(one.task.id, one.messages, one.reward) for one in store] for store in stores] == [first] * 3
    for one in stores[0]:
        hints, total = by_openenv(guess, json.loads(one.task.hidden_information or ""))
        assert [message.content for message in one.messages[2::2]] == hints and one.reward == pytest.approx(total)
    assert evaluation.summaries["one"]["reward"]["value"] == pytest.approx(
        sum(by_openenv(guess, json.loads(task.hidden_information))[1] for task in env.tasks("test", 4, 7, 3)) / 4
    )


def test_an_episode_goes_on_where_it_stands_or_is_repeated(guess: str) -> None:
    env = domain_at(guess, sessions=1)
    task, other = env.tasks("test", 2, 7, 3)
    with sweetrl.opened(env) as world:
        talk, resets = world.begin(task), len(Guess.resets)
        hints = [talk.say("0"), talk.say("x"), talk.say("0")]
        assert len(Guess.resets) == resets + 1 and hints == ["Higher.", "That is no action: it must be JSON", "Higher."]
        world.tools.begin(json.loads(other.hidden_information or ""))  # takes the only session
        assert talk.say("0") == "Higher." and len(Guess.resets) == resets + 3
    with env.open() as tools:  # one that goes on is scored, too
        (score,) = env.scorer(tools).score([Trajectory(task, 0, talk.messages)])
    assert score.reward == pytest.approx(-0.3)


def test_what_is_asked_of_the_server(guess: str) -> None:
    env = domain_at(guess, reset={"level": 3})
    task = next(env.tasks("train", 1, 7, 3))
    assert Guess.resets[-1]["level"] == 3 and Guess.resets[-1]["seed"] < 2**31
    assert env.reference(task) == "" and env.knows(task) and not env.knows(Task("x", "y", "z"))
    rules = env.evaluation_rules()
    assert rules == domain_at("http://elsewhere", reset={"level": 3}, sessions=2).evaluation_rules()
    assert rules != domain_at(guess, reset={"level": 4}).evaluation_rules()


def test_a_server_of_sweetrl_gives_the_dialogues_and_rewards_of_its_domain() -> None:
    forms = sweetrl.domain(FORMS, tasks={"train": 5, "test": 4})
    with served(create_app(forms)) as url:
        env = domain_at(url, success=0.9)
        tasks = list(env.tasks("test", 10, 7, 3))
        assert [json.loads(task.hidden_information or "")["index"] for task in tasks] == [0, 1, 2, 3]
        assert env.system_prompt("short").startswith(forms.system_prompt("short"))
        for index, task in enumerate(tasks):
            known = World(forms).tasks("test").at(index)
            replies = ["Which day?", "What?", f"I WANT TO ANSWER:\n{known.ground_truth}"]
            found = play(env, task, lambda hints, replies=replies: replies[len(hints)])
            with sweetrl.opened(forms) as world:
                talk = world.begin(known)
                for reply in replies:
                    talk.say(reply)
                expected = talk.score()
            assert found.messages[:-1] == expected.messages[:-1] and found.reward == expected.reward
        with pytest.raises(UserError, match=r"has no split `test`|no split `dev`, but train, test; say which one is"):
            list(domain_at(url, splits={"test": "dev"}).tasks("test", 1, 7, 3))


def test_the_example_of_the_docs(guess: str, fake_server: Any) -> None:
    with fake_server(reply=bisecting) as server:
        env = sweetrl.domain("sweetrl.interop.openenv:OpenEnvDomain", suite_options={"url": guess})
        dialogues = sweetrl.collect(env, sweetrl.Policy.server(server.url, model="my-model"), tasks=8)
    assert len({one.task for one in dialogues}) == 8
    for one in dialogues:
        assert one.reward == pytest.approx(by_openenv(guess, json.loads(one.task.hidden_information or ""))[1])


# Bad servers


def test_a_server_that_dies_loses_dialogues_and_writes_nothing_half(fake_server: Any, tmp_path: Path) -> None:
    stack = ExitStack()
    url = stack.enter_context(served(guess_app()))

    def deadly(body: Mapping[str, Any]) -> str:
        if len(body["messages"]) > 5:
            stack.close()
        return bisecting(body)

    with fake_server(reply=deadly) as server:
        policy = sweetrl.Policy.server(server.url, model="fake")
        with stack, pytest.raises(UserError, match=f"are lost, more than the allowed share .*{url}"):
            sweetrl.collect(domain_at(url), policy, 6, attempts=1, out=tmp_path)
        assert not list(tmp_path.rglob("shard-*.parquet"))
        with served(guess_app(), int(url.rpartition(":")[2])):  # the same call again
            again = sweetrl.collect(domain_at(url), policy, 6, attempts=1, out=tmp_path)
            fresh = sweetrl.collect(domain_at(url), policy, 6, attempts=1)
    assert [(one.messages, one.reward) for one in again] == [(one.messages, one.reward) for one in fresh]


def test_a_session_that_breaks_off_is_repeated_in_another(guess: str) -> None:
    env = domain_at(guess)
    task = next(env.tasks("test", 1, 7, 3))
    expected = play(env, task)
    with sweetrl.opened(env) as world:
        talk = world.begin(task)
        hints: list[str] = []
        while (hint := talk.say(bisect(hints))) is not None:
            hints.append(hint)
            for session in world.tools._waiting:
                session.connection._socket.close()
        assert talk.score() == expected
        assert world.tools._open == len(world.tools._waiting) == 1


def test_an_environment_that_does_not_repeat_itself_is_named() -> None:
    class Fickle(Guess):
        count = 0

        def step(self, action: GuessAction, timeout_s: float | None = None, **more: Any) -> GuessObservation:
            Fickle.count += 1
            return GuessObservation(hint=f"This is step {Fickle.count}.", reward=0.0)

    with served(guess_app(environment=Fickle)) as url:
        env = domain_at(url, sessions=1)
        tasks = list(env.tasks("test", 2, 7, 3))
        with sweetrl.opened(env) as world:
            talks = [world.begin(task) for task in tasks]
            assert [talk.say("1") for talk in talks] == ["This is step 1.", "This is step 2."]
            assert talks[0].say("2") is None and talks[0].outcome == "lost"
            assert "does not repeat itself: after the same reset and actions (1) it says" in talks[0].score().error


def test_a_full_server_is_shared_or_waited_for() -> None:
    with served(guess_app(sessions=2)) as url:
        env = domain_at(url, seconds=3.0)
        tasks = list(env.tasks("test", 5, 7, 3))
        with sweetrl.opened(env) as world:
            talks = [world.begin(task) for task in tasks]
            for _ in range(3):
                assert {talk.say("0") for talk in talks} <= {"Higher.", None}
        with ExitStack() as others:
            for _ in range(2):
                others.enter_context(GenericEnvClient(url).sync()).reset()
            with pytest.raises(UserError, match=f"{url}: the server has no free session .* see to the server, and run"):
                list(env.tasks("test", 1, 7, 3))


def message(**data: Any) -> str:
    return json.dumps({"type": "observation", "data": {"observation": {"hint": "x"}, "done": False, **data}})


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (b"\xff\x00\xfe", "the answer is not JSON"),
        ("hello", "the answer is not JSON"),
        ("[" * 100_000, "the answer is not JSON"),
        ("[" * 200 + "]" * 200, "too many levels"),
        (message(reward=float("nan")), "NaN is no number"),
        (message(observation={"hint": "x" * 17 * 2**20}), "the session broke off"),
        ("[]", "a message must be an object"),
        ('{"type": "observation"}', "a message must be an object"),
        ('{"type": "state", "data": {}}', "expected a message of type observation"),
        (message(reward="1"), "a reward must be a number"),
        (message(reward=1e300), "a reward must be a number"),
        (message(done="yes"), "`done` true or false"),
        (message(observation=[1]), "an observation must be an object"),
        (message(done=True), "ends with its reset"),
        ('{"type": "error", "data": {"message": "no\\nway", "code": "X"}}', r"reset failed \(no way\)"),
        ("silence", "no answer within 2 s"),
        ("drop", "the session broke off"),
    ],
)
def test_nonsense_is_one_sentence(reply: str | bytes, sentence: str) -> None:
    seconds = 2.0 if reply == "silence" else 60.0  # whether a busy machine is in time is not the question
    with raw_server(*[reply] * 3) as url, pytest.raises(UserError, match=sentence) as caught:
        list(domain_at(url, seconds=seconds).tasks("test", 1, 7, 3))
    text = str(caught.value)
    assert url in text and "\n" not in text and len(text) < 500 and text.endswith(".")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ((200, "<html>"), "the answer is not JSON"),
        ((200, "x" * (2**20 + 1)), "the page is longer than 1024 KiB"),
        ((500, "oh\nno"), r"status 500 \(oh no\)"),
    ],
)
def test_nonsense_about_itself_is_one_sentence(page: tuple[int, str], sentence: str) -> None:
    with raw_server(pages={"/schema": page}) as url, pytest.raises(UserError, match=f"{url}/schema: {sentence}"):
        domain_at(url).system_prompt("short")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": ""}, "suite_options.url: `` is no address"),
        ({"url": "localhost:8000"}, "is no address of an OpenEnv server; name one as in http://localhost:8000"),
        ({"url": "http://[x"}, "is no address"),
        ({"url": "http://127.0.0.1:9"}, "the server cannot be reached .*; start the server, or correct"),
        ({"sesions": 3}, "suite_options: unknown parameter `sesions`"),
        ({"action_field": "x"}, "suite_options.action_field: there is no field `x`, but guess"),
        ({"observation_field": "x"}, "suite_options.observation_field: there is no field `x`, but hint, tries"),
        (
            {"reference_field": "x"},
            "suite_options.reference_field: there is no `x`, but episode_id, step_count, secret",
        ),
    ],
)
def test_wrong_options_are_one_sentence(guess: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        list(domain_at(**{"url": guess, **options}).tasks("test", 1, 7, 3))


class Socket:
    """A connection whose server says one thing."""

    def __init__(self, reply: str) -> None:
        self.reply = reply

    def send(self, text: str) -> None:
        raise ConnectionClosedError(None, None)  # refused sessions are closed before we send

    def recv(self, timeout: float) -> str:
        return self.reply


KEYS = ["type", "data", "observation", "done", "reward", "message", "code", "errors", "loc", "msg", "properties"]
VALUES = ["observation", "error", "VALIDATION_ERROR", "CAPACITY_REACHED", "string", "\ud800", "words"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, *VALUES]), inner, max_size=5),
    max_leaves=25,
)


@given(JSON, JSON)
def test_whatever_a_server_says_is_an_observation_or_an_error(data: Any, page: Any) -> None:
    server = Server("http://localhost", 1.0)
    server._page = lambda path, body=None: page  # type: ignore[method-assign]
    format = Format.of(server.describe(), "", "")
    format.instructions.encode()
    for found in (data, {"type": "observation", "data": data}, {"type": "error", "data": data}):
        connection = Connection(Socket(json.dumps(found)), "here", 1.0)
        for ask in (connection.reset, connection.step):
            try:
                format.text(ask({}).fields).encode()
            except (ServerError, InvalidAction) as error:
                str(error).encode()


def schema(**fields: Any) -> dict[str, Any]:
    return {"properties": {**fields, "metadata": {"type": "object"}}, "required": list(fields)}


def test_words_become_actions_and_observations_words() -> None:
    def of(action: Any, observation: Any = None, action_field: str = "") -> Format:
        server = Server("http://localhost", 1.0)
        pages = {"/schema": {"action": action, "observation": observation}}
        server._page = lambda path, body=None: pages.get(path)  # type: ignore[method-assign]
        return Format.of(server.describe(), action_field, "")

    text, number = {"type": "string", "description": "What to say."}, {"type": "integer"}
    one = of(schema(words=text), schema(hint=text, tries=number))
    assert one.action(" Hi! ") == {"words": " Hi! "} and one.text({"hint": "Yes", "tries": 3}) == "Yes"
    assert one.instructions == "Each of your replies is an action, as it is: the words: What to say."
    several = of(schema(x=number, y=number), schema(x=number, board={"type": "array"}))
    assert several.action('I think:\n```json\n{"x": 1}\n```') == several.action('{"x": 1}') == {"x": 1}
    assert several.text({"board": [1], "metadata": {}}) == '{"board": [1]}'
    assert several.instructions.endswith('fields: {"x": {"type": "integer"}, "y": {"type": "integer"}}')
    for words in ("x", "[1]", '{"x": NaN}', "[" * 10_000):
        with pytest.raises(InvalidAction, match="it must be"):
            several.action(words)
    assert len(one.text({"hint": "x" * 200_000})) == 100_000
    named = of({**schema(mode={"$ref": "#/$defs/Mode"}), "$defs": {"Mode": {"enum": ["a", "b"]}}})
    assert named.action("a\n") == {"mode": "a"}
    assert of(schema(x=number, y=number), action_field="y").action("3") == {"y": 3}
    with pytest.raises(ServerError, match="has no field `hint`"):
        one.text({"board": 1})


# Through the stages


def test_stages(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("great_expectations", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is not installed (extras `pipeline` and `report`)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    with served(letters_app()) as url:
        settings = parse_settings(
            {
                "suite": NAME,
                "suite_options": {"url": url, "reference_field": "letter", "reward_range": [0, 1], "success": 0.6},
                "model": {"base": str(tiny_model), "device": "cpu", "threads": 1},
                "agent": {"max_turns": 5, "max_new_tokens": 24},
                "tasks": {"train": 4, "validation": 1, "test": 3},
                "collect": {"tasks": 4, "attempts": 3, "batch": 6, "shard": 6},
                "critic": {"pairs": "all", "batch_size": 2, "micro_batch_size": 2},
                "rank": {"share": 0.5},
                "validate": {"minimum_pairs": 1},
                "evaluate": {"tasks": 3, "batch": 3, "resamples": 100},
            }
        )
        for stage in ("tasks", "collect", "validate", "train_critic", "rank", "train_policy", "evaluate"):
            getattr(import_module(f"sweetrl.stages.{stage}"), stage)(settings)
        assert len(read_task_table(TRAIN_TASKS)) == 4 and len(read_task_table(TEST_TASKS)) == 3
        for one in [*TrajectoryStore(TRAJECTORIES), *TrajectoryStore(EVALUATION_DIALOGUES / "base")]:
            replies = [message.content for message in one.messages if message.role == "assistant"]
            with GenericEnvClient(url).sync() as client:
                client.reset(**json.loads(one.task.hidden_information or ""))
                rewards = [client.step({"words": words}).reward for words in replies]
            assert len(replies) == 3 and one.outcome == "user_left"
            assert one.reward == pytest.approx(sum(rewards))
    found = json.loads(EVALUATION.read_text())
    assert found["tasks"] == 3 and 0 < found["reward_before"] <= 1
