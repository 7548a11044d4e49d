"""What mkdocs does beyond its plugins: pages from outside docs/, MathML, the commands, nothing from the network.

Pages link to each other, and to files of the repository, as on a forge (`../reproduce/small/results.md`). In the site a
file outside docs/ lies in `repository/`, with the links of a page mended to match.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from commands import command_page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = "repository/"
PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
    "LICENSE",
)  # in the navigation, or linked from it
COMMANDS = "<!-- commands -->"
LINK = re.compile(r"(\]\()([^()\s]+)(\))")
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.S | re.M)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?=[^>]*(?:stylesheet|icon|preconnect|preload)))[^>]*(?:src|href)=["']?(?:https?:)?//""",
    re.I,
)


def site_path(name: str) -> str:
    """Return where a file of the repository, named from its root, lies in the site's sources."""
    return name.removeprefix("docs/") if name.startswith("docs/") else OUTSIDE + name


def repository_path(source: str) -> str:
    """Return the file of the repository that a source of the site is; the other way round."""
    return source.removeprefix(OUTSIDE) if source.startswith(OUTSIDE) else f"docs/{source}"


def linked(page: str, target: str) -> str | None:
    """Return the repository's file that a link of a page means, both from the root; None if it leads elsewhere."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
        return None
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    if (ROOT / name).is_dir():
        name = posixpath.join(name, "README.md")
    return None if name.startswith("..") else name


def outside_code(text: str, change: Any) -> str:
    """Apply `change` to what is not in a fenced block."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages name, and those that the added pages name."""
    waiting = [repository_path(file.src_uri) for file in files.documentation_pages()] + list(PAGES)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        if not (ROOT / name).is_file():
            continue
        if not name.startswith("docs/"):
            files.append(File.generated(config, site_path(name), abs_src_path=str(ROOT / name)))
        if name.endswith(".md"):
            found = LINK.findall(FENCE.sub("", (ROOT / name).read_text(encoding="utf-8")))
            fresh = {one for _, target, _ in found if (one := linked(name, target))} - seen
            seen |= fresh
            waiting += sorted(one for one in fresh if not one.startswith("docs/") or one.endswith(".md"))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at the site's places, and put the command line's own words into its page."""
    here = page.file.src_uri
    name = repository_path(here)

    def moved(match: re.Match[str]) -> str:
        to = linked(name, match[2])
        if to is None:
            return match[0]
        _, hash_, anchor = match[2].partition("#")
        return match[1] + posixpath.relpath(site_path(to), posixpath.dirname(here) or ".") + hash_ + anchor + match[3]

    markdown = outside_code(markdown, lambda text: LINK.sub(moved, text))
    markdown = re.sub(
        r"^```console$", "```bash", markdown, flags=re.M
    )  # coloured as commands: no prompts stand before them
    return markdown.replace(COMMANDS, command_page()) if COMMANDS in markdown else markdown


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Set formulas: what arithmatex has marked becomes MathML, which browsers draw without a script."""

    def formula(match: re.Match[str]) -> str:
        block = match["tag"] == "div"
        try:
            return convert(html.unescape(match["latex"]), display="block" if block else "inline")
        except Exception as error:
            raise PluginError(f"{page.file.src_uri}: the formula {match['latex']!r} cannot be set: {error}") from error

    return re.sub(
        r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', formula, content, flags=re.S
    )


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would load anything from the network: the site is read without one."""
    found = LOADED.search(output)
    if found:
        raise PluginError(
            f"{page.file.src_uri} loads something from the network: {output[found.start() : found.start() + 160]}"
        )
    return output
