"""Every place where bytes of somebody else become our data: what may be raised there, and beginnings to vary.

A target takes bytes of any kind. It may raise what it says (a sentence for people, mostly); anything else, and whatever
takes longer or more memory than the runner allows, is a find.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sweetrl.engines.retry import TransientError
from sweetrl.errors import EngineError, UserError
from sweetrl.serve.chat_requests import BadRequest


@dataclass(frozen=True)
class Target:
    """`run` on any bytes raises nothing but `allowed`; `seeds` are inputs that go far into it."""

    run: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...] = ()
    seeds: Sequence[bytes] = ()


TARGETS: dict[str, Target] = {}


def target(*seeds: bytes, allowed: tuple[type[BaseException], ...] = ()) -> Callable[..., Any]:
    """Make a target of a function, with its name."""

    def register(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        TARGETS[run.__name__] = Target(run, allowed, seeds)
        return run

    return register


@cache
def backend() -> Any:
    from sweetrl.colbench.find import find_domain

    return find_domain("backend")


@cache
def place() -> Path:
    """A file in memory to write to, which ends with this process: the fuzzer ends without cleaning up."""
    return Path(f"/proc/{os.getpid()}/fd/{os.memfd_create('input')}")


def text(data: bytes) -> str:
    """Bytes as text, halves of surrogate pairs among it: JSON can bring them."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def written(data: bytes) -> Path:
    place().write_bytes(data)
    return place()


def _task(**more: Any) -> dict[str, Any]:
    return {
        "task_id": "t",
        "problem_description": "Price of a ticket?",
        "ground_truth": "def price(h):\n    return 7 * h",
        "test_cases": {"a": "price(1)", "b": "price(2)"},
        **more,
    }


def _table() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"task": "t", "messages": _CHAT, "reward": 0.5, "n": [1, None]}, {"task": None, "messages": [], "n": []}]
    pq.write_table(pa.Table.from_pylist(rows), written(b""), compression="zstd")
    return place().read_bytes()


def _json(*values: Any) -> bytes:
    return "\n".join(json.dumps(value) for value in values).encode()


# What pyarrow raises of a damaged table; the process that reads it says so.
ARROW = (ValueError, KeyError, IndexError, OSError, RecursionError, NotImplementedError, MemoryError)
_CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Which?"}]
_CHOICE = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": {}}
_FENCE = "```python\nimport os\nasync def f(x):\n    return [x]\n```\n~~~\nx\n~~~"
_PAGE = (
    "<!doctype html><html><head><link href='https://x/tailwindcss@2.2.19/t.css' rel=stylesheet><style>@import url(//x)"
    "</style><script src=//cdn.tailwindcss.com></script><meta http-equiv=refresh></head>"
    "<body class='md:hover:bg-red-500 w-[3px] a/b'><marquee>x</marquee></body></html>"
)


@target(
    b'{"v":["l",1,2.5,"x",null,true]}',
    b'{"v":["nd",[2,2],1,2,3,4]}',
    b'{"v":["d",["t","a"],["dt",1,2,3,4,5,6,7]]}',
    b'{"v":["dec","1.5"]}',
    b'{"e":["exception","ValueError: \\ud800"]}',
    b'{"r":"a reason"}',
)
def frame(data: bytes) -> None:
    """A frame of a child, judged against a value, rendered and stored."""
    from sweetrl.sandbox.claims import parse_frame
    from sweetrl.sandbox.compare import equal, render

    result = parse_frame(data, 5_000)
    if result.kind == "value":
        for expected in (["l", 1, 2.5, "x"], ["d", "a", ["t", None]], ["nd", [2, 2], 1, 2, 3, 4], 7):
            equal(expected, result.tree)
        render(result.tree).encode("utf-8")
    (result.detail or "").encode("utf-8")


@target(_FENCE.encode(), b"def f():\n\treturn 1", b"\xed\xa0\x80 ```\n```")
def answer(data: bytes) -> None:
    """An agent's answer: the program in it, by both readings."""
    from sweetrl.backend.extraction import banned_word, fixed_sources, official_source

    words = text(data)
    fixed_sources(words, "f")
    official_source(words)
    banned_word(words)


@target(b"OUTPUT: I WANT TO ANSWER: <html><body>x</body></html>", b"<html><html></html>")
def reply(data: bytes) -> None:
    """An agent's reply in all domains: markers, pages, what the user is shown."""
    from sweetrl.colbench.markers import visible_reply
    from sweetrl.frontend.pages import find_page, read_reply, without_pages

    words = text(data)
    visible_reply(words)
    read_reply(words)
    find_page(words)
    without_pages(words)


