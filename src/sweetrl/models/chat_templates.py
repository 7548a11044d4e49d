"""Chat templates, rendered where they can do no harm: in a process of their own, with limits, once for each template.

A template comes with a model's folder and is a program (Jinja): its sandbox keeps it from Python, but not from loops
without end or strings of gigabytes, not even while it is compiled. Run as a program, this module is that process: it
reads one JSON object from stdin, gives itself limits, and writes a JSON list to stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sweetrl.bounded import apart, limit
from sweetrl.errors import UserError
from sweetrl.models.check import TEMPLATE_BYTES

# The template of the small agents that ship with the project: ours, so it needs no looking after.
OWN_TEMPLATE = (
    "{{ '<|begin|>' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

CPU_SECONDS = 5
MOST_CHARACTERS = 100_000

Message = Mapping[str, str]


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
        return [{"text": _text(template, dialogue, values)} for dialogue in dialogues]
    request = {"template": template, "dialogues": [[dict(message) for message in dialogue] for dialogue in dialogues]}
    return _render_apart(json.dumps({**request, "values": dict(values)}, default=str), CPU_SECONDS)


def _text(template: str, dialogue: Sequence[Message], values: Mapping[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: Any = render_jinja_template(
        conversations=[[dict(message) for message in dialogue]],
        chat_template=template,
        add_generation_prompt=True,
        **values,
    )
    return str(rendered[0][0])  # of the one dialogue; declared as a text, returned with the places of replies


@lru_cache(maxsize=64)
def _render_apart(request: str, seconds: int) -> list[dict[str, str]]:
    """Let a process of at most `seconds` of processor time answer `request`."""
    answers: list[dict[str, str]] = json.loads(apart(__name__, str(seconds), request=request.encode()))
    return answers


# In the process of its own


class _OneDay:
    """Stands for datetime in templates that print the day: equal templates give equal texts."""

    @staticmethod
    def now() -> datetime:
        """The day that every template sees."""
        return datetime(2024, 7, 26)


def _answer(template: str, dialogue: Sequence[Message], values: Mapping[str, Any]) -> dict[str, str]:
    """Render one dialogue; what the template raises is an error, not ours."""
    try:
        text = _text(template, dialogue, values)
    except Exception as error:
        return {"error": f"{error}"[:500] or type(error).__name__}
    if len(text) > MOST_CHARACTERS:
        return {"error": f"it makes more than {MOST_CHARACTERS} characters of a few words"}
    return {"text": text}


def main() -> None:
    """Answer the one request on stdin."""
    from transformers.utils import chat_template_utils

    request = json.loads(sys.stdin.buffer.read())
    chat_template_utils.datetime = _OneDay  # type: ignore[misc,assignment]
    limit(int(sys.argv[1]))
    answers = [_answer(request["template"], dialogue, request["values"]) for dialogue in request["dialogues"]]
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
