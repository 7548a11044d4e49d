"""Every place where bytes of somebody else become our data: what may be raised there, and beginnings to vary.

A target takes bytes of any kind. It may raise what it says (a sentence for people, mostly); anything else, and whatever
takes longer or more memory than the runner allows, is a find.
"""

from __future__ import annotations

import json
import tempfile
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


@cache
def backend() -> Any:
    from sweetrl.colbench.find import find_domain

    return find_domain("backend")


@cache
def place() -> Path:
    """A file to write to; in memory where the machine has such a place."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="sweetrl-fuzz-", dir=memory if memory.is_dir() else None)
    return Path(folder) / "input"


def text(data: bytes) -> str:
    """Bytes as text, halves of surrogate pairs among it: JSON can bring them."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def written(data: bytes) -> Path:
    place().write_bytes(data)
    return place()


def frame(data: bytes) -> None:
    """A frame of a child, judged against a value, rendered and stored."""
    from sweetrl.sandbox.claims import parse_frame
    from sweetrl.sandbox.compare import equal, render

    found = parse_frame(data, 5_000)
    if found.kind == "value":
        for expected in (["l", 1, 2.5, "x"], ["d", "a", ["t", None]], ["nd", [2, 2], 1, 2, 3, 4], 7):
            equal(expected, found.tree)
        render(found.tree).encode("utf-8")
    (found.detail or "").encode("utf-8")


def answer(data: bytes) -> None:
    """An agent's answer: the program in it, by both readings."""
    from sweetrl.backend.extraction import banned_word, fixed_sources, official_source

    words = text(data)
    fixed_sources(words, "f")
    official_source(words)
    banned_word(words)


def reply(data: bytes) -> None:
    """An agent's reply in all domains: markers, pages, what the user is shown."""
    from sweetrl.colbench.markers import visible_reply
    from sweetrl.frontend.pages import find_page, read_reply, without_pages

    words = text(data)
    visible_reply(words)
    read_reply(words)
    find_page(words)
    without_pages(words)


def page(data: bytes) -> None:
    """A page on its way to the browser."""
    from sweetrl.browser.prepare import prepare, stay

    prepared = stay(prepare(text(data)))
    prepared.html.encode("utf-8")


def colour(data: bytes) -> None:
    """A computed style with colours."""
    from sweetrl.browser.css_colors import COLOR, parse_color

    words = text(data)
    for each in (words, *COLOR.findall(words)):
        assert all(0 <= channel <= 255 for channel in parse_color(each))


def tasks(data: bytes) -> None:
    """A file of tasks."""
    from sweetrl.colbench.files import read_tasks

    for task in read_tasks(written(data), backend()):
        task.problem_description.encode("utf-8")


def trajectories(data: bytes) -> None:
    """A file of official trajectories."""
    from sweetrl.colbench.files import read_trajectories

    for one in read_trajectories(written(data), backend()):
        one.messages[0].content.encode("utf-8")


def table(data: bytes) -> None:
    """A Parquet file, as the process that reads it does."""
    from sweetrl.bounded import rows_of

    for row in rows_of(written(data)):
        row.decode("utf-8")


def model_file(data: bytes) -> None:
    """A JSON file in a model's folder."""
    from sweetrl.bounded import read_object

    read_object(written(data), 2**20)


def logs(data: bytes) -> None:
    """A line of somebody's log."""
    from sweetrl.colbench.jsonl import parse_row
    from sweetrl.colbench.logs import parse_log

    parse_log(parse_row(data, "here"), "here", backend())


def recording(data: bytes) -> None:
    """A file of recorded answers, perhaps cut off."""
    from sweetrl.colbench.users import Recording

    len(Recording(written(data)))


def chat_reply(data: bytes) -> None:
    """The body of a server of chat completions, good and bad."""
    from sweetrl.engines.openai import read_choice
    from sweetrl.engines.remote import choices_of, count_of, error_message, hide_key, read_object

    words = hide_key("sk-0123456789", data.decode("utf-8", "replace"))
    error_message(words).encode("utf-8")
    reply = read_object("u", words)
    count_of(reply.get("usage"))
    for one in choices_of("u", reply, 1):
        read_choice("u", one).text.encode("utf-8")


