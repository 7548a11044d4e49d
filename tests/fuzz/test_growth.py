"""Parsers of untrusted bytes take time that grows no faster than their input: at twice the size, at most 2.5 times.

Each parser reads texts that are often slow, at two sizes, four times apart: nests, openers without an end, names
and numbers without an end, lines, blanks, and texts that one part of a parser reads again after another part.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator

import pytest
from fuzz_targets import _task
from fuzzing import run_target

from sweetrl.backend import Backend
from sweetrl.backend.leaks import find_leak
from sweetrl.browser.placeholders import size
from sweetrl.browser.tailwind import purge
from sweetrl.colbench.leaks import find_quote
from sweetrl.colbench.users import spoken
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import _group
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite.designs import read_page
from sweetrl.methods.critics import first_wins
from sweetrl.sandbox.tiers import lightest
from sweetrl.types import Task, Trajectory

SMALL, TIMES = 16_384, 4
GROWTH = 2.5**2  # for four times the size
UNSEEN = 0.002  # seconds: too little to measure
ENOUGH = 2.0  # seconds of measuring a shape, and at least four measurements

Shape = Callable[[int], str]


def of(*parts: str, before: str = "", after: str = "") -> Shape:
    """`parts` in turn, again and again."""
    pattern = "".join(parts)
    return lambda n: before + pattern * (n // len(pattern)) + after


def halves(first: str, second: str) -> Shape:
    return lambda n: first * (n // 2 // len(first)) + second * (n // 2 // len(second))


def within(before: str, shapes: dict[str, Shape], after: str) -> dict[str, Shape]:
    """Each of `shapes` as a part of something larger."""
    return {name: lambda n, shape=shape: before + shape(n) + after for name, shape in shapes.items()}  # type: ignore[misc]


def numbered(form: str, between: str = ",", opened: str = "", closed: str = "") -> Shape:
    """`form` again and again, with the numbers from 0 in the place of #."""
    return lambda n: opened + between.join(form.replace("#", str(i)) for i in range(n // (len(form) + 4))) + closed


JSON: dict[str, Shape] = {
    "nests": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "open arrays": of("["),
    "open objects": of('{"a":'),
    "keys": numbered('"k#":1', opened="{", closed="}"),
    "a key twice, after many others": numbered('"k#":1', opened="{", closed=',"z":1,"z":1}'),
    "one key": of('"k":1,', before="{", after='"k":1}'),
    "a long text": of("x", before='"', after='"'),
    "line ends": of("\\n", before='"', after='"'),
    "backslashes": of("\\", before='"'),
    "halves of pairs": of("\\ud800", before='"', after='"'),
    "digits": of("9"),
    "an exponent": of("9", before="1e"),
    "zeros": of("0,", before="[", after="0]"),
    "empty lists": of("[],", before="[", after="[]]"),
    "empty objects": of("{},", before="[", after="{}]"),
    "texts": of('"x",', before="[", after='"x"]'),
    "blanks": of(" ", after="1"),
}
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Which?"}]
FENCES: dict[str, Shape] = {
    "line ends in a fence": of("\n", before="```python\n", after="```"),
    "blank lines in a fence": of(" \n", before="```python\n", after="def f(): pass\n```"),
    "fences": of("```\nx\n```\n"),
    "fences that define the function": of("```\ndef f():\n```\n"),
    "fences of which some define it": of("```\ndef f():\n```\n```\nimport x\n```\n"),
    "open fences": of("~~~\nx\n"),
    "indents": lambda n: "```\n" + "".join(" " * (i % 60) + "x\n" for i in range(n // 30)) + "```",
    "backticks": of("`", after="x`"),
    "tildes": of("~", after="`"),
    "blanks": of(" ", before="a:", after="x"),
    "tabs": of("\t", before="```python\n", after="x\n    y\n```"),
    "dots": of("a.", before="import x\n", after="\na["),
    "words that open code": of("async ", before="```python\n"),
    "brackets": of("a["),
    "line separators": of("\u2028"),
    "marks of order": of("\ufeff"),
    "markers": of("OUTPUT: I WANT TO ANSWER: "),
    "pages": of("<html></html>"),
    "open pages": of("<html"),
}
TAGS = ("<meta ", "<link ", "<script ", "<marquee ", "<!--", "<?", "<!doctype ", "<style>", "@import ", "tailwindcss@")
PAGES: dict[str, Shape] = {
    **{f"open {tag}": of(tag) for tag in TAGS},
    **{f"blanks after {tag}": of(" ", before=tag) for tag in TAGS},
    **{f"line ends after {tag}": of("\n", before=tag) for tag in TAGS},
    "closed comments": of("<!-- -->"),
    "a version": of("5", before="tailwindcss@"),
    "versions": of("tailwindcss@5."),
    "imports": halves("@import ", "//"),
    "class names with prefixes": of("a:", before='<p class="', after='[[["'),
    "classes": of("class=a "),
    "open classes": of("class='"),
    "class names": numbered("c#", " ", '<p class="', '">'),
    "class names with brackets": of("a[", before='<p class="', after=']">'),
    "class names with numbers": of("a-1", before='<p class="', after='">'),
    "entities": of("&amp"),
    "attributes": of("href=x ", before="<link rel=stylesheet ", after=">"),
    "links": of("<link rel=stylesheet href=tailwind>"),
    "refreshes": of("<meta http-equiv=refresh>"),
    "halves of pairs": of("\ud800"),
    "zeros": of("\0"),
}
COLOURS: dict[str, Shape] = {
    "open": of("rgb("),
    "many": of("rgb(1,2,3)"),
    "digits": of("1", before="rgb(", after=")"),
    "points": of("1.", before="oklch(", after=")"),
    "exponents": of("e1", before="lab(1", after=")"),
    "blanks": of(" ", before="color(srgb", after=")"),
    "a name": of("a-", before="color(", after=")"),
}
YAML: dict[str, Shape] = {
    "nests": of("["),
    "maps": of("{a: "),
    "lists": of("- "),
    "keys": numbered("k#: 1", "\n"),
    "lines": of("\n"),
    "comments": of("# x\n"),
    "a quote": of("x", before='"'),
    "escapes": of("\\", before='"'),
    "a block": of(" x\n", before="a: |\n"),
    "anchors": numbered("a#: &a# x", "\n"),
    "tags": of("!"),
    "tabs": of("\t"),
    "one key": of("a: 1\n"),
}
FRAMES: dict[str, Shape] = {
    "dictionaries": numbered('["t",#],1', opened='{"v":["d",', closed="]}"),
    "sets": numbered('["s",#]', opened='{"v":["s",', closed="]}"),
    "a deep set": lambda n: '{"v":' + '["s",' * 140 + json.dumps("x" * n) + "]" * 140 + "}",
    "a decimal": of("9", before='{"v":["dec","', after='"]}'),
    "a whole number": of("f", before='{"v":["i","0x', after='"]}'),
    "dimensions": of("1,", before='{"v":["nd",[', after="1],1]}"),
    "numbers of an array": lambda n: f'{{"v":["nd",[{n // 2}]' + ",1" * (n // 2) + "]}",
    "an error": of("\\ud800", before='{"e":["exception","', after='"]}'),
}
CALLS: dict[str, Shape] = {
    "tests": lambda n: json.dumps(_task(test_cases={f"t{i}": "price(1)" for i in range(n // 20)})),
    "brackets of a call": lambda n: json.dumps(_task(test_cases={"a": "price(" + "(" * n})),
    "signs of a call": lambda n: json.dumps(_task(test_cases={"a": "price(" + "-" * n + "1)"})),
    "lines of the reference": lambda n: json.dumps(_task(ground_truth="def price(h): pass\n" + "x = 1\n" * (n // 6))),
    "rows": lambda n: "\n".join(json.dumps(_task(task_id=f"t{i}")) for i in range(n // 150)),
    "blank rows": of("\t\n"),
}
QUOTES: dict[str, Shape] = {
    "functions without an end": of("def f("),
    "functions with an end": of("def f(", after=")"),
    "what a function returns": of(" ", before="def f() ->", after="x"),
    "lambdas without an end": of("lambda "),
    "quotes that are no ends": of('\\"', before='"'),
    "texts in three quotes": of('"""', after="'"),
    "code in backticks": of("`a"),
    "lines": of("x = 1 and\n"),
    "tags": of("<a "),
    "classes": of("bg-red-"),
    "words": of("price "),
}
DESIGNS: dict[str, Shape] = {
    "open headers": of("<header>", before='<html><body class=""><h1>x</h1>', after="</body></html>"),
    "open titles": of("<h1", before='<html><body class="">', after="</body></html>"),
    "open bodies": of('<body class="">', before="</body><h1>x</h1>"),
}
TASK = Task("t", "Write f.", "def f(x):\n    return 7 * x if x else 'none'", (("a", "f(1)"),))
TASK_JSON, CHAT_JSON = json.dumps(_task()), json.dumps(CHAT)


def parsed(name: str) -> Callable[[str], object]:
    """A parser that `make fuzz` tries, too."""
    return lambda text: run_target(name, text.encode("utf-8", "surrogatepass"))


# Each parser and its shapes. A parser whose input has several untrusted parts is here once for each of them.
CASES: dict[str, tuple[Callable[[str], object], dict[str, Shape]]] = {
    "a frame": (parsed("frame"), FRAMES),
    "a frame's value": (parsed("frame"), within('{"v":', JSON, "}")),
    "a frame's list": (parsed("frame"), within('{"v":["l",', JSON, "]}")),
    "an answer": (parsed("answer"), FENCES),
    "a reply": (parsed("reply"), FENCES),
    "a page": (parsed("page"), PAGES),
    "a page's style sheet": (parsed("page"), within("<style>", PAGES, "</style>")),
    "a colour": (parsed("colour"), COLOURS),
    "tasks": (parsed("tasks"), CALLS | JSON),
    "a task's description": (parsed("tasks"), within('{"ground_truth":"x","problem_description":', JSON, "}")),
    "a task's tests": (
        parsed("tasks"),
        within('{"problem_description":"x","ground_truth":"x","test_cases":', JSON, "}"),
    ),
    "dialogues": (parsed("trajectories"), within(f'{{"task":{TASK_JSON},"answer":"x","dialogue_history":', JSON, "}")),
    "a log": (parsed("logs"), within('{"reward":1,"messages":', JSON, "}")),
    "a log's notes": (parsed("logs"), within(f'{{"reward":1,"messages":{CHAT_JSON},"metadata":', JSON, "}")),
    "a recording": (
        parsed("recording"),
        JSON | {"rows": of('{"speaker":"s","dialogue":"d","task":"t","reply":"r"}\n')},
    ),
    "a server's reply": (parsed("chat_reply"), within('{"choices":', JSON, "}")),
    "a server's words": (parsed("chat_reply"), within('{"choices":[{"message":{"content":', JSON, "}}]}")),
    "a server's error": (parsed("chat_reply"), within('{"error":{"message":', JSON, "}}")),
    "a server that knows the key": (parsed("chat_reply"), {"whole": of("sk-0123456789"), "nearly": of("sk-012345678")}),
    "a client's request": (parsed("chat_request"), within('{"model":"agent","messages":', JSON, "}")),
    "parameters": (parsed("parameters"), YAML),
    "a pause": (parsed("rest"), {"digits": of("9"), "a date": of("Fri, "), "brackets": of("("), "blanks": of(" ")}),
    "words on the screen": (parsed("screen"), FENCES | {"escapes": of("\x1b[2J"), "marks": of("\u202e")}),
    "what a user says of code": (lambda text: find_leak(TASK, text), QUOTES),
    "what a user quotes": (lambda text: find_quote(TASK, text), QUOTES),
    "what a user says of a page": (lambda text: Frontend().find_leak(TASK, text), QUOTES | PAGES),
    "what a user's model says": (spoken, FENCES | {"thoughts": of("<think>"), "ends of thoughts": of("</think>")}),
    "what a message shows": (Backend().display, FENCES),
    "what a page's message shows": (Frontend().display, FENCES),
    "what a program imports": (
        lambda text: lightest((text,), ("numpy",)),
        {"names": of("import a, "), "calls": of("import__(")},
    ),
    "a judge's verdict": (first_wins, {"letters": of("A "), "blanks after letters": halves("A ", " ")}),
    "a picture's address": (
        lambda text: size("https://picsum.photos/" + text),
        {"sizes": of("1/"), "blanks": of(" ", before="1")},
    ),
    "a page of the suite": (read_page, DESIGNS),
    "a page's classes": (lambda text: purge(text.split()), {"names": numbered("c#", " "), "known": of("p-1 ")}),
    "a task's name": (
        lambda text: _group(Trajectory(Task(text, "", ""), 0, ())),
        {"digits": of("1", after="x"), "marks": of("-1", after="x")},
    ),
}


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """The collection of other tests' garbage may fall into a measurement."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def seconds(read: Callable[[str], object], text: str) -> float:
    began = time.thread_time()
    with contextlib.suppress(UserError):
        read(text)
    return time.thread_time() - began


@pytest.mark.parametrize("name", CASES)
def test_time_grows_with_the_input_and_no_faster(name: str) -> None:
    read, shapes = CASES[name]
    seconds(read, "x")  # imports modules that are imported late
    slow = {}
    for shape, make in shapes.items():
        small, large = make(SMALL), make(TIMES * SMALL)
        least, most = [], []
        # Other processes make some measurements longer, and none shorter: a short one is repeated often.
        while len(most) < 4 or sum(most) < ENOUGH:
            most.append(seconds(read, large))
            if min(most) < UNSEEN:
                break
            least.append(seconds(read, small))
            if min(most) <= GROWTH * min(least):
                break
        else:
            slow[shape] = (min(least), min(most))
    assert slow == {}


def test_quadratic_work_would_be_seen() -> None:
    """The measurement itself, of a parser that reads all its earlier text again."""
    shape = of("x")
    assert len(shape(SMALL)) == SMALL

    def quadratic(text: str) -> None:
        for end in range(0, len(text), 16):
            sum(text[:end].encode())

    assert seconds(quadratic, shape(SMALL)) > GROWTH * seconds(quadratic, shape(SMALL // TIMES))