@target(_PAGE.encode(), b"<meta ", b"<!--><?x><style>")
def page(data: bytes) -> None:
    """A page on its way to the browser."""
    from sweetrl.browser.prepare import prepare, stay

    prepared = stay(prepare(text(data)))
    prepared.html.encode("utf-8")


@target(b"rgb(1, 2, 3)", b"oklch(0.5 none 1e3 / 0.5)", b"color(display-p3 1 -1 1e-5)")
def colour(data: bytes) -> None:
    """A computed style with colours."""
    from sweetrl.browser.css_colors import COLOR, parse_color

    words = text(data)
    for color in (words, *COLOR.findall(words)):
        assert all(0 <= channel <= 255 for channel in parse_color(color))


@target(_json(_task(), _task(task_id="u")), b"\xef\xbb\xbf{}", allowed=(UserError,))
def tasks(data: bytes) -> None:
    """A file of tasks."""
    from sweetrl.colbench.files import read_tasks

    for task in read_tasks(written(data), backend()):
        task.problem_description.encode("utf-8")


@target(_json({"task": _task(), "dialogue_history": _CHAT, "answer": "x", "reward": 0.5}), allowed=(UserError,))
def trajectories(data: bytes) -> None:
    """A file of official trajectories."""
    from sweetrl.colbench.files import read_trajectories

    for trajectory in read_trajectories(written(data), backend()):
        trajectory.messages[0].content.encode("utf-8")


@target(_table(), allowed=(UserError, *ARROW))
def table(data: bytes) -> None:
    """A Parquet file, as the process that reads it does."""
    from sweetrl.bounded import rows_of

    for row in rows_of(written(data)):
        row.decode("utf-8")


@target(b'{"a": {"b": [1, 2.5, "x"]}}', b'{"a": ' + b"[" * 99, allowed=(UserError,))
def model_file(data: bytes) -> None:
    """A JSON file in a model's folder."""
    from sweetrl.bounded import read_object

    read_object(written(data), 2**20)


@target(_json({"messages": _CHAT, "reward": 1, "metadata": {"a": [1]}}), allowed=(UserError,))
def logs(data: bytes) -> None:
    """A line of somebody's log."""
    from sweetrl.colbench.jsonl import parse_row
    from sweetrl.colbench.logs import parse_log

    parse_log(parse_row(data, "here"), "here", backend())


@target(_json({"speaker": "s", "dialogue": "d", "task": "t", "reply": "r"}) + b"\n", allowed=(UserError,))
def recording(data: bytes) -> None:
    """A file of recorded answers, perhaps cut off."""
    from sweetrl.colbench.users import Recording

    Recording(written(data))


@target(_json(_CHOICE), b'{"error":{"message":"no"}}', allowed=(EngineError, TransientError))
def chat_reply(data: bytes) -> None:
    """The body of a server of chat completions, good and bad."""
    from sweetrl.engines.openai import read_choice
    from sweetrl.engines.remote import choices_of, count_of, error_message, hide_key, read_object

    words = hide_key("sk-0123456789", data.decode("utf-8", "replace"))
    error_message(words).encode("utf-8")
    reply = read_object("u", words)
    count_of(reply.get("usage"))
    for choice in choices_of("u", reply, 1):
        read_choice("u", choice).text.encode("utf-8")


@target(_json({"model": "agent", "messages": _CHAT[:1], "temperature": 0.5, "n": 2}), allowed=(BadRequest, UserError))
def chat_request(data: bytes) -> None:
    """What a client of the endpoint sends."""
    from sweetrl.serve.chat_requests import read_request
    from sweetrl.tracking.chat_agent import AgentConfig

    read_request(data, AgentConfig(base="b"), ("agent",))


@target(b"seed: 7\nrank: {candidates: 16, margin: 0.1}\n", b"a: &a [*a]\n", b"? [x]\n: y", allowed=(UserError,))
def parameters(data: bytes) -> None:
    """A params.yaml."""
    from sweetrl.config.settings import load_settings

    load_settings(written(data))


@target(b"7", b"Fri, 31 Dec 1999 23:59:59 GMT")
def rest(data: bytes) -> None:
    """A Retry-After."""
    from sweetrl.engines.retry import LONGEST_REST, retry_after

    assert 0.0 <= retry_after({"retry-after": data.decode("latin-1")}) <= LONGEST_REST


@target("\x1b[2J\u202e\u200d é".encode())
def screen(data: bytes) -> None:
    """Words on the terminal."""
    from sweetrl.text import printable

    printable(text(data)).encode("utf-8")
