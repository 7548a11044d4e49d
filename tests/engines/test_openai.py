"""Chat completions against a server that misbehaves: the same replies, or the cause in one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.openai import OpenAIEngine, read_choice
from sweetrl.engines.policy import Policy
from sweetrl.engines.retry import TransientError
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.protocols import AsyncEngine
from sweetrl.thoughts import split_thoughts
from sweetrl.types import Prompt, Sampling
from tests.fake_server import sample

SAMPLING = Sampling(max_new_tokens=64)
QUICK = {"timeout_seconds": 60.0, "attempts": 6, "backoff_seconds": 0.01}
IMPATIENT = QUICK | {"timeout_seconds": 1.0}
FAULTS = ["429", "500", "503", "drop", "cut", "stuck", "empty", "not-json", "no-choices", "no-finish"]


OPENED: list[OpenAIEngine] = []


def make_engine(*urls: str, **more: Any) -> OpenAIEngine:
    values = {"urls": " ".join(urls), "model": "a-model", "concurrency": 8, **QUICK, **more}
    OPENED.append(OpenAIEngine(ServerSettings(**values)))
    return OPENED[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def prompt(seed: int = 0, text: str = "I want a function.") -> Prompt:
    return Prompt((), seed, (("system", "Ask."), ("user", text)))


def test_a_request_says_everything_and_the_reply_is_read_as_it_is(
    fake_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    with fake_server() as server:
        engine = make_engine(server.url, key_variable="THE_KEY")
        assert isinstance(engine, AsyncEngine) and not engine.speaks_tokens
        ((completion,),) = sample(engine, [prompt(2**40 + 5)], Sampling(64, temperature=0.5, top_p=0.9))
    (body,) = server.bodies
    assert body == {
        "model": "a-model",
        "messages": [{"role": "system", "content": "Ask."}, {"role": "user", "content": "I want a function."}],
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 5,
    }
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert completion.text.startswith("Question ")
    assert (completion.token_ids, completion.logprobs, completion.finish_reason) == ((), (), "stop")
    assert (completion.prompt_tokens, completion.generated_tokens) == (5, 6)
    usage = engine.usage()
    assert (usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (5, 1, 6)
    assert (usage.requests, usage.retries, usage.failures) == (1, 0, 0)
    assert usage.seconds > 0


def test_the_template_of_the_agents_server_gets_its_options(fake_server: Any) -> None:
    options = {"enable_thinking": False}
    with fake_server() as server:
        engine = Policy.server(server.url, model="a-model", template_options=options, **QUICK).open().engine
        assert isinstance(engine, OpenAIEngine)
        OPENED.append(engine)
        sample(engine, [prompt()], Sampling(8))
    assert server.bodies[0]["chat_template_kwargs"] == options


def test_seeds_decide_and_n_replies_come_in_order(fake_server: Any) -> None:
    with fake_server() as server:
        engine = make_engine(server.url)
        first, again, other = sample(engine, [prompt(1), prompt(1), prompt(2)], Sampling(64, n=3))
    assert server.requests == 3
    assert first == again
    assert len({reply.text for reply in first}) == 3
    assert [reply.text for reply in first[1:]] == [reply.text for reply in other[:2]]  # the fake counts its seeds up


@pytest.mark.parametrize("takes", ["one, with a refusal", "one, without a word"])
def test_a_server_of_single_replies_is_asked_for_each(fake_server: Any, takes: str) -> None:
    with fake_server() as server:
        engine = make_engine(server.url)
        together = sample(engine, [prompt(1), prompt(9)], Sampling(64, n=3))
        engine.close()
        chat, server.bodies = server._chat, []

        def single(body: dict[str, Any]) -> tuple[int, Any]:
            if takes == "one, with a refusal" and body.get("n", 1) > 1:
                return 400, {"error": {"message": "'n' : number must be at most 1"}}
            return chat({**body, "n": 1})

        server._chat = single
        engine = make_engine(server.url, concurrency=1)
        for seed, expected in zip((1, 9), together, strict=True):
            (replies,) = sample(engine, [prompt(seed)], Sampling(64, n=3))
            assert [reply.text for reply in replies] == [reply.text for reply in expected]
        engine.close()
    counts = [body.get("n", 1) for body in server.bodies]
    assert counts == [3, 1, 1, 1, 1, 1, 1], "after the first refusal each reply is a request"


def test_greedy_replies_are_one_reply(fake_server: Any) -> None:
    """Some servers refuse several greedy replies to one request."""
    with fake_server() as server:
        engine = make_engine(server.url)
        ((first, *others),) = sample(engine, [prompt(1)], Sampling(64, temperature=0.0, n=3))
        usage = engine.usage()
    assert ["n" in body for body in server.bodies] == [False]
    assert [other.text for other in others] == [first.text] * 2
    assert (usage.prompt_tokens, usage.generated_tokens) == (first.prompt_tokens, first.generated_tokens) == (5, 6)
    assert {(other.prompt_tokens, other.generated_tokens) for other in others} == {(0, 0)}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_the_same_reply(fake_server: Any, fault: str) -> None:
    with fake_server() as server:
        engine = make_engine(server.url, **(IMPATIENT if fault == "stuck" else {}))
        undisturbed = sample(engine, [prompt(3)], SAMPLING)
        server.scripted = [fault, fault]
        assert sample(engine, [prompt(3)], SAMPLING) == undisturbed
        usage = engine.usage()
    assert (server.seen[fault], usage.failures, usage.requests - usage.retries) == (2, 0, 2)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("429", r"status 429 \(busy\) \(after 6 attempts\)"),
        ("500", r"status 500 \(busy\)"),
        ("drop", "the connection failed"),
        ("stuck", r"no reply within 0.2 s"),
        ("not-json", "not JSON, broken off"),
        ("no-choices", "the reply has 0 of 1 choices"),
        ("no-finish", "broken off"),
    ],
)
def test_the_last_attempt_ends_with_the_cause(fake_server: Any, fault: str, cause: str) -> None:
    with fake_server(share=1.0, faults=[fault]) as server:
        engine = make_engine(server.url, timeout_seconds=0.2 if fault == "stuck" else 60.0)
        with pytest.raises(EngineError, match=cause):
            sample(engine, [prompt()], SAMPLING)
        usage = engine.usage()
    assert (usage.requests, usage.retries, usage.failures) == (6, 5, 1)


def test_the_budget_limits_all_attempts_together(fake_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweetrl.engines.retry.BUDGET", 1.5)
    with fake_server(share=1.0, faults=["500"]) as server:
        engine = make_engine(server.url, timeout_seconds=1.0, attempts=1000, backoff_seconds=0.1)
        started = time.monotonic()
        with pytest.raises(EngineError, match="status 500"):
            sample(engine, [prompt()], SAMPLING)
    assert time.monotonic() - started < 30.0  # a thousand attempts would take hours
    assert 2 <= server.requests < 12


def test_waiting_for_others_takes_nothing_from_the_budget(fake_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third request waits for the two before it longer than the budget, and is nevertheless tried again."""
    monkeypatch.setattr("sweetrl.engines.retry.BUDGET", 1.9)

    def slow(body: dict[str, Any]) -> float:
        if server.requests == 2:
            server.scripted = ["500"]
        return 1.0

    with fake_server(latency=slow) as server:
        engine = make_engine(server.url, concurrency=1)
        assert len(sample(engine, [prompt(seed) for seed in range(3)], SAMPLING)) == 3
        assert engine.usage().retries == 1


