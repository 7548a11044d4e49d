"""From an answer's text to Python source, by official or `fixed` rules. Never parses: the text is untrusted.

The official evaluator drops the text before the first "```python" (else "```") and after the next "```", and gives an
answer whose raw text holds a banned word nothing. `fixed_sources` understands what models really write: every kind of
fence, none, prose around the code, several blocks. It returns alternatives; the sandbox runs the first that compiles.
"""

from __future__ import annotations

import re
import textwrap

BANNED = (
    *("import os", "from os", "import sys", "from sys", "sudo"),
    *("transformers", "exit(", "quit(", "argparse"),
)
# None of these patterns backtracks (`*+`, `++`), so that their time grows linearly with the text.
_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\n`]*+)$", re.MULTILINE)
_MARK = "\ufeff"  # the byte order mark at the start of a text: Python removes it from files, but not from strings
_PYTHON = frozenset({"", "python", "py", "python3", "py3", "python2", "ipython", "pycon", "code"})
_OPENS = re.compile(r"(?:async\s+def|def|class|import|from|@)\b|@")
_CODE = re.compile(
    r"(?:async|def|class|import|from|if|elif|else|for|while|try|except|finally|with|return|raise|assert|del|global|pass)\b"
    r"|[#@)\]}\"']"
    r"|[A-Za-z_][\w.]*(?:\[[^\]]*\])?\s*(?:[-+*/%|&^@]|//|\*\*|>>|<<)?=(?!=)"
    r"|[A-Za-z_]\w*+\s*+:[\w\[\], .\t]++=|[A-Za-z_][\w.]*+\("
)


def banned_word(answer: str) -> str | None:
    """The first word of the official ban list that the raw text holds, or None."""
    return next((word for word in BANNED if word in answer), None)


def official_source(answer: str) -> str:
    """What the official evaluator executes of `answer`."""
    if "```python" in answer:
        answer = answer.split("```python")[1].split("```")[0]
    if "```" in answer:
        answer = answer.split("```")[1].split("```")[0]
    return answer


def fixed_sources(answer: str, function: str) -> tuple[str, ...]:
    """Readings of `answer` as source that defines `function`, the most likely first; no two are equal."""
    readings: list[str] = []
    blocks = _blocks(answer)
    if blocks:
        defines = re.compile(
            rf"^[ \t]*+(?:async[ \t]+)?(?:def[ \t]+{re.escape(function)}\b|{re.escape(function)}[ \t]*=)", re.MULTILINE
        )
        defining = [index for index, block in enumerate(blocks) if defines.search(block)]
        if defining:
            # The last version counts; blocks of helpers that stand apart belong to it.
            last = defining[-1]
            versions = set(defining)
            helpers = [
                b
                for i, b in enumerate(blocks)
                if i not in versions and re.search(r"^(?:def|class|import|from)\b", b, re.M)
            ]
            if helpers:
                readings.append("\n".join([*helpers, blocks[last]]))
            readings.append(blocks[last])
            readings += [blocks[index] for index in reversed(defining[:-1])]
        else:
            readings += ["\n".join(blocks), *blocks]
    readings.append(answer)
    readings.append(_without_prose(answer))
    readings = [reading.lstrip(_MARK) for reading in readings if reading.strip()]
    return tuple(dict.fromkeys(readings))[:6] or (answer,)


def _blocks(text: str) -> list[str]:
    """The contents of fenced blocks that may hold Python, dedented; an unclosed fence runs to the end."""
    blocks: list[str] = []
    start, fence, python = -1, "", False
    for match in _FENCE.finditer(text):
        mark, tag = match[2], match[3].strip().split(" ")[0].strip("{}.").lower()
        if start < 0:
            start, fence, python = match.end() + 1, mark, tag in _PYTHON
        elif mark[0] == fence[0] and len(mark) >= len(fence) and not tag:
            if python:
                blocks.append(text[start : match.start()])
            start = -1
    if start >= 0 and python:
        blocks.append(text[start:])
    if not blocks and "```" in text:  # a fence in the middle of a line
        blocks.append(re.sub(r"^(?:python3?|py)\b", "", text.split("```")[1], flags=re.IGNORECASE))
    return [
        textwrap.dedent(block.expandtabs(4) if "\t" in block and "    " in block else block)
        for block in blocks
        if block.strip()
    ]


def _without_prose(text: str) -> str:
    """The lines from the first that opens code to the last that can be code."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if _OPENS.match(line.lstrip())), None)
    if first is None:
        return text
    lines = textwrap.dedent("\n".join(lines[first:])).splitlines()
    kept: list[str] = []
    for line in lines:
        if line.strip() and not line[0].isspace() and not _CODE.match(line):
            break
        kept.append(line)
    return "\n".join(kept)
