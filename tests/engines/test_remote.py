"""A model server that does what it likes: each of its bodies costs attempts at one reply, and nothing else."""

from __future__ import annotations

import gzip
import json
import logging
import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.config.settings import ServerSettings
from sweetrl.engines.openai import OpenAIEngine, read_choice
from sweetrl.engines.remote import TOKEN_ROOM, choices_of, error_message, hide_key, read_object, reply_limit
from sweetrl.engines.retry import LONGEST_REST, TransientError, retry_after
from sweetrl.errors import EngineError, UserError
from sweetrl.text import printable
from sweetrl.types import Prompt, Sampling
from tests.fake_server import sample

KEY = "sk-canary/0123456789abcdef"
ASKED = Sampling(max_new_tokens=32)
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
            ((one,),) = sample(engine, [PROMPT], ASKED)
        finally:
            engine.close()
    return one.text


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


def test_what_may_come_grows_with_what_was_asked_for() -> None:
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
        said = fails(Server(echo, status=status))
    assert status == 200 or "Bearer ***" in said
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


def test_an_error_steers_no_terminal() -> None:
    said = fails(Server(once(json.dumps({"error": "\x1b]0;owned\x07 \u202egnp.exe \ud800"}).encode()), status=400))
    assert said.isprintable() and "owned" in said


@pytest.mark.parametrize("value", ["1e308", "inf", "nan", "-5", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_far_rest_is_at_most_a_week(value: str) -> None:
    assert 0.0 <= retry_after({"retry-after": value}) <= LONGEST_REST


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
        for one in choices_of("u", read_object("u", text), 1):
            read_choice("u", one).text.encode()
    except (TransientError, EngineError):
        pass