def test_retry_after_is_obeyed_by_all_that_ask(fake_server: Any) -> None:
    """The first replies ask for a wait of 0.6 s: nothing is sent before that, and nothing is refused again."""
    with fake_server(scripted=["429", "503"], pause="0.6") as server:
        engine = make_engine(server.url, concurrency=2)
        started = time.monotonic()
        replies = sample(engine, [prompt(seed) for seed in range(10)], SAMPLING)
        usage = engine.usage()
    assert time.monotonic() - started > 0.6
    assert len(replies) == 10 and usage.retries == 2 and server.requests == 12


def test_while_one_server_wants_rest_another_is_asked(fake_server: Any) -> None:
    with fake_server(scripted=["429"], pause="600") as busy, fake_server() as free:
        engine = make_engine(busy.url, free.url)
        started = time.monotonic()
        sample(engine, [prompt(seed) for seed in range(40)], SAMPLING)
    assert time.monotonic() - started < 300
    assert busy.requests <= 8 and free.requests >= 33  # 8 may have been under way when it said so
    assert busy.seen["429"] == 1


def test_a_rest_longer_than_the_budget_is_reported(fake_server: Any) -> None:
    with fake_server(scripted=["429"], pause="3600") as server:
        engine = make_engine(server.url, concurrency=1)
        started = time.monotonic()
        with pytest.raises(EngineError, match=r"status 429 \(busy\) \(after 1 attempt\)"):
            sample(engine, [prompt()], SAMPLING)
    assert time.monotonic() - started < 300 and server.requests == 1


