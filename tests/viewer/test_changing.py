"""Dialogues that grow, change or disappear while they are viewed, and many requests at the same time."""

from __future__ import annotations

import io
import math
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import Chromium, Tab, serving, wait_for
from made import TESTS, dialogue

import sweetrl.viewer.index as index_module
from sweetrl import plugins
from sweetrl.cli import show
from sweetrl.colbench.files import write_trajectories
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.console.screen import Screen
from sweetrl.errors import UserError
from sweetrl.sweet.preferences import CANDIDATES, PREFERENCES, TOKEN_RATIOS
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import Preference, TokenRatios
from sweetrl.viewer.export import export
from sweetrl.viewer.index import Catalogue
from sweetrl.viewer.ranked import Ranked
from sweetrl.viewer.rows import Domains
from sweetrl.viewer.run import open_viewer
from sweetrl.viewer.server import Viewer


def fragment(catalogue: Catalogue, row: int, beside: int | None = None) -> str:
    """The address of a dialogue in the page."""

    def part(number: int) -> str:
        source, task, spoken = catalogue.read(number)
        assert spoken is not None
        return "/".join(quote(word, safe="") for word in (source.name, task, str(spoken.attempt)))

    return f"#/dialogue/{part(row)}" + ("" if beside is None else f"?with={quote(part(beside), safe='')}")


def ready(tab: Tab, address: str) -> None:
    """Open an address and poll whether it is ready: a page that is busy for ever would not answer `go`."""
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=address)

    def state() -> Any:
        expression = "document.body && document.body.dataset.ready"
        return tab.browser.call("Runtime.evaluate", tab.session, 5.0, expression=expression)["result"].get("value")

    wait_for(state, 60)


