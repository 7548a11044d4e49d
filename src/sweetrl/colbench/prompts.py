"""The prompts: shipped ones by name, a user's own by path. Placeholders are {word}; other braces are left alone."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.errors import UserError
from sweetrl.text import printable

if TYPE_CHECKING:
    from sweetrl.config.settings import AgentSettings, JudgeSettings, SimulatorSettings

# The agent's prompts by the names that params.yaml uses; a domain says what they are. Others are named by their file.
AGENT_PROMPTS = ("short", "full", "single")
SHOWN = 300  # characters of an unknown prompt's name that the error shows

# Numbers as the prompts write them; greater ones are written in digits.
COUNTS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
PLACES = (
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
)


def agent_prompt(suite: str, name: str, max_turns: int) -> str:
    """Return a suite's shipped prompt for an agent with `max_turns` turns."""
    in_words = max_turns <= len(COUNTS)
    count = COUNTS[max_turns - 1] if in_words else str(max_turns)
    text = load_prompt(f"{suite}_agent_{name}")
    text = text.replace("{replies}", f"{count} {'reply' if max_turns == 1 else 'replies'}")
    return text.replace("{last}", PLACES[max_turns - 1] if in_words else "last")


def render(name_or_path: str, **values: str) -> str:
    """Fill a prompt's {placeholders} with `values` in one pass: braces inside the values (code) stay as they are.

    Raises UserError for a placeholder that is not in the prompt.
    """
    text = load_prompt(name_or_path)
    for name in values:
        if f"{{{name}}}" not in text:
            raise UserError(f"prompt {name_or_path}: the placeholder {{{name}}} is missing; put it in.")
    return re.sub(r"\{(" + "|".join(values) + r")\}", lambda match: values[match[1]], text)


def load_prompt(name_or_path: str) -> str:
    """Return a prompt without the blank space around it: a shipped one by name, otherwise a file's text."""
    shipped = _shipped(name_or_path)
    if shipped is not None:
        return shipped
    path = Path(name_or_path)
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:  # no such file, no text, or a prompt where the name of its file should be
        shown = printable(name_or_path if len(name_or_path) <= SHOWN else f"{name_or_path[:SHOWN]}...")
        raise UserError(
            f"{shown}: there is no such prompt in UTF-8; name a text file or one of: {', '.join(AGENT_PROMPTS)}."
        ) from error
    if not text:
        raise UserError(f"{path}: the prompt file is empty; write the prompt into it.")
    return text


def prompt_files(agent: AgentSettings, judge: JudgeSettings, simulator: SimulatorSettings) -> dict[str, Path]:
    """Return the prompt files of the user's own that the sections name, by their keys; none that is not there."""
    named = {"agent.prompt": agent.prompt, "judge.prompt": judge.prompt}
    if simulator.kind in ("llm", "vision"):
        named["simulator.prompt"] = simulator.prompt
    own = {key: Path(name) for key, name in named.items() if name not in ("", *AGENT_PROMPTS) and not _shipped(name)}
    return {key: path for key, path in own.items() if os.path.isfile(path)}  # noqa: PTH113 - any name, however long


@lru_cache
def _shipped(name: str) -> str | None:
    if not re.fullmatch(r"[a-z_]+", name):
        return None
    file = resources.files("sweetrl") / "prompts" / f"{name}.txt"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
