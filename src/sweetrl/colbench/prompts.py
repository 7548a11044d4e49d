"""The prompts: shipped ones by name, a user's own by path. Placeholders are {word}; other braces are left alone."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path

from sweetrl.colbench.types import Suite, Task
from sweetrl.errors import UserError

# The agent's prompts by the names that params.yaml uses, the suite's name in front; the others are named by their file.
AGENT_PROMPTS = ("short", "full", "single")
PRIVILEGED = {"backend": "privileged", "frontend": "privileged_page"}


def system_prompt(name_or_path: str, suite: Suite = "backend") -> str:
    """Return the agent's system prompt: "short", "full" or "single" (to answer at once), or the text of your file."""
    return load_prompt(f"{suite}_agent_{name_or_path}" if name_or_path in AGENT_PROMPTS else name_or_path)


def privileged_prefix(task: Task) -> str:
    """Return the text that puts the training-time information c in front of the critic's system prompt.

    c is the reference: a program, or a page's HTML. Few words around it, because a small critic reads them at every
    turn. Only the critic may see it.
    """
    return render(PRIVILEGED[task.suite], reference=task.ground_truth.strip("\n")) + "\n"


def render(name_or_path: str, **values: str) -> str:
    """Fill a prompt's {placeholders} with `values` in one pass: braces inside the values (code) stay as they are.

    Raises UserError where the prompt lacks one of the placeholders.
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
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(
            f"{name_or_path}: there is no such prompt; name a text file or one of: {', '.join(AGENT_PROMPTS)}."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start + 1} is not UTF-8; convert the prompt file to UTF-8.") from error
    if not text:
        raise UserError(f"{path}: the prompt file is empty; write the prompt into it.")
    return text


@lru_cache
def _shipped(name: str) -> str | None:
    if not re.fullmatch(r"[a-z_]+", name):
        return None
    file = resources.files("sweetrl") / "prompts" / f"{name}.txt"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
