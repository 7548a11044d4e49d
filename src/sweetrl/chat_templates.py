"""Chat templates, rendered where they can do no harm: in a process of their own, with limits, once for each template.

A template comes with a model's folder and is a program (Jinja): its sandbox keeps it from Python, but not from loops
without end or strings of gigabytes, not even while it is compiled. Ours only ever see a few fixed dialogues, so what
they make of them is remembered by their text, and a template is not looked at again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import digest, write_json
from sweetrl.model_files import TEMPLATE_BYTES
from sweetrl.paths import TEMPLATES, project_cache

# The template of the small agents that ship with the project: ours, so it needs no looking after.
OWN_TEMPLATE = (
    "{{ '<|begin|>' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

CPU_SECONDS = 5
MEMORY_BYTES = 256 * 2**20
MOST_CHARACTERS = 100_000
# For starting Python and importing transformers on a busy machine, too.
WALL_SECONDS = 120.0

_CHILD = Path(__file__).with_name("template_child.py")

Message = Mapping[str, str]
_known: dict[str, list[dict[str, str]]] = {}


def render_dialogues(
    template: str, dialogues: Sequence[Sequence[Message]], values: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return what `template` makes of each dialogue, up to a reply: {"text": ...} or {"error": ...}, in order.

    `values` are what the template sees besides the messages (JSON). A template that takes too much time or memory, or
    is too long, raises UserError; the sentence ends with what the template does, and the caller says whose it is.
    """
    if len(template.encode("utf-8", "surrogatepass")) > TEMPLATE_BYTES:
        raise UserError(f"it has more than {TEMPLATE_BYTES // 1024} KiB")
    if template == OWN_TEMPLATE:
        return [{"text": _render_own(dialogue, values)} for dialogue in dialogues]
    key = digest(_version(), template, dialogues, values)
    if key not in _known:
        folder = project_cache(TEMPLATES)
        place = None if folder is None else folder / f"{key}.json"
        found = None if place is None else _recall(place, len(dialogues))
        if found is None:
            found = _render(template, dialogues, values)
            if place is not None:
                # A cache that cannot be written costs time, no more.
                with contextlib.suppress(OSError, UserError):
                    write_json(place, found)
        _known[key] = found
    return _known[key]


def _version() -> str:
    from importlib.metadata import version

    return version("transformers") + " " + version("jinja2")


def _render_own(dialogue: Sequence[Message], values: Mapping[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    found: Any = render_jinja_template(
        conversations=[[dict(one) for one in dialogue]],
        chat_template=OWN_TEMPLATE,
        add_generation_prompt=True,
        **values,
    )
    return str(found[0][0])  # of the one dialogue; declared as a text, returned with the places of replies


def _render(template: str, dialogues: Sequence[Sequence[Message]], values: Mapping[str, Any]) -> list[dict[str, str]]:
    request = {
        "template": template,
        "dialogues": [[dict(one) for one in dialogue] for dialogue in dialogues],
        "values": dict(values),
        "seconds": CPU_SECONDS,
        "bytes": MEMORY_BYTES,
        "most": MOST_CHARACTERS,
    }
    # -P: the folder of this file has modules with the names of Python's own. One thread: none is used.
    command = [sys.executable, "-P", str(_CHILD)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request, default=str).encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"it needs more than {WALL_SECONDS:g} s for a dialogue of a few words") from error
    if done.returncode < 0:  # killed by its limits
        raise UserError(f"it needs more than {CPU_SECONDS} s of processor time for a dialogue of a few words")
    answers = _read(done.stdout, len(dialogues))
    if answers is None:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {done.returncode}"]
        raise UserError(f"it cannot be rendered ({said[-1][:300]})")
    return answers


def _recall(place: Path, count: int) -> list[dict[str, str]] | None:
    try:
        return _read(place.read_bytes(), count)
    except OSError:
        return None


def _read(content: bytes, count: int) -> list[dict[str, str]] | None:
    """`count` answers; None where these are none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    kinds = [list(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return found if len(kinds) == count == len(found) and all(one in (["text"], ["error"]) for one in kinds) else None