def test_an_address_far_down_the_table_opens(
    viewer: Viewer, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dialogue is in none of the first parts of the table: the page waits for it and for its neighbour."""
    monkeypatch.setattr(index_module, "SHARD", 10)
    catalogue = viewer.dialogues.catalogue
    _, task, _ = catalogue.read(35)
    with serving(viewer) as address:
        tab = chromium.tab()
        ready(tab, address + fragment(catalogue, 35))
        assert task in tab.text("h1")
        ready(tab, address + fragment(catalogue, 3, 27))
        assert tab.js("document.querySelectorAll('.side').length") == 2
        ready(tab, address + fragment(catalogue, 3))
        assert tab.js("document.querySelectorAll('#compare option').length") == 2  # nothing, and the other policy's
        ready(tab, address + "#/dialogue/data%2Fevaluation%2Fbase/nobody/0")
        assert "no such dialogue" in tab.text("main")
        assert not tab.errors
        monkeypatch.setattr(viewer.dialogues, "describe", refused)
        ready(tab, address + fragment(catalogue, 35))
        tab.until("document.querySelector('main').innerText.includes('start `sweetrl view` again')")
        assert tab.js("document.querySelector('main').hasAttribute('aria-busy')") is False
        tab.close()


def test_names_are_right_however_many_there_are(
    project: Path, settings: Settings, chromium: Chromium, tmp_path: Path
) -> None:
    """Tasks of one's own may each be a topic of its own."""
    viewer = open_viewer(str(project), settings, tmp_path)
    catalogue = viewer.dialogues.catalogue
    topic = catalogue.names["topic"][catalogue.rows(0)["topic"][0]]
    catalogue.names["topic"] = [*map(str, range(2**16)), *catalogue.names["topic"]]
    catalogue._codes["topic"] = {word: code for code, word in enumerate(catalogue.names["topic"])}
    with serving(viewer) as address, chromium.looking(address) as tab:
        assert tab.js("sweetrl.data.word('topic', 0)") == topic


def test_a_folder_without_a_single_dialogue_says_so(settings: Settings, chromium: Chromium, tmp_path: Path) -> None:
    TrajectoryStore(tmp_path / "none").write_shard(0, [])
    with serving(open_viewer(str(tmp_path / "none"), settings, tmp_path)) as address, chromium.looking(address) as tab:
        assert "0 dialogues" in tab.text("main")
        for fragment, says in (("#/overview", "No scored dialogue"), ("#/dialogue/none/a/0", "no such dialogue")):
            tab.to(fragment)
            assert says in tab.text("main")


def test_a_stage_that_runs_now_is_listed_with_what_it_has_finished(
    other: Path, settings: Settings, chromium: Chromium, tmp_path: Path
) -> None:
    evaluated = TrajectoryStore(other / "data/evaluation/trained")
    running = TrajectoryStore(other / (name := ".scratch/evaluate-0123456789abcdef/dialogues/trained"))
    with running.growing(48):
        running.write_shard(0, list(evaluated.read_shard(0)))
        viewer = open_viewer(str(other), settings, tmp_path)
        running.write_shard(1, list(evaluated.read_shard(1)))  # after the viewer has looked
        assert viewer.meta()["running"] == [{"source": name, "dialogues": 20, "of": 48}]
        shown = "#/dialogues?stage=evaluate%2C+running"
        with serving(viewer) as address, chromium.looking(address + shown) as tab:
            says = f"20 dialogues of 84. {name}: running, 20 of 48 dialogues so far"
            assert tab.text(".told") == says and "running" in tab.text(".inner .row .task")
            tab.to(f"#/dialogue/{quote(name, safe='')}/{TESTS[0].id}/0")
            tab.until("document.querySelectorAll('.message').length > 2")
            tab.to("#/overview")
            text = tab.until("document.querySelector('.overviewhead')?.innerText")
            assert "comparisons of methods use the 48 of evaluations" in text and "running, 20 of 48" in text
    over = open_viewer(str(other), settings, tmp_path)
    assert over.meta()["running"] == [] and over.dialogues.catalogue.count == 64, "it was killed, or is over"


def refused(row: int) -> Any:
    raise UserError("data/evaluation: these dialogues have changed; start `sweetrl view` again.")


def test_other_dialogues_in_the_place_of_those_in_the_table_are_not_shown(
    other: Path, settings: Settings, tmp_path: Path
) -> None:
    viewer = open_viewer(str(other), settings, tmp_path / "links")
    catalogue, store = viewer.dialogues.catalogue, TrajectoryStore(other / "data/evaluation/base")
    shard = other / "data/evaluation/base/shard-00000.parquet"
    first = viewer.dialogues.describe(0)
    os.utime(shard, ns=(1, 1))  # written again with the same bytes, as DVC does
    assert viewer.dialogues.describe(0) == first
    store.write_shard(0, list(store.read_shard(0))[::-1])
    with pytest.raises(UserError, match=r"data/evaluation/base: .* start `sweetrl view` again"):
        viewer.dialogues.describe(0)
    shard.unlink()
    with pytest.raises(UserError, match="start `sweetrl view` again"):
        viewer.dialogues.read(0)
    with pytest.raises(UserError, match="start `sweetrl view` again"):
        list(viewer.dialogues.every())
    assert viewer.dialogues.describe(catalogue.count - 1)["source"] == "data/trajectories"
    (other / "data/preferences" / CANDIDATES).unlink()
    with pytest.raises(UserError, match="data/trajectories: "):
        viewer.dialogues.describe(catalogue.count - 1)


def test_rows_of_one_ranking_are_read_by_one_thread_at_a_time(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dialogues side by side are requested at once; two threads that read a Parquet file end the process."""
    inside, most = 0, 0

    def item(self: Table[Any], number: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1

    ranked = Ranked(project / "data/preferences")
    keys = [(spoken.task.id, spoken.attempt) for spoken in TrajectoryStore(project / "data/trajectories")][:6]
    monkeypatch.setattr(Table, "item", item)
    threads = [threading.Thread(target=ask, args=key) for key in keys for ask in (ranked.states.of, ranked.pairs.of)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


OWN = """
import sweetrl

class Mine(sweetrl.Domain):
    def judge(self, task, messages, reply):
        return sweetrl.Judgment(0.0, "{verdict}")
"""


def test_rows_are_made_again_when_the_code_of_an_own_domain_changes(own_code: Any, tmp_path: Path) -> None:
    settings = Settings(suite="mine:Mine")
    spoken = dialogue(TESTS[0], ["zero"], "x = 1", 3, "somebody")
    TrajectoryStore(tmp_path / "some").write_shard(0, [replace(spoken, task=replace(spoken.task, suite="mine:Mine"))])

    def first_fault(verdict: str) -> list[str]:
        own_code(tmp_path, OWN.replace("{verdict}", verdict))
        plugins.find.cache_clear()
        sys.modules.pop("mine", None)
        return open_viewer(str(tmp_path / "some"), settings, tmp_path).dialogues.catalogue.names["first_fault"]

    assert first_fault("dull") == ["dull"] and first_fault("rambling") == ["rambling"]


def test_a_batch_as_it_was_ingested_does_not_hide_the_rest(
    project: Path, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row that is no dialogue is left out with a note."""
    shutil.copytree(project / "data/evaluation", tmp_path / "data/evaluation")
    batch = tmp_path / "data/batches/dialogues-000001/dialogues-000001.jsonl"
    write_trajectories(batch, [dialogue(task, ["zero"], "x = 1", 3, "somebody") for task in TESTS[:3]], 1)
    batch.write_text(batch.read_text() + '{"messages": []}\n')
    assert open_viewer(str(tmp_path), settings, tmp_path / "links").dialogues.catalogue.count == 48
    notes = " ".join(capsys.readouterr().err.split())
    assert "left out: " in notes and "line 4: the key `task` is missing" in notes
    with pytest.raises(UserError, match="line 4: the key `task` is missing"):
        open_viewer(str(batch), settings, tmp_path / "links")


def test_a_file_that_cannot_be_read_is_named(project: Path, settings: Settings, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(project / "data/evaluation/base", broken)
    (broken / "shard-00001.parquet").unlink()
    (broken / "shard-00001.parquet").symlink_to(tmp_path / "nothing")
    (broken.parent / "more.jsonl").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"shard-00001.parquet: this file cannot be read"):
        open_viewer(str(broken), settings, tmp_path)


def test_numbers_that_are_none_do_not_hide_a_dialogue(
    other: Path, settings: Settings, chromium: Chromium, tmp_path: Path
) -> None:
    """A critic that has diverged, and rewards of somebody else."""
    first, *rest = TrajectoryStore(other / "data/trajectories")
    odd = replace(first, parts={"style": math.nan, "tests": 1.0})
    TrajectoryStore(other / "data/trajectories").write_shard(0, [odd, *rest])
    table = Table(other / "data/preferences" / PREFERENCES, Preference)
    pairs = [replace(table.item(0), chosen_advantage=math.inf), *map(table.item, range(1, len(table)))]
    write_table(other / "data/preferences" / PREFERENCES, Preference, pairs)
    ratios = list(Table(path := other / "data/preferences" / TOKEN_RATIOS, TokenRatios))
    diverged = [replace(reply, ratios=(math.inf, *reply.ratios[1:])) for reply in ratios[0].replies]
    write_table(path, TokenRatios, [replace(ratios[0], replies=tuple(diverged)), *ratios[1:]])
    viewer = open_viewer(str(other), settings, tmp_path)
    with serving(viewer) as address, chromium.looking(address + fragment(viewer.dialogues.catalogue, 48)) as tab:
        tab.until("document.querySelector('.about')?.innerText.includes('tests\\n1')")
        assert tab.js("document.querySelector('.candidates .heat span').title") == "no number"
        tab.press("Tokens by the critic")
        tab.until("document.querySelectorAll('.heatplace .heat').length > 1")
        assert tab.js("document.querySelector('.heatplace').children.length") == 1, "nor has it a mean"
        made = tab.js("[...document.querySelectorAll('.pair')].map(pair => [pair.textContent, pair.title])")
        assert made == [["1 over 4", ""], *[["1 over 3", "margin 0.500"]] * 2]  # no margin where it is infinite
    assert export(viewer, tmp_path / "out", 0) == 64


def test_a_log_probability_that_a_server_makes_up_is_no_perplexity(settings: Settings, tmp_path: Path) -> None:
    """vLLM writes -9999 for a token that it has sampled although its probability is zero."""
    spoken = dialogue(TESTS[0], ["zero"], "x = 1", 3, "somebody")
    made_up = replace(spoken.turns[0], logprobs=(-0.1, -9999.0))
    TrajectoryStore(tmp_path / "some").write_shard(0, [replace(spoken, turns=(made_up, *spoken.turns[1:]))])
    console = Screen(file=io.StringIO(), width=120)
    domain = Domains(settings).of("backend")
    show.show_trajectory(console, show.find(tmp_path / "some", domain, "0", 0), domain, privileged=False)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("perplexity 1.65") == printed.count("perplexity") == 1
    turns = open_viewer(str(tmp_path / "some"), settings, tmp_path).dialogues.describe(0)["turns"]
    assert [turn["perplexity"] is None for turn in turns] == [True, False]
