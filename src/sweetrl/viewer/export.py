"""The viewer as a folder: the same page with its data as scripts, so that it opens from a disk as from a web server.

data/meta.js          columns, their words, overview
data/rows-N.js        the table in parts
data/words-N.js       the words of dialogues in small letters, read when something is searched for
data/dialogues-N.js   dialogues with all their words, read when one of them is opened
"""

from __future__ import annotations

import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.io import making_folder, publish
from sweetrl.types import Trajectory
from sweetrl.viewer.dialogue import can_run, pages_of
from sweetrl.viewer.index import SHARD
from sweetrl.viewer.overview import linked_report
from sweetrl.viewer.server import ASSETS, POLICY, Viewer

WORDS, DIALOGUES = 1_000, 50  # rows in a file
META = Path("data/meta.js")


def export(viewer: Viewer, out: Path, sample: int) -> int:
    """Write the viewer with all its dialogues into the folder `out`; return how many there are.

    Of `sample` dialogues, spread over all, the folder also holds what the server computes on request: test runs with
    all values, pictures, log-ratios of tokens, prompts. `out` may be an earlier export, which is replaced.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / META).exists())):
        raise UserError(f"{out}: this is no earlier export; name another folder, or remove it.")
    with making_folder(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        made = Path(scratch) / "made"  # a folder of its own: a temporary one is for its owner alone
        _write(viewer, made, sample)
        publish(made, out)
    return viewer.dialogues.catalogue.count


def _write(viewer: Viewer, folder: Path, sample: int) -> None:
    catalogue = viewer.dialogues.catalogue
    (folder / "data").mkdir(parents=True)
    for path in ASSETS.iterdir():
        text = path.read_text(encoding="utf-8")
        (folder / path.name).write_text(_for_a_disk(text) if path.name == "index.html" else text, encoding="utf-8")
    report = linked_report(viewer.target, "index.html")
    if report is not None:
        (folder / "report.html").write_text(report, encoding="utf-8")
    sizes = {"shard": SHARD, "words_shard": WORDS, "dialogues_shard": DIALOGUES}
    _script(folder / META, "meta", viewer.meta() | sizes | {"heat": False, "server": False})
    for number, first in enumerate(range(0, catalogue.count, SHARD)):
        _script(folder / f"data/rows-{number}.js", f"rows-{number}", catalogue.rows(first // SHARD))
    for number, first in enumerate(range(0, catalogue.count, WORDS)):
        _script(folder / f"data/words-{number}.js", f"words-{number}", catalogue.words(first, WORDS))
    chosen = set(range(0, catalogue.count, max(1, catalogue.count // sample))[:sample]) if sample else set()
    every = viewer.dialogues.every()
    with Meter("export", catalogue.count, "dialogues") as meter:
        for number in range(-(-catalogue.count // DIALOGUES)):
            part = []
            for row, dialogue, shown in islice(every, DIALOGUES):
                computed = {"computed": _computed(viewer, dialogue)} if dialogue is not None and row in chosen else {}
                part.append(shown | computed)
            _script(folder / f"data/dialogues-{number}.js", f"dialogues-{number}", part)
            meter(len(part))


def _computed(viewer: Viewer, dialogue: Trajectory) -> dict[str, Any]:
    """What the server computes of a dialogue on request, for the folder. What cannot be computed is left out."""
    domain = viewer.dialogues.catalogue.domains.of(dialogue.task.suite)
    possible = {"run": can_run(dialogue), "pictures": any(pages_of(dialogue, domain))}
    possible["heat"] = viewer.heat.there and bool(dialogue.turns)
    possible["prompts"] = viewer.heat.base_there and any(turn.prompt_ids for turn in dialogue.turns)
    return {what: viewer.compute(what, dialogue, domain) for what, there in possible.items() if there}


def _for_a_disk(page: str) -> str:
    """The page with its data and its policy within: there are no headers, and browsers do not take files for 'self'."""
    rules = POLICY.replace("'self'", "'self' file:").replace("; frame-ancestors 'none'", "")
    page = page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{rules}">', 1)
    return page.replace("</head>", f'<script src="{META.as_posix()}" defer></script>\n</head>', 1)


def _script(path: Path, name: str, value: Any) -> None:
    """Write `value` as a script that hands it to the page. In ASCII, so that no character ends a string."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    path.write_text(f'sweetrl.take("{name}",{text});\n', encoding="ascii")
