"""The process that renders a chat template for sweetrl.chat_templates: run by its path, never imported.

It reads one JSON object from stdin, gives itself limits, renders every dialogue and writes a JSON list to stdout:
{"text": ...} or {"error": ...} for each. A template is a small program without bounds of its own; what it does here
ends with this process.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime as real
from pathlib import Path
from typing import Any


class Pinned:
    """Stands for datetime in templates that print the day: equal templates give equal texts."""

    day = real(2024, 7, 26)

    @classmethod
    def now(cls) -> real:
        """The day that every template sees."""
        return cls.day


def limit(seconds: int, bytes_: int) -> None:
    """Allow `seconds` of processor time and `bytes_` of memory from here on, and no files."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (end, end))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + bytes_, mapped + bytes_))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def render(template: str, dialogue: list[dict[str, str]], values: dict[str, Any], most: int) -> dict[str, str]:
    """Render one dialogue; what the template raises is an error, not ours."""
    from transformers.utils import chat_template_utils

    try:
        found: Any = chat_template_utils.render_jinja_template(
            conversations=[dialogue], chat_template=template, add_generation_prompt=True, **values
        )
    except Exception as error:
        return {"error": f"{error}"[:500] or type(error).__name__}
    text = found[0][0]  # of the one dialogue; declared as a text, returned with the places of replies
    return {"text": text} if len(text) <= most else {"error": f"it makes more than {most} characters of a few words"}


def main() -> None:
    """Answer the one request on stdin."""
    from transformers.utils import chat_template_utils

    request = json.loads(sys.stdin.buffer.read())
    chat_template_utils.datetime = Pinned  # type: ignore[misc,assignment]
    limit(request["seconds"], request["bytes"])
    answers = [
        render(request["template"], dialogue, request["values"], request["most"]) for dialogue in request["dialogues"]
    ]
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