def chat_request(data: bytes) -> None:
    """What a client of the endpoint sends."""
    from sweetrl.serve.chat_requests import read_request
    from sweetrl.tracking.chat_agent import AgentConfig

    read_request(data, AgentConfig(base="b"), ("agent",))


def parameters(data: bytes) -> None:
    """A params.yaml."""
    from sweetrl.config.settings import load_settings

    load_settings(written(data))


def rest(data: bytes) -> None:
    """A Retry-After."""
    from sweetrl.engines.retry import LONGEST_REST, retry_after

    assert 0.0 <= retry_after({"retry-after": data.decode("latin-1")}) <= LONGEST_REST


def screen(data: bytes) -> None:
    """Words on the terminal."""
    from sweetrl.text import printable

    printable(text(data)).encode("utf-8")


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
    return "\n".join(json.dumps(each) for each in values).encode()


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

TARGETS: dict[str, Target] = {
    "frame": Target(
        frame,
        seeds=(
            b'{"v":["l",1,2.5,"x",null,true]}',
            b'{"v":["nd",[2,2],1,2,3,4]}',
            b'{"v":["d",["t","a"],["dt",1,2,3,4,5,6,7]]}',
            b'{"v":["dec","1.5"]}',
            b'{"e":["exception","ValueError: \\ud800"]}',
            b'{"r":"a reason"}',
        ),
    ),
    "answer": Target(answer, seeds=(_FENCE.encode(), b"def f():\n\treturn 1", b"\xed\xa0\x80 ```\n```")),
    "reply": Target(reply, seeds=(b"OUTPUT: I WANT TO ANSWER: <html><body>x</body></html>", b"<html><html></html>")),
    "page": Target(page, seeds=(_PAGE.encode(), b"<meta ", b"<!--><?x><style>")),
    "colour": Target(colour, seeds=(b"rgb(1, 2, 3)", b"oklch(0.5 none 1e3 / 0.5)", b"color(display-p3 1 -1 1e-5)")),
    "tasks": Target(tasks, (UserError,), seeds=(_json(_task(), _task(task_id="u")), b"\xef\xbb\xbf{}")),
    "trajectories": Target(
        trajectories,
        (UserError,),
        seeds=(_json({"task": _task(), "dialogue_history": _CHAT, "answer": "x", "reward": 0.5}),),
    ),
    "table": Target(table, (UserError, *ARROW), seeds=(_table(),)),
    "model_file": Target(model_file, (UserError,), seeds=(b'{"a": {"b": [1, 2.5, "x"]}}', b'{"a": ' + b"[" * 99)),
    "logs": Target(logs, (UserError,), seeds=(_json({"messages": _CHAT, "reward": 1, "metadata": {"a": [1]}}),)),
    "recording": Target(
        recording, (UserError,), seeds=(_json({"speaker": "s", "dialogue": "d", "task": "t", "reply": "r"}) + b"\n",)
    ),
    "chat_reply": Target(
        chat_reply, (EngineError, TransientError), seeds=(_json(_CHOICE), b'{"error":{"message":"no"}}')
    ),
    "chat_request": Target(
        chat_request,
        (BadRequest, UserError),
        seeds=(_json({"model": "agent", "messages": _CHAT[:1], "temperature": 0.5, "n": 2}),),
    ),
    "parameters": Target(
        parameters,
        (UserError,),
        seeds=(b"seed: 7\nrank: {candidates: 16, margin: 0.1}\n", b"a: &a [*a]\n", b"? [x]\n: y"),
    ),
    "rest": Target(rest, seeds=(b"7", b"Fri, 31 Dec 1999 23:59:59 GMT")),
    "screen": Target(screen, seeds=("\x1b[2J\u202e\u200d é".encode(),)),
}
