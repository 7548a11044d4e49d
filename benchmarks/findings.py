"""The proofs of what once broke the trusted side, against this tree: before as measured then, after as it is now.

    python benchmarks/findings.py [NUMBER ...]       a table in Markdown, and counts of what the tests try

Each proof is small: it gives one hostile answer, page, reply, server or file to the code that reads it. Number 13 needs
a browser, number 5 a kernel with Landlock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError

TESTS = Path(__file__).resolve().parents[1] / "tests"
for folder in ("hostile", "fuzz", "sandbox", "frontend"):
    sys.path.insert(0, str(TESTS / folder))  # tests are no package

SQUARE = tuple((f"test{x}", f"square({x})") for x in range(2, 12))
Proof = Callable[[], str]
PROOFS: list[tuple[str, str, str, Proof]] = []


def proof(number: str, what: str, before: str) -> Callable[[Proof], Proof]:
    """Register a proof; it returns what it found in words, or raises."""

    def keep(function: Proof) -> Proof:
        PROOFS.append((number, what, before, function))
        return function

    return keep


def seconds(function: Callable[[], object]) -> str:
    """How long `function` keeps a processor busy, in words."""
    began = time.thread_time()
    function()
    return f"{time.thread_time() - began:.3f} s"


def scored(*sources: str) -> list[Any]:
    """Scores of `sources` as solutions to square(x), ten tests each."""
    from sweetrl.backend.rewards import CodeScorer
    from sweetrl.config.settings import RewardSettings
    from sweetrl.types import Task

    task = Task("square", "Square a number.", "def square(x):\n    return x * x", SQUARE)
    with CodeScorer(RewardSettings(workers=1)) as scorer:
        return scorer.score_answers([(task, source) for source in sources])


def parsed(payload: bytes) -> str:
    from sweetrl.sandbox.claims import parse_frame
    from sweetrl.sandbox.compare import render

    frame = parse_frame(payload, 100_000)
    render(frame.tree).encode("utf-8")
    return frame.kind


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@proof("1", "half a surrogate pair in an answer's error", "`score --json` and `collect` die")
def surrogate() -> str:
    (score,) = scored("def square(x): raise ValueError(chr(0xd800))")
    json.dumps([test.detail for test in score.tests], ensure_ascii=False).encode("utf-8")
    return f"reward {score.reward:g}, ten reasons that can be written"


@proof("2", "frames of no form, and nests", "IndexError, RecursionError")
def malformed() -> str:
    frames = (b'{"v":["i"]}', b'{"v":' + b'["l",' * 100_000, b'{"a":' * 100_000, b'{"v":{}}')
    return ", ".join(sorted({parsed(frame) for frame in frames})) + f": {len(frames)} of {len(frames)}"


@proof("3", "honest lists of 95,000 numbers, 60 answers of ten", "client at 2.2 GB")
def many_numbers() -> str:
    before = peak()
    scored(*(f"def square(x): return list(range(95000))  # {number}" for number in range(60)))
    return f"client grows by {max(peak() - before, 0):.0f} MiB"


@proof("3", "a claim of 340,000 empty objects, 40 times", "client at 9.4 GB")
def many_objects() -> str:
    before = peak()
    for _ in range(40):
        parsed(b'{"v":["l"' + b",{}" * 340_000 + b"]}")
    return f"client grows by {max(peak() - before, 0):.0f} MiB"


@proof("4", "`@import` and 1,000 blanks in a style sheet", "57 s")
def imports() -> str:
    from sweetrl.browser.prepare import prepare

    return seconds(lambda: prepare("<style>@import" + " " * 1000 + "</style>"))


@proof("4", "a class of 30,000 prefixes; 20,000 `<meta `; a version of 5,000 digits", "minutes; uncaught")
def pages() -> str:
    from sweetrl.browser.prepare import prepare

    prepare('<link href="tailwind.css" rel=stylesheet>')  # its style sheet is read once
    texts = ('<p class="' + "a:" * 30_000 + '[[[[">', "<meta " * 20_000, "<link href=tailwindcss@" + "5" * 5000 + ">")
    return seconds(lambda: [prepare(text) for text in texts])


@proof("5", "files emptied where Landlock is older and namespaces are missing", "emptied")
def emptied() -> str:
    from sweetrl.sandbox import Job, Sandbox

    handle, name = tempfile.mkstemp()
    os.write(handle, b"whole")
    os.fchmod(handle, 0o666)
    os.close(handle)
    ways = (f"os.truncate({name!r}, 0)", f"os.open({name!r}, os.O_RDONLY | os.O_TRUNC)", f"open({name!r}, 'w')")
    source = "import os\n" + "".join(f"def f{i}(): {way}\n" for i, way in enumerate(ways))
    try:
        with Sandbox(workers=1, without=("namespaces", "landlock truncation")) as sandbox:
            job = Job((source,), tuple(f"f{i}()" for i in range(len(ways))))
            kinds = [call.kind for call in sandbox.submit(job).result().calls]
        return f"{Path(name).read_text()}; {kinds.count('exception')} of {len(ways)} ways refused"
    finally:
        Path(name).unlink()


@proof("6", "a claimed array of 50,000 dimensions", "15.9 s a test")
def dimensions() -> str:
    return seconds(lambda: parsed(b'{"v":["nd",[' + b"1," * 50_000 + b"1],16]}"))


@proof("7", "32,000 line ends in a fence; 32,000 tildes", "over 60 s")
def extraction() -> str:
    from sweetrl.backend.extraction import fixed_sources

    texts = ("```python\n" + "\n" * 32_000 + "```", "~" * 32_000 + "`")
    return seconds(lambda: [fixed_sources(text, "f") for text in texts])


@proof("8", "a server: 200,000 `[`; a rest of centuries; its key echoed", "`collect` dies; the key in records")
def server() -> str:
    from sweetrl.engines.remote import hide_key, read_object
    from sweetrl.engines.retry import LONGEST_REST, TransientError, retry_after

    try:
        read_object("u", "[" * 200_000)
    except TransientError:
        rest = retry_after({"retry-after": "9" * 40})
        echoed = "sk-0123456789" in hide_key("sk-0123456789", '{"error":"Bearer sk-0123456789"}')
        return f"one attempt lost; rest {rest / LONGEST_REST:g} week; key {'shown' if echoed else 'hidden'}"
    return "taken"


@proof("9", "a model's folder with `auto_map`", "its code runs")
def model_folder() -> str:
    from sweetrl.models.check import check_weights

    with tempfile.TemporaryDirectory() as name:
        config = {"model_type": "evil", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}
        (Path(name) / "config.json").write_text(json.dumps(config))
        (Path(name) / "model.safetensors").write_bytes(b"")
        try:
            check_weights(Path(name))
        except UserError:
            return "refused in a sentence, nothing run"
    return "taken"


@proof("10", "escapes and marks of direction in ids and errors", "reach the terminal")
def screen() -> str:
    from sweetrl.text import printable

    left = set("\x1b\x9b\u202e\u2066\ud800") & set(printable("\x1b[2J\x9b1m\u202e\u2066\ud800 x"))
    return f"{len(left)} of 5 kinds left"


@proof("11", "flags of standard input set by one answer", "seen by the next")
def flags() -> str:
    from sweetrl.sandbox import Job, Sandbox

    look = "import fcntl\ndef f(): return fcntl.fcntl(0, fcntl.F_GETFL)"
    leave = "import fcntl, os\ndef f(): return fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)"
    with Sandbox(workers=1) as sandbox:
        seen = [sandbox.submit(Job((program,), ("f()",))).result().calls[0].tree for program in (look, leave, look)]
    return "not seen" if seen[0] == seen[2] else "seen"


@proof("12", "the file of results cut short, then a kill; ten tests", "9 s")
def cut_short() -> str:
    body = "    for fd in range(3, 64):\n        try: os.ftruncate(fd, 0)\n        except OSError: pass\n"
    began = time.monotonic()
    (score,) = scored("import os\ndef square(x):\n" + body + "    os.kill(os.getpid(), 9)")
    return f"{time.monotonic() - began:.2f} s with the start of the sandbox, reward {score.reward:g}"


@proof("13", "a page's gain by text that nobody sees", "0.221 (transparent over faint lines)")
def unseen() -> str:
    import test_unseen as pages

    from sweetrl.browser import Renderer
    from sweetrl.config.settings import BrowserSettings
    from sweetrl.frontend.layout import similarity

    with Renderer(BrowserSettings(cache="", tabs=1)) as renderer:
        reference = renderer.render(pages.HONEST + pages.CARDS + pages.THINGS)

        def worth(html: str) -> float:
            return similarity(renderer.render(pages.HONEST + html), reference).score

        covers = [pages.COVER.format(each) for each in (pages.FAINT, pages.BLACK)]
        gains = []
        for html in (*pages.UNSEEN.values(), *pages.PALE.values()):
            gains.append(worth(html) - worth("".join(each for each in covers if each in html)))
    return f"at most {max(gains):.3f} in {len(gains)} pages"


def counts() -> list[str]:
    """What the tests try, counted."""
    import test_growth as growth
    from attacks import ATTACKS
    from fuzz_targets import TARGETS
    from honest_programs import programs
    from test_attacks import MODES

    finds = [path for path in (TESTS / "fuzz" / "finds").glob("*-*") if path.is_file()]
    shapes = sum(len(shapes) for _, shapes in growth.CASES.values())
    return [
        f"{len(ATTACKS)} attacks of programs in {len(MODES) + 1} modes",
        f"{len(programs())} honest programs",
        f"{shapes} shapes of growing inputs for {len(growth.CASES)} readers",
        f"{len(TARGETS)} targets of the fuzzer, {len(finds)} finds kept",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="of findings; default: all")
    numbers = parser.parse_args().numbers
    processor = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    print(f"{date.today()}, {processor[1] if processor else platform.machine()}, load {os.getloadavg()[0]:.1f}\n")
    print("| | what | before | after |\n|---|---|---|---|")
    for number, what, before, prove in PROOFS:
        if numbers and number not in numbers:
            continue
        try:
            after = prove()
        except UserError as error:  # no browser, no Landlock
            after = f"not tried here: {error}"
        print(f"| {number} | {what} | {before} | {after} |", flush=True)
    print("\n" + "; ".join(counts()))


if __name__ == "__main__":
    main()
