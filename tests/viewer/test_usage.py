"""The runs behind dialogues and their costs: read from the tracking store once, and shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chromium import Chromium, serving
from made import TESTS

from sweetrl.colbench.domain import Domain
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.rollout.ledger import DialogueCost, Ledger
from sweetrl.tracking import lineage as lineage_module
from sweetrl.tracking.lineage import RunFacts
from sweetrl.viewer.overview import TrackedRuns, measured
from sweetrl.viewer.run import open_viewer
from sweetrl.viewer.server import Viewer
from sweetrl.viewer.sources import Target

RUNS = {"evaluate": "e" * 32, "collect": "c" * 32, "tasks": "0" * 32}


def cost(task: str, policy: str, tokens: int) -> DialogueCost:
    return DialogueCost(task, 0, policy, False, 3, 10 * tokens, 9 * tokens, tokens, 2.5, 0.25, 0.0)


class Store:
    """Runs with costs; the ids that were requested are in `requests`."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.places = {RUNS["evaluate"]: folder / "evaluate", RUNS["collect"]: folder / "collect"}
        for name, tokens in (("base", 50), ("trained", 80)):
            ledger = Ledger(folder / f"evaluate/costs-{name}.jsonl")
            ledger.path.parent.mkdir(exist_ok=True)
            ledger.add([cost(TESTS[0].id, name, 7), cost(TESTS[0].id, name, tokens), cost(TESTS[1].id, name, tokens)])

    def run(self, run_id: str) -> RunFacts | None:
        self.requests.append(run_id)
        if run_id == RUNS["tasks"]:
            return None
        return RunFacts(run_id, "x", "FINISHED", "c0ffee00c0ffee", 61.5, {"seed": "7"})

    def files(self, run_id: str, folder: str, scratch: Path) -> list[Path]:
        assert folder == "costs"
        place = self.places[run_id]
        return sorted(place.iterdir()) if place.is_dir() else []


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    records = Store(tmp_path)
    monkeypatch.setattr(lineage_module, "Records", lambda tracking: records)
    return records


@pytest.fixture
def counted(project: Path, settings: Settings, tmp_path: Path) -> Viewer:
    viewer = open_viewer(str(project), settings, tmp_path / "links")
    viewer.dialogues.tracked = TrackedRuns(settings, Target(project, "", RUNS))
    return viewer


def test_a_dialogue_has_the_cost_of_its_last_attempt(store: Store, counted: Viewer) -> None:
    costs: dict[Any, Any] = {}
    for row in range(counted.dialogues.catalogue.count):
        description = counted.dialogues.describe(row)
        if description["cost"]:
            costs[description["source"], description["task"]["id"]] = description["cost"]
    assert set(costs) == {(f"data/evaluation/{name}", task.id) for name in ("base", "trained") for task in TESTS[:2]}, (
        "the collection's run has noted none"
    )
    names = "prompt_tokens", "cached_tokens", "generated_tokens", "seconds", "busy_seconds"
    expected = dict(zip(names, (800, 720, 80, 2.5, 0.25), strict=True))
    assert costs["data/evaluation/trained", TESTS[0].id] == expected
    assert store.requests == [], "only the files of a run are looked at"


def test_runs_and_costs_are_in_the_page(store: Store, counted: Viewer, chromium: Chromium) -> None:
    with serving(counted) as address, chromium.looking(f"{address}#/overview") as tab:
        text = tab.until("document.querySelector('.charts')?.innerText.includes('The runs') && document.body.innerText")
        assert "What it has cost" in text and "evaluate, trained\t2\t1,600\t90\u00a0%\t160\t2.5\t1" in text
        assert "eeeeeeee\tfinished\tc0ffee00\t61.5 s" in text and "tasks\t" not in text
        assert "seed" in tab.js("[...document.querySelectorAll('.charts details')].pop().textContent")
        tab.to(f"#/dialogue/data%2Fevaluation%2Ftrained/{TESTS[1].id}/0")
        facts = tab.until("document.querySelector('.about .facts + .facts, .about .facts:last-of-type')?.innerText")
        about = tab.text(".about")
        assert "2.5 s" in about and "800 (720 cached)" in about and "Tokens written" in about, facts


def test_a_store_that_does_not_answer_is_no_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tracking: object) -> SimpleNamespace:
        raise UserError("the store does not answer")

    monkeypatch.setattr(lineage_module, "Records", refuse)
    tracked = TrackedRuns(settings, Target(Path(), "", RUNS))
    assert tracked.runs() == [] and tracked.costs() == [] and tracked.parameters() == {}
    assert not list(TrackedRuns(settings, Target(Path(), "")).curves())


@pytest.mark.parametrize("text", ["", "[]", '{"difference": {"reward": {"value": "x"}}}'])
def test_an_evaluation_that_is_none_of_ours_shows_no_harm(tmp_path: Path, text: str) -> None:
    nothing = {"harm": "", "evaluated": []}
    assert measured(tmp_path / "evaluation.json", Domain()) == nothing
    (tmp_path / "evaluation.json").write_text(text)
    assert measured(tmp_path / "evaluation.json", Domain()) == nothing
