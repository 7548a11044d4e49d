"""One file rendered from the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from sweetrl.browser.renderer import Renderer
from sweetrl.config.settings import BrowserSettings
from sweetrl.errors import UserError
from sweetrl.io import atomic_path, write_json


def render_file(file: Path, out: Path, facts: Path | None, settings: BrowserSettings) -> dict[str, str]:
    """Render `file` to `out` (PNG), write everything else about it to `facts` (JSON), and return a summary."""
    try:
        html = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise UserError(f"{file}: there is no such file; name a file of HTML.") from error
    with Renderer(settings.model_copy(update={"cache": ""})) as renderer:
        page = renderer.render(html)
    with atomic_path(out) as temporary:
        temporary.write_bytes(page.png)
    if facts is not None:
        written = asdict(page)
        del written["png"], written["others"]
        write_json(facts, written)
    return {
        "status": page.status,
        "size": f"{page.width} x {page.height}",
        "elements": str(len(page.elements)),
        "flags": ", ".join(page.flags) or "none",
        "renderer": page.renderer,
        "picture": str(out),
    }
