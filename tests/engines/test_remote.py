"""A model server that does what it likes: each of its bodies costs attempts at one reply, and nothing else."""

from __future__ import annotations

import gzip
import json
import logging
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.openai import OpenAIEngine, read_choice
from sweetrl.engines.remote import TOKEN_ROOM, choices_of, error_message, hide_key, no_room, read_object, reply_limit
from sweetrl.engines.retry import LONGEST_REST, TransientError, retry_after
from sweetrl.errors import EngineError, NoRoom, UserError
from sweetrl.text import printable
from sweetrl.types import Prompt, Sampling
from tests.fake_server import sample

KEY = "sk-canary/0123456789abcdef"
SAMPLING = Sampling(max_new_tokens=32)
PROMPT = Prompt((), messages=(("user", "I want a function."),), seed=1)


@dataclass
class Server:
    """Answers every POST with `status`, `headers` and the pieces of `body`; counts the bytes that were taken."""

    body: Callable[[Mapping[str, str]], Iterator[bytes]]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    url: str = ""


@contextmanager
def serve(server: Server) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(server.status)
            for name, value in {"Content-Type": "application/json", "Connection": "close", **server.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for piece in server.body(self.headers):
                    self.wfile.write(piece)
                    server.sent += len(piece)
            except OSError:
                pass

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)


def make_engine(url: str) -> OpenAIEngine:
    limits = {"timeout_seconds": 20.0, "attempts": 2, "backoff_seconds": 0.001}
    return OpenAIEngine(ServerSettings(urls=url, model="m", key_variable="THE_KEY", **limits))


def say(server: Server) -> str:
    with serve(server):
        engine = make_engine(server.url)
        try:
            ((completion,),) = sample(engine, [PROMPT], SAMPLING)
        finally:
            engine.close()
    return completion.text


def fails(server: Server) -> str:
    with pytest.raises((EngineError, UserError)) as caught:
        say(server)
    chain: BaseException | None = caught.value
    while chain is not None:  # tracebacks show these, too
        assert KEY not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return str(caught.value)


def choice(words: str) -> bytes:
    reply = {"choices": [{"index": 0, "message": {"content": words}, "finish_reason": "stop"}]}
    return json.dumps(reply).encode()


def once(body: bytes) -> Callable[[Mapping[str, str]], Iterator[bytes]]:
    return lambda headers: iter([body])


def test_a_body_without_end_is_left_where_it_is_too_long() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server = Server(lambda headers: iter([b" " * 2**16] * 1600))  # 100 MiB
    assert "the reply is longer than the 1.0 MiB that it may be" in fails(server)
    assert server.sent < 50 * 2**20, "the rest was not taken"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 2**10


