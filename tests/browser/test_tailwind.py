"""Purging keeps exactly the rules that a page can use, in their order."""

import lzma
import re
from importlib.resources import files

from sweetrl.browser import tailwind


def rules(css: str) -> list[tuple[str, ...]]:
    """Every declaration block with all that it stands in, in order; media queries as the conditions they join."""
    blocks: list[tuple[str, ...]] = []
    open_: list[str] = []
    for text, brace in re.findall(r"([^{}]*)([{}])", css):
        if brace == "{":
            open_.extend(text.removeprefix("@media ").split(" and ") if text.startswith("@media") else [text])
            sizes.append(text.count(" and ") + 1 if text.startswith("@media") else 1)
        else:
            if text:
                blocks.append((*open_, text))
            del open_[len(open_) - sizes.pop() :]
    return blocks


sizes: list[int] = []


def test_all_classes_give_the_full_sheet():
    packed = files("sweetrl.browser").joinpath("vendor", "tailwind-2.2.19.min.css.xz").read_bytes()
    full = re.sub(r"/\*.*?\*/", "", lzma.decompress(packed).decode(), flags=re.S)
    assert rules(tailwind.purge(tailwind._sheet().by_class)) == rules(full)


def test_a_page_gets_what_it_uses_and_no_more():
    css = tailwind.purge(["text-sm", "md:flex", "w-1/2", "py-0.5", "unknown"])
    assert ".text-sm{font-size:.875rem;line-height:1.25rem}" in css
    assert r"@media (min-width:768px){.md\:flex{display:flex}}" in css
    assert r".w-1\/2{width:50%}" in css
    assert r".py-0\.5{padding-top:.125rem;padding-bottom:.125rem}" in css
    assert ".text-lg" not in css
    assert "box-sizing:border-box" in css  # the base styles are always there
    assert len(css) < 8000


def test_rules_of_two_classes_need_both():
    assert "group:hover" not in tailwind.purge(["group-hover:bg-red-500"])
    assert ".group:hover .group-hover\\:bg-red-500" in tailwind.purge(["group", "group-hover:bg-red-500"])


def test_the_licence_lies_beside_the_sheet():
    assert "MIT License" in files("sweetrl.browser").joinpath("vendor", "tailwind-2.2.19.LICENSE").read_text()
