"""Draw docs/images/terminal.svg: one task before and after training, from the dialogues of a finished run.

    python docs/site/terminal.py [--task synthetic-test-7-00006] [--data data/evaluation] [--out FILE]

The lines appear one after the other by a style sheet inside the picture: no script, no service, and a still picture for
readers who ask for less motion.
"""

from __future__ import annotations

import argparse
import textwrap
from html import escape
from pathlib import Path

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.types import Trajectory

COLUMNS, LINE, LETTER, WIDTH = 54, 19, 7.55, 920
FONT = 'ui-monospace, SFMono-Regular, Menlo, "Liberation Mono", "DejaVu Sans Mono", monospace'
COLOURS = {"agent": "#7fd1c7", "user": "#d7dae0", "bad": "#f08a7d", "good": "#9fd67f", "quiet": "#8b93a1"}


def find(folder: Path, task: str) -> Trajectory:
    """Return the first dialogue about a task in a folder of shards."""
    for one in TrajectoryStore(folder):
        if one.task.id == task:
            return one
    raise SystemExit(f"{folder} has no dialogue about {task}; name another task with --task.")


def lines_of(dialogue: Trajectory, folder: Path) -> list[tuple[str, str]]:
    """Return what a pane shows, as (colour, text): who said what, the program's size, and the tests' verdict."""
    found = [
        ("quiet", f"$ sweetrl show {dialogue.task.id}"),
        ("quiet", f"    --dialogues {folder.as_posix()}"),
        ("", ""),
    ]
    for message in dialogue.messages[1:-1]:
        who = "agent" if message.role == "assistant" else "user"
        words = textwrap.wrap(message.content, COLUMNS - 8)
        found += [(who, f"{who if at == 0 else '':>5}  {line}") for at, line in enumerate(words)]
    program = (dialogue.answer or "").strip().strip("`").removeprefix("python").strip().splitlines()
    passed = sum(test.passed for test in dialogue.tests)
    verdict = "good" if passed == len(dialogue.tests) else "bad"
    found += [("agent", f"agent  I WANT TO ANSWER: a program of {len(program)} lines"), ("", "")]
    return [*found, (verdict, f"{passed} of {len(dialogue.tests)} hidden tests passed")]


def pane(lines: list[tuple[str, str]], left: float, top: float, wait: float) -> str:
    """Return the text of a pane; each line appears a little after the one before."""
    parts = []
    for number, (colour, text) in enumerate(lines):
        if text:
            parts.append(
                f'<text class="line" x="{left}" y="{top + number * LINE}" fill="{COLOURS[colour]}" '
                f'style="animation-delay:{wait + 0.3 * number:.2f}s">{escape(text)}</text>'
            )
    return "".join(parts)


def picture(before: Trajectory, after: Trajectory, folder: Path) -> str:
    """Return the picture as SVG."""
    panes = [lines_of(before, folder / "base"), lines_of(after, folder / "trained")]
    request = textwrap.wrap(before.task.problem_description, int((WIDTH - 40) / LETTER) - 8)
    top = 62 + LINE * (len(request) + 3)
    height = top + LINE * max(map(len, panes)) + 4
    words = [("user   " if number == 0 else " " * 7) + line for number, line in enumerate(request)]
    asked = "".join(
        f'<text x="20" y="{62 + LINE * number}" fill="{COLOURS["user"]}">{escape(line)}</text>'
        for number, line in enumerate(words)
    )
    heads = "".join(
        f'<text x="{x}" y="{top - LINE * 1.7}" fill="#ffffff" font-weight="bold">{text}</text>'
        for x, text in ((20, "Before training"), (WIDTH / 2 + 10, "After training"))
    )
    dots = zip((20, 38, 56), (COLOURS["bad"], "#e8c26a", COLOURS["good"]), strict=True)
    buttons = "".join(f'<circle cx="{x}" cy="18" r="5.5" fill="{colour}"/>' for x, colour in dots)
    verdicts = f"Before training: {panes[0][-1][1]}. After training: {panes[1][-1][1]}."
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>One task, before and after training</title>
<desc>{escape(before.task.problem_description)} {verdicts}</desc>
<style>
text {{ font: 12.5px {FONT}; white-space: pre; }}
.line {{ animation: appear 0.3s backwards; }}
@keyframes appear {{ from {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ .line {{ animation: none; }} }}
</style>
<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#1b1f27"/>
{buttons}
<line x1="{WIDTH / 2}" x2="{WIDTH / 2}" y1="{top - LINE * 2.6:.0f}" y2="{height - 14:.0f}" stroke="#3a404c"/>
{asked}
{heads}
{pane(panes[0], 20, top, 0.2)}
{pane(panes[1], WIDTH / 2 + 10, top, 0.35)}
</svg>
"""


def main() -> None:
    """Draw the picture that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="synthetic-test-7-00006")
    parser.add_argument("--data", type=Path, default=Path("data/evaluation"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/terminal.svg"))
    chosen = parser.parse_args()
    both = [find(chosen.data / policy, chosen.task) for policy in ("base", "trained")]
    chosen.out.write_text(picture(*both, chosen.data), encoding="utf-8")
    print(chosen.out)


if __name__ == "__main__":
    main()