def test_the_limit_of_a_reply_grows_with_its_tokens() -> None:
    assert reply_limit(16, 1024) - reply_limit(1, 1024) == 15 * 1024 * TOKEN_ROOM
    assert say(Server(once(choice("x" * 900_000)))) == "x" * 900_000


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a":' * 200_000, b'{"choices":' + b"[" * 100_000])
def test_a_bottomless_body_is_a_fault_of_this_reply(body: bytes) -> None:
    assert "nested too deeply (after 2 attempts)" in fails(Server(once(body)))


def test_bottomless_errors_are_shown_as_they_begin() -> None:
    assert "status 500 ([[[" in fails(Server(once(b"[" * 200_000), status=500))


@pytest.mark.parametrize("charset", ["rot13", "no-such-thing", "utf-16", "idna"])
def test_text_is_utf_8_whatever_it_is_called(charset: str) -> None:
    server = Server(once(choice("naïve").replace(b"\\u00ef", "ï".encode())))
    server.headers["Content-Type"] = f"application/json; charset={charset}"
    assert say(server) == "naïve"


def test_a_compressed_body_is_not_opened() -> None:
    server = Server(once(gzip.compress(b" " * 2**24)), headers={"Content-Encoding": "gzip"})
    assert "the reply is compressed" in fails(server)


@pytest.mark.parametrize("status", [200, 400, 401, 404, 429, 500])
def test_a_key_that_comes_back_is_shown_to_nobody(status: int, caplog: pytest.LogCaptureFixture) -> None:
    def echo(headers: Mapping[str, str]) -> Iterator[bytes]:
        yield json.dumps({"error": f"you sent {dict(headers.items())}"}).replace("/", "\\/").encode()

    with caplog.at_level(logging.DEBUG):
        message = fails(Server(echo, status=status))
    assert "Bearer ***" in message
    assert KEY not in caplog.text


def test_a_key_in_a_reply_is_not_recorded() -> None:
    assert say(Server(lambda headers: iter([choice(f"I got {headers['authorization']}")]))) == "I got Bearer ***"


def test_a_short_key_is_a_word_like_others() -> None:
    assert hide_key("EMPTY", "the list is EMPTY") == "the list is EMPTY"


@pytest.mark.parametrize("key", ["sk-1\nX-Other: 1", "sk-ключ", "sk-\x7f1"])
def test_a_key_that_fits_in_no_header_is_named_by_its_variable(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", key)
    with pytest.raises(UserError, match=r"^THE_KEY holds characters that no key has") as caught:
        make_engine("http://localhost/v1")
    assert key not in str(caught.value)


def test_an_address_with_a_password_is_refused_without_saying_it() -> None:
    with pytest.raises(UserError, match="the address of host:80 holds a name or a password") as caught:
        make_engine("http://me:secret@host:80/v1")
    assert "secret" not in str(caught.value)


def test_a_port_that_does_not_exist_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"one of the addresses cannot be read \(Port out of range 0-65535\); fix it"):
        make_engine("http://localhost:80000/v1")


@pytest.mark.parametrize("status", [301, 307])
def test_a_server_that_has_moved_is_not_followed_and_named_at_once(status: int) -> None:
    place = {"Location": "https://elsewhere/v1/chat/completions"}
    server = Server(once(b"<html>Moved</html>"), status, place)
    assert "sends requests on to https://elsewhere/v1/chat/completions; name that server" in fails(server)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ALL_PROXY", "socks5://127.0.0.1:1080"), ("ALL_PROXY", "socks://127.0.0.1:1080"), ("SSL_CERT_FILE", "/no/file")],
)
def test_what_the_environment_names_and_httpx_does_not_take_is_one_sentence(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # an extra of httpx
    monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(name, value)
    assert "the environment names cannot be used" in fails(Server(once(choice("Hello."))))


def test_an_error_steers_no_terminal() -> None:
    message = fails(Server(once(json.dumps({"error": "\x1b]0;owned\x07 \u202egnp.exe \ud800"}).encode()), status=400))
    assert message.isprintable() and "owned" in message


@example("1e308")
@example("9" * 5000)
@given(st.text(max_size=60) | st.from_regex(r"\w{3}, \d{1,9} \w{3} \d{1,12} \d{1,4}:\d\d:\d\d [-+]?\w{1,6}"))
def test_no_value_of_retry_after_is_too_strange(value: str) -> None:
    assert 0.0 <= retry_after({"retry-after": value}) <= LONGEST_REST


def test_a_server_that_wants_years_of_rest_ends_in_one_sentence() -> None:
    headers = {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}
    assert "status 429" in fails(Server(once(b"{}"), status=429, headers=headers))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
NAMES = st.sampled_from(["choices", "message", "content", "finish_reason", "index", "error", "detail", "usage"])


@given(st.dictionaries(NAMES, JSON | st.lists(st.dictionaries(NAMES, JSON), max_size=2)))
def test_any_json_is_read_or_refused(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    assert (message := error_message(text)) == printable(message)
    try:
        for choice in choices_of("u", read_object("u", text), 1):
            read_choice("u", choice).text.encode()
    except (TransientError, EngineError):
        pass


FULL = {
    "OpenAI": "This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens.",
    "OpenAI, later": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenAI, strings": "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576.",
    "a code": "context_length_exceeded",
    "Copilot's code": "model_max_prompt_tokens_exceeded",
    "vLLM": "max_tokens or max_completion_tokens is too large: 9. This model's maximum context length is 40 tokens and "
    "your request has 35 input tokens (9 > 40 - 35).",
    "vLLM 0.15": "max_tokens must be at least 1, got -7584. (parameter=max_tokens, value=-7584)",
    "vLLM, engine": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "SGLang": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    "TensorRT-LLM": "Prompt length (5056) exceeds maximum input length (2048).",
    "TensorRT-LLM, torch": "default_max_tokens (-9) must be greater than 0, default_max_tokens (-9) = max_seq_len (40) "
    "- splited_prompt_len (49)",
    "text-generation-inference": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 and 512",
    "text-generation-inference, input": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "llama.cpp": "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "llama-cpp-python": "Requested tokens (5000) exceed context window of 2048",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Ollama": "prompt too long; exceeded max context length by 4 tokens",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Anthropic, both": "input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000",
    "Bedrock": "Input is too long for requested model.",
    "Gemini": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
    "Vertex": "the input token count is 40000 but the model only supports up to 32768.",
    "Mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Groq, Cerebras": "Please reduce the length of the messages or completion. Current length is 9 while limit is 8",
    "Cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
    "DashScope": "Range of input length should be [1, 30720]",
    "MiniMax": "invalid params, context window exceeds limit",
    "GitHub": "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    "Perplexity": "The total length of all messages is too long.",
    "our own": "The dialogue leaves no room for a reply in the model's context; begin a new one.",
}
OTHERS = [
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "max_tokens must be at most 4096",
    "max_tokens is too large: 100000. This model supports at most 4096 completion tokens, whereas you provided 100000.",
    "`max_tokens` must be less than or equal to `8192`, the maximum value is less than the `context_window`",
    "The maximum tokens you requested exceeds the model limit of 8192. Try again with a lower maximum tokens value.",
    "Unable to submit request because it has a maxOutputTokens value of 9999 but the supported range is up to 8192",
    "max_tokens: 10000 > 8192, which is the maximum allowed number of output tokens",
    "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 14810, reduce your message size",
    "This request would exceed your organization's rate limit of 40,000 input tokens",
    "Too many tokens, please wait before trying again.",
    "You exceeded your current quota, please check your plan and billing details.",
    "Prompt tokens limit exceeded: 5000 > 3000. To increase, visit https://openrouter.ai/settings/credits",
    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    "Your request took too long to process",
    "Unrecognized request argument supplied: top_k",
    "[{'type': 'less_than_equal', 'loc': ('body', 'max_tokens'), 'msg': 'Input should be less than or equal to 2'}]",
    "Prompt must contain at least one token",
    "prompt token id 151999 must be less than the vocabulary's size",
    "At most 1 image(s) may be provided in one prompt.",
    "messages.0.content.1.image: image exceeds 5 MB maximum: 9361332 bytes > 5242880 bytes",
    "The response was filtered due to the prompt triggering our content management policy.",
    "Conversation roles must alternate user/assistant",
]


@pytest.mark.parametrize("words", [*FULL.values(), *OTHERS])
def test_a_full_context_is_understood_by_what_is_meant(words: str) -> None:
    full = words in FULL.values()
    assert no_room(words) == full
    body = {"error": {"message": words, "type": "invalid_request_error", "param": "messages", "code": 400}}
    assert no_room(json.dumps(body)) == no_room(json.dumps({"error": {"metadata": {"raw": json.dumps(body)}}})) == full


@pytest.mark.parametrize("status", [200, 400, 413, 422, 500])
def test_a_full_context_is_recognised_under_any_status(status: int) -> None:
    error = {"message": FULL["Anthropic"], "type": "invalid_request_error"}
    with pytest.raises(NoRoom, match="prompt is too long: 210000 tokens > 200000 maximum"):
        say(Server(once(json.dumps({"error": error}).encode()), status=status))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"error": {"code": 502, "message": "Provider returned error"}},
            "status 502 (Provider returned error) (after 2",
        ),
        ({"error": {"code": 402, "message": "no credits"}, "choices": []}, "status 402 (no credits)"),
        ({"error": {"code": 401, "message": "no such user"}}, "put a valid key into THE_KEY"),
        ({"object": "error", "message": "the model sleeps"}, "status 200 (the model sleeps) (after 2"),
        ({"detail": "the model sleeps", "choices": None}, "status 200 (the model sleeps) (after 2"),
    ],
)
def test_an_error_in_a_reply_without_an_error_status_keeps_its_words(body: dict[str, Any], message: str) -> None:
    assert message in fails(Server(once(json.dumps(body).encode())))
