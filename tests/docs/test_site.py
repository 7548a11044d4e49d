"""The docs' site: its flowcharts, its page of commands, and, where it has been built, what it is without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

from sweetrl.browser.binary import find_browser
from sweetrl.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
SITE = REPOSITORY / os.environ.get("SITE", "build/docs")


def machinery(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "docs" / "site" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_has_every_command_and_option() -> None:
    from typer.main import get_command

    from sweetrl.cli.main import app

    commands = machinery("commands")
    page = commands.command_page()
    found = list(commands.leaves(get_command(app), ("sweetrl",)))
    assert len(found) > 12
    for words, command in found:
        part = page.split(f"## {' '.join(words)}\n", 1)[1].partition("\n## ")[0]
        for parameter in command.params:
            if parameter.hidden or parameter.name == "help":
                continue
            options = [option for option in parameter.opts if option.startswith("-")]
            assert all(option in part for option in options), (words, options)
    assert "| `--dtype bfloat16\\|float16\\|float32` | `bfloat16` |" in page


def test_a_flowchart_is_drawn_with_its_arrows_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = machinery("flowchart")
    svg = chart.draw("flowchart LR\n  a --> b[the <b>] & c\n  b & c -->|if so| d{yes?}\n  e[(alone)] --> a\n")
    assert 'aria-label="a to the &lt;b&gt;; a to c; the &lt;b&gt; to yes?; c to yes?; alone to a"' in svg
    assert svg.count("<rect") == 4 and svg.count("<polygon") == 1 and svg.count(">if so<") == 2
    left = {label: float(x) for x, label in re.findall(r'<text x="([\d.]+)"[^>]*>([^<]+)<', svg)}
    assert left["alone"] < left["a"] < left["c"] < left["yes?"], "from left to right"
    for text, said in (
        ("graph LR\n a --> b", "begins with"),
        ("flowchart TD\n a((round)) --> b", "no node of a known"),
    ):
        with pytest.raises(ValueError, match=said):
            chart.draw(text)


class Links(HTMLParser):
    """What a page leads to, what it loads, and the places in it that have a name."""

    def __init__(self, text: str):
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := values.get(key))}
        self.targets += [value for key in ("href", "src") if (value := values.get(key))]


@pytest.fixture(scope="module")
def site() -> dict[Path, Links]:
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make docs-site (make test-docs does both)")
    return {path: Links(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html") if path.name != "404.html"}


def inner(site: dict[Path, Links]) -> Iterator[tuple[Path, str]]:
    for path, links in site.items():
        for target in links.targets:
            if not urlsplit(target).scheme and not target.startswith("//"):
                yield path, target


def test_every_link_of_the_site_leads_somewhere(site: dict[Path, Links], capsys: pytest.CaptureFixture[str]) -> None:
    found = list(inner(site))
    broken = []
    for path, target in found:
        parts = urlsplit(target)
        to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        to = to / "index.html" if to.is_dir() else to
        if not to.exists() or (parts.fragment and to in site and unquote(parts.fragment) not in site[to].names):
            broken.append(f"{path.relative_to(SITE)}: {target}")
    with capsys.disabled():
        print(f"\nthe docs' site: {len(site)} pages, {len(found)} links within it")
    assert not broken


def test_formulas_are_set_and_docstrings_are_there(site: dict[Path, Links]) -> None:
    concepts = (SITE / "concepts.html").read_text(encoding="utf-8")
    assert concepts.count("<math") > 40 and "arithmatex" not in concepts and "$$" not in concepts
    api = (SITE / "api.html").read_text(encoding="utf-8")
    assert "sweetrl.api.learning.train_critic" in site[SITE / "api.html"].names and "Eq" in api
    assert "sweetrl-evaluate" in site[SITE / "cli.html"].names, "the commands' own words"


def test_no_list_table_or_quote_is_set_as_a_paragraph(site: dict[Path, Links]) -> None:
    for path in site:  # a forge does without the empty line before a list; the site needs it
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<blockquote>\s*<p>[^<]*&gt; ", text), path.relative_to(SITE)
        assert not re.search(r"<p>[^<]*(?:<(?!/p>)[^<]*)*\n(?:- |\d+\. |\| )", text), path.relative_to(SITE)


def test_the_search_works_from_the_disk(site: dict[Path, Links]) -> None:
    try:
        browser = find_browser()
    except UserError as error:
        pytest.skip(str(error))
    options = ["--headless", "--virtual-time-budget=8000", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    address = (SITE / "index.html").resolve().as_uri() + "?q=listwise"
    found = subprocess.run(
        [str(browser), *options, "--dump-dom", address], capture_output=True, text=True, timeout=300, check=False
    ).stdout
    assert re.search(r"\d+ matching documents", found), "the index is searched in the page"
    assert "concepts.html" in found or "parameters.html" in found
