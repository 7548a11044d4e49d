"""The page in a real Chromium, from a server and from a disk: every filter, addresses, hostile words, keys, widths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from chromium import Chromium, Tab
from made import EXPLAINED, TESTS

from sweetrl.evaluation.statistics import wilson_interval
from sweetrl.viewer.rows import FAULTS
from sweetrl.viewer.server import Viewer

Row = dict[str, Any]


@pytest.fixture(scope="module", params=["server", "disk"])
def tab(request: pytest.FixtureRequest, chromium: Chromium, address: str, folder: Path) -> Iterator[Tab]:
    """The page, opened from the server and from a disk, which logs no error."""
    with chromium.looking(address if request.param == "server" else f"file://{folder}/index.html") as opened:
        yield opened


def listed(tab: Tab, fragment: str) -> list[int]:
    """The rows that the list shows at an address."""
    tab.js(f"sweetrl.list.rows = null; sweetrl.go({json.dumps(fragment)}, true); 0")
    tab.until("sweetrl.list.rows !== null && !!document.querySelector('.told')")
    tab.settle()
    numbers: list[int] = tab.js("[...sweetrl.list.rows]")
    shown = tab.text(".told").replace(",", "").split()[0]
    assert int(shown) == len(numbers)
    return numbers


FILTERS: dict[str, Callable[[Row], Any]] = {
    **{f"{name}=yes": lambda row, name=name: row[name] for name in ("success", "held_out", "ranked", "needed_last")},
    **{f"{name}=no": lambda row, name=name: not row[name] for name in ("success", "held_out")},
    **{f"fault={name}": lambda row, name=name: (row[name] or 0) > 0 for name in FAULTS},
    "fault=repeated&fault=unhinted": lambda row: row["repeated"] and row["unhinted"],
    "method=trained&method=base": lambda row: row["method"] in ("trained", "base"),
    "method=trained&success=no": lambda row: row["method"] == "trained" and not row["success"],
    "method=nobody": lambda row: False,
    "stage=collect": lambda row: row["stage"] == "collect",
    "topic=wage": lambda row: row["topic"] == "wage",
    "first_fault=premature": lambda row: row["first_fault"] == "premature",
    "outcome=lost": lambda row: row["outcome"] == "lost",
    "source=data%2Ftrajectories": lambda row: row["source"] == "data/trajectories",
    "domain=backend": lambda row: row["domain"] == "backend",
    "reward=1e-7..": lambda row: (row["reward"] or 0) > 0,
    "reward=0.3..0.9": lambda row: row["reward"] is not None and 0.3 <= row["reward"] <= 0.9,
    "passed=..2": lambda row: row["passed"] is not None and row["passed"] <= 2,
    "turns=4..": lambda row: row["turns"] >= 4,
    "questions=1..2": lambda row: 1 <= row["questions"] <= 2,
    "advantage=-1..0.1": lambda row: row["advantage"] is not None and row["advantage"] <= 0.1,
    "least_advantage=..-0.3": lambda row: row["least_advantage"] is not None and row["least_advantage"] <= -0.3,
    "pairs=1..": lambda row: row["pairs"] >= 1,
    "tokens=12..18": lambda row: 12 <= row["tokens"] <= 18,
}


def test_every_filter_lists_the_rows_that_are_like_that(tab: Tab, rows: list[Row]) -> None:
    for query, holds in FILTERS.items():
        expected = [row["row"] for row in rows if holds(row)]
        assert listed(tab, f"#/dialogues?{query}") == expected, query
        assert query == "method=nobody" or expected, f"{query} tests nothing"
        chips = tab.js("document.querySelectorAll('.chips .chip').length")
        keys = {part.partition("=")[0] for part in query.split("&") if "fault" not in part}
        assert chips == len(keys) + query.count("fault="), query


def test_every_order(tab: Tab, rows: list[Row]) -> None:
    for key in ("task", "reward", "passed", "turns", "questions", "advantage", "least_advantage", "tokens"):
        for sign, down in (("", False), ("-", True)):
            values = [rows[row][key] for row in listed(tab, f"#/dialogues?sort={sign}{key}")]
            numbers = [value for value in values if value is not None]
            assert numbers == sorted(numbers, reverse=down) and values[: len(numbers)] == numbers, f"{sign}{key}"
    most = listed(tab, "#/dialogues?sort=-faults")
    sums = [sum(rows[row][name] or 0 for name in FAULTS) for row in most]
    assert sums == sorted(sums, reverse=True)
    listed(tab, "#/dialogues")
    tab.click("[title='Turn the order round']")
    assert tab.js("[...sweetrl.list.rows]") == [*range(len(rows))][::-1]


def test_searching_is_the_same_as_the_server_says(tab: Tab, viewer: Viewer) -> None:
    for query in ("RATE", '"is there one"', "onerror", TESTS[2].id, "nowhere-to-be-found", "free pack"):
        numbers = listed(tab, f"#/dialogues?{urlencode({'q': query})}")
        assert numbers == viewer.dialogues.catalogue.search(query), query


def test_won_by_one_and_lost_by_the_other(tab: Tab, rows: list[Row]) -> None:
    both: dict[str, dict[str, Row]] = {}
    for row in rows:
        both.setdefault(row["task"], {})[row["method"]] = row
    won = [
        two["trained"]["row"]
        for two in both.values()
        if "trained" in two and two["trained"]["success"] and not two["base"]["success"]
    ]
    assert won and listed(tab, "#/dialogues?won=trained&lost=base") == won
    link = tab.js("document.querySelector('.inner a').getAttribute('href')")
    tab.to(link)
    tab.until("document.querySelectorAll('.side').length === 2")
    heads = tab.js("[...document.querySelectorAll('.sidehead')].map(el => el.innerText.replace(/\\s+/g, ' '))")
    assert heads[0].startswith("trained solved 10 of 10") and heads[1].startswith("base not solved")


def test_counts_beside_filters_are_what_choosing_them_would_list(tab: Tab, rows: list[Row]) -> None:
    listed(tab, "#/dialogues?method=trained")
    counts = tab.js(
        "Object.fromEntries([...document.querySelectorAll('#filters [type=checkbox]')]"
        ".map(el => [el.dataset.key, Number(el.parentElement.querySelector('.many').textContent.replace(',', ''))]))"
    )
    of_trained = [row for row in rows if row["method"] == "trained"]
    assert counts["success yes"] == sum(row["success"] for row in of_trained)
    assert counts["fault repeated"] == sum(row["repeated"] > 0 for row in of_trained)
    assert counts["method base"] == sum(row["method"] == "base" for row in rows)
    assert counts["stage evaluate"] == len(of_trained)


def test_clicks_change_the_address_and_keep_the_focus(tab: Tab) -> None:
    listed(tab, "#/dialogues")
    box = '[data-key="success no"]'
    tab.js(f"document.querySelector('{box}').focus(); 0")
    tab.click(box)
    assert tab.js("location.hash") == "#/dialogues?success=no"
    assert tab.js(f"document.activeElement === document.querySelector('{box}')")
    tab.js("document.querySelector('[data-key=\"turns 0\"]').value = '4'; 0")
    tab.js("document.querySelector('[data-key=\"turns 0\"]').dispatchEvent(new Event('change')); 0")
    assert tab.js("location.hash") == "#/dialogues?success=no&turns=4.."
    tab.click(".chips .chip")
    assert tab.js("location.hash") == "#/dialogues?turns=4.."
    tab.click(".head .turns button")
    assert tab.js("location.hash") == "#/dialogues?turns=4..&sort=-turns"
    assert tab.js("document.querySelector('.head .turns').getAttribute('aria-sort')") == "descending"
    tab.js("document.querySelector('#search').focus(); 0")
    tab.js("document.querySelector('#search').value = 'rate'; 0")
    tab.js("document.querySelector('#search').dispatchEvent(new Event('input')); 0")
    tab.until("location.hash.includes('q=rate')")
    assert tab.js("document.activeElement.id") == "search"


def test_a_dialogue_shows_candidates_pairs_tests_and_what_is_hidden(tab: Tab, rows: list[Row]) -> None:
    row = next(row for row in rows if row["needed_last"])
    tab.to(f"#/dialogue/data%2Ftrajectories/{row['task']}/{row['attempt']}")
    tab.until("document.querySelectorAll('.message').length > 2")
    text = tab.text("main")
    assert "−0.400" in text and "rank 3 of 4" in text and "4 distinct replies of 10 sampled, 1 pair" in text
    assert "Hidden information" not in text, "folded"
    assert tab.js("[...document.querySelectorAll('.request details')].every(el => !el.open)")
    tab.js("document.querySelectorAll('details').forEach(el => el.open = true); 0")
    tab.settle()
    text = tab.text("main")
    assert "Hidden information" in text and "3 over 2" in text and '"token_ids"' in text
    numbered = "getComputedStyle(document.querySelector('.message .code .line'), '::before').content"
    assert "counter" in tab.js(numbered)
    assert tab.js("document.querySelectorAll('.tests-card tbody tr').length") == 10
    assert tab.js("JSON.parse([...document.querySelectorAll('.raw pre')].pop().textContent).seed") == str(2**62 + 1)


def test_stored_token_ratios_are_shown_as_heat(tab: Tab, viewer: Viewer, rows: list[Row]) -> None:
    """Without a critic at hand: the stored ratios of every reply and of every sampled candidate."""
    assert not viewer.heat.there
    collected = [row for row in rows if row["stage"] == "collect"]
    for row, there in ((collected[0], True), (collected[EXPLAINED], False)):
        turns = viewer.dialogues.describe(row["row"])["turns"]
        sampled = sum(len(turn["rankings"]["the ranking"]["candidates"]) for turn in turns) if there else 0
        tab.to(f"#/dialogue/data%2Ftrajectories/{row['task']}/{row['attempt']}")
        tab.until(
            "document.querySelectorAll('.message').length > 1 && "
            f"document.querySelectorAll('.candidates .heat').length == {sampled}"
        )
        tab.settle()
        button = "[...document.querySelectorAll('.buttons button')].find(el => el.textContent.includes('Tokens by'))"
        assert tab.js(f"!!{button}") == there
        if not there:
            continue
        assert tab.js("document.querySelectorAll('.heatplace .heat').length") == 0
        tab.js(f"{button}.click(); 0")
        tab.until(f"document.querySelectorAll('.heatplace .heat').length == {len(turns)}")
        first = turns[0]["rankings"]["the ranking"]["candidates"]
        mean = next(reply["advantage"] for reply in first if reply["said"])
        assert "Stored by rank:" in tab.text(".heatplace") and f"{mean:+.3f}" in tab.text(".heatplace")
        assert tab.js("document.querySelector('.heatplace .heat span').title") == f"{mean + 0.25:+.3f} nats"
        assert tab.js("document.querySelectorAll('.heat img, .heat script').length") == 0
        assert tab.js("window.pwned") is None


def test_hostile_words_stay_text(tab: Tab, viewer: Viewer) -> None:
    prompts = viewer.heat.prompts(viewer.dialogues.read(27)[0])
    tab.to(f"#/dialogue/data%2Fevaluation%2Ftrained/{TESTS[3].id}/0")
    spoken = "document.querySelector('.message.assistant .sampled + .bubble')"
    tab.until(f"!!{spoken}")
    thoughts = f"{spoken}.previousSibling"
    assert tab.js(f"!{thoughts}.open && {thoughts}.textContent.startsWith('Thoughts<img')"), "folded, before the reply"
    tab.js("document.querySelectorAll('details').forEach(el => el.open = true); 0")
    tab.settle()
    assert "Prompt: 2 tokens, 2 new\n" in (text := tab.text("main"))
    assert "Prompt: 5 tokens, 3 new; earlier messages were written anew\n" in text, "its reply has left the prompt"
    if tab.js("sweetrl.data.meta.server"):  # which has the base's tokenizer at hand
        tab.until("document.querySelectorAll('.message > .sampled pre').length == 3")  # one is of thoughts
        opened = tab.js("document.querySelectorAll('.message > .sampled pre')[2].textContent")
        assert opened == prompts[1] != ""
    shown = tab.js("document.querySelectorAll('.message.user .words')[0].textContent")
    assert shown.startswith('<img src=x onerror="window.pwned=1"><script>window.pwned=1</script></script>')
    assert "\ufffdgnp.exe\ufffd \ufffd[31mred\ufffd" in shown and "\U0001f600" in shown
    assert not set("\u202e\u2066\x1b\x07") & set(tab.js("document.body.textContent"))
    assert tab.js("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert tab.js("window.pwned") is None


def test_the_overview_says_what_the_rows_say(tab: Tab, rows: list[Row]) -> None:
    tab.to("#/overview")
    tab.until("!!document.querySelector('.charts')")
    text = tab.text("main")
    evaluated = [row for row in rows if row["stage"] == "evaluate"]
    trained = [row["success"] for row in evaluated if row["method"] == "trained"]
    assert f"{100 * sum(trained) / len(trained):.1f}\u00a0% after" in text
    assert text.startswith("Overview\n\nTraining hurt: mean reward changed by −19.0 points on 24 held-out tasks")
    for title in ("Success by method", "By domain", "Success against questions asked", "What goes wrong"):
        assert title in text
    assert "From the first fault to the outcome" in text and "What the critic knows" in text
    tab.js("document.querySelectorAll('figure details').forEach(el => el.open = true); 0")
    table = tab.js("[...document.querySelectorAll('figure')][0].querySelector('tbody').innerText.split('\\n')")
    share = wilson_interval(sum(trained), len(trained))
    shares = "\t".join(f"{100 * value:.1f}\u00a0%" for value in (share.value, share.low, share.high))
    assert f"trained\t{shares}\t24" in table
    link = tab.js("document.querySelector('.flow a').getAttribute('href')")
    assert "first_fault=" in link and listed(tab, link)


def test_the_overview_is_of_the_dialogues_that_the_list_shows(tab: Tab, rows: list[Row]) -> None:
    listed(tab, "#/dialogues?stage=evaluate&turns=..2&sort=-reward")
    few = sum(row["turns"] <= 2 for row in rows if row["stage"] == "evaluate")
    tab.js("document.activeElement.blur(); 0")
    tab.key("2")
    tab.until("document.querySelector('.overview')?.innerText.includes('that the filters leave')")
    assert f"\n{few} scored dialogues that the filters leave" in tab.text(".overviewhead")
    tab.to("#/overview?stage=evaluate&sort=-reward")
    tab.until("document.querySelector('.charts')?.innerText.includes(' against ')")
    assert "trained against base" in tab.text(".charts")


def test_the_keyboard_is_enough(tab: Tab) -> None:
    numbers = listed(tab, "#/dialogues?method=trained&success=no")
    tab.js("document.activeElement.blur(); 0")
    for key in ("j", "j", "ArrowUp", "j", "k", "j"):
        tab.key(key)
    assert tab.js("document.activeElement.dataset.place") == "1"
    tab.key("Enter")
    tab.until("document.body.dataset.page === 'dialogue' && !!document.querySelector('.message')")
    names = tab.js("sweetrl.data.tasks")
    assert tab.text("h1") == names[numbers[1]]
    tab.key("j")
    tab.until(f"document.querySelector('h1').innerText === {json.dumps(names[numbers[2]])}")
    tab.key("k")
    tab.until(f"document.querySelector('h1').innerText === {json.dumps(names[numbers[1]])}")
    tab.key("n")
    tab.key("n")
    assert "turn 2" in tab.js("document.activeElement.innerText")
    tab.key("u")
    tab.until("!!document.querySelector('.table')")
    assert tab.js("location.hash") == "#/dialogues?method=trained&success=no"
    tab.key("?")
    assert tab.js("document.querySelector('dialog').open")
    tab.js("document.querySelector('dialog').close(); 0")
    tab.key("2")
    tab.until("!!document.querySelector('.overview')")
    tab.key("1")
    tab.until("!!document.querySelector('.table')")
    tab.key("/")
    assert tab.js("document.activeElement.id") == "search"


ADDRESSES = ("#/dialogues?fault=untold", "#/overview", f"#/dialogue/data%2Fevaluation%2Ftrained/{TESTS[1].id}/0")
UNNAMED = """[...document.querySelectorAll('button, a, input, select, textarea, [role=img], [role=region]')]
  .filter(el => !(el.getAttribute('aria-label') || el.textContent?.trim() || el.title
    || el.closest('label')?.textContent.trim() || el.querySelector?.('title')))
  .map(el => el.outerHTML.slice(0, 120))"""
IDS = "[...document.querySelectorAll('[id]')].map(el => el.id)"


@pytest.mark.parametrize("width", [360, 768, 1280, 2560])
def test_every_width_fits_and_everything_has_a_name(tab: Tab, width: int) -> None:
    tab.size(width, 900)
    for fragment in ADDRESSES:
        tab.to(fragment)
        tab.until("document.querySelectorAll('.inner .row, .charts .card, .message').length > 0")
        tab.settle()
        assert tab.js("document.documentElement.scrollWidth") <= width, fragment
        assert tab.js("document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth") <= 0, (
            fragment
        )
        assert tab.js(UNNAMED) == [], fragment
        assert tab.js(f"{IDS}.length === new Set({IDS}).size"), fragment
    tab.size(1280, 900)