@pytest.mark.parametrize(
    ("status", "message", "kind", "cause"),
    [
        (401, "bad key", UserError, "put a valid key into A_KEY"),
        (404, "no such model", UserError, "name a served model"),
        (400, "max_tokens or max_completion_tokens is too large for a prompt of 9 tokens", NoRoom, "leaves no room"),
        (400, "the picture is too large", EngineError, r"status 400 \(the picture is too large\)"),
    ],
)
def test_what_asking_again_cannot_fix_fails_at_once(
    fake_server: Any, status: int, message: str, kind: type[Exception], cause: str
) -> None:
    with fake_server() as server:
        server._chat = lambda body: (status, {"error": {"message": message}})
        engine = make_engine(server.url, key_variable="A_KEY")
        with pytest.raises(kind, match=cause):
            sample(engine, [prompt()], SAMPLING)
    assert server.requests == 1


@pytest.mark.parametrize("key, words", [("max_tokens", "Use max_completion_tokens."), ("top_p", "top_p is not known")])
def test_a_key_that_a_server_refuses_is_left_out_from_then_on(fake_server: Any, key: str, words: str) -> None:
    with fake_server(latency=lambda body: 0.05) as server:
        chat = server._chat
        server._chat = lambda body: (400, {"error": {"message": words}}) if key in body else chat(body)
        engine = make_engine(server.url)
        replies = sample(engine, [prompt(n) for n in range(8)], SAMPLING)  # all under way at once
        assert len(replies) == 8 and engine.usage().failures == 0
        assert sum(key in body for body in server.bodies) == 8
        if key == "top_p":
            with pytest.raises(EngineError, match="top_p is not known"):
                sample(engine, [prompt(1)], replace(SAMPLING, top_p=0.5))


def test_no_more_than_so_many_requests_are_under_way(fake_server: Any) -> None:
    with fake_server(latency=lambda body: 0.03) as server:
        engine = make_engine(server.url, concurrency=3)
        sample(engine, [prompt(seed) for seed in range(12)], SAMPLING)
    assert server.most_active == 3


@pytest.mark.parametrize(
    ("reasons", "ending"),
    [
        ("stop eos eos_token end_turn stop_sequence STOP COMPLETE FINISHED STOP_CRITERIA_MET", "stop"),
        (
            "length model_length max_tokens MAX_TOKENS max_output_tokens ERROR_LIMIT model_context_window_exceeded",
            "length",
        ),
        ("error abort cancelled TIMEOUT network_error insufficient_system_resource", TransientError),
        ("content_filter SAFETY tool_calls function_call tool_use repetition stopped_by_a_cat", EngineError),
    ],
)
def test_why_a_reply_ends(reasons: str, ending: Any) -> None:
    for reason in reasons.split():
        choice = {"finish_reason": reason, "message": {"content": "What is the ra"}, "error": {"message": "it fell"}}
        if isinstance(ending, str):
            assert read_choice("u", choice).finish_reason == ending
        else:
            with pytest.raises(ending, match=rf"finish reason {reason}" + ": it fell" * (ending is TransientError)):
                read_choice("u", choice)


THOUGHT = "<think>\nThe rate, then.\n</think>\n\nWhat is the rate?"
PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "The rate, "}, {"type": "text", "text": "then."}]},
    {"type": "text", "text": "What is the rate?"},
]


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        ({"content": "\n\nWhat is the rate?", "reasoning_content": "\nThe rate, then.\n"}, "stop", THOUGHT),
        ({"content": "What is the rate?", "reasoning": "The rate, then.", "tool_calls": []}, "stop", THOUGHT),
        ({"content": PARTS}, "stop", THOUGHT),
        ({"content": [{"type": "reasoning", "text": "The rate, then."}, PARTS[1]]}, "stop", THOUGHT),
        ({"content": None, "reasoning": "The rate, th"}, "length", "<think>\nThe rate, th"),
        ({"content": PARTS[:1]}, "length", "<think>\nThe rate, then."),
        ({"content": [{"type": "thinking", "thinking": []}, PARTS[1]]}, "stop", "What is the rate?"),
        ({"content": None, "refusal": "No."}, "stop", "No."),
    ],
)
def test_thoughts_that_come_apart_stand_before_the_words(message: dict[str, Any], reason: str, text: str) -> None:
    completion = read_choice("u", {"finish_reason": reason, "message": message})
    assert (completion.text, completion.finish_reason) == (text, reason)
    assert split_thoughts(text)[1] in ("What is the rate?", "No.", "")


@pytest.mark.parametrize(
    ("message", "kind", "cause"),
    [
        ({"content": None, "tool_calls": [{"function": {"name": "search"}}]}, EngineError, "calls a tool.*search"),
        ({"content": "Let me look.", "function_call": {"name": "search"}}, EngineError, "calls a tool.*search"),
        ({"content": [{"type": "tool_use", "name": "search"}]}, EngineError, r"no text \(tool_use\)"),
        ({"content": [{"type": "text"}, 7]}, EngineError, "a part of the reply is no text"),
        ({"content": "", "reasoning_content": "The rate, then."}, TransientError, "all of it is reasoning"),
        ({"content": PARTS[:1]}, TransientError, "all of it is reasoning"),
        ({"content": None}, TransientError, "no words"),
    ],
)
def test_what_says_nothing_is_never_an_empty_reply(message: dict[str, Any], kind: type[Exception], cause: str) -> None:
    with pytest.raises(kind, match=cause):
        read_choice("u", {"finish_reason": "stop", "message": message})


def test_half_a_surrogate_pair_is_no_reason_to_stop(fake_server: Any) -> None:
    with fake_server(reply=lambda body: "a\ud83db") as server:
        engine = make_engine(server.url)
        ((completion,),) = sample(engine, [prompt()], SAMPLING)
    assert completion.text == "a?b"


def test_a_server_that_is_gone_is_replaced_by_the_other(fake_server: Any) -> None:
    with fake_server() as gone:
        pass
    with fake_server() as server:
        engine = make_engine(gone.url, server.url)
        replies = sample(engine, [prompt(seed) for seed in range(8)], SAMPLING)
    assert server.requests == len(replies) == 8


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    fake_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with fake_server() as server:
        engine = make_engine(server.url, attempts=1)
        assert sample(engine, [prompt(1)], SAMPLING)[0][0].text


def test_what_is_missing_is_one_sentence() -> None:
    with pytest.raises(UserError, match="`urls` is empty"):
        OpenAIEngine(ServerSettings(model="a-model"))
    with pytest.raises(UserError, match="`model` is empty"):
        OpenAIEngine(ServerSettings(urls="http://localhost:1/v1"))
    engine = make_engine("localhost:1/v1")
    with pytest.raises(UserError, match="no address of a server"):
        sample(engine, [prompt()], SAMPLING)
    with pytest.raises(UserError, match="no token ids to stop at"):
        sample(engine, [prompt()], replace(SAMPLING, stop_ids=(7,)))


def test_the_official_client_understands_the_fake_server(fake_server: Any) -> None:
    """The fake server of the tests speaks the real protocol."""
    from openai import OpenAI

    with fake_server() as server:
        client = OpenAI(base_url=server.url, api_key="x", max_retries=0)
        reply = client.chat.completions.create(model="base", messages=[{"role": "user", "content": "Hello"}], seed=4)
        names = [model.id for model in client.models.list().data]
    assert (reply.choices[0].message.content or "").startswith("Question")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None and reply.usage.completion_tokens == 6
    assert names == ["base"]
