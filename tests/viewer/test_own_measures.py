"""A domain with measures of its own: their names in the list, a dialogue and the overview, harm first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, serving
from made import TESTS, dialogue

from sweetrl.colbench.find import find_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.evaluation.metrics import compare, compare_parts, results_of
from sweetrl.io import write_json
from sweetrl.viewer.run import open_viewer

OWN = """
import sweetrl
from sweetrl.colbench.domain import Labels

class Table(sweetrl.Domain):
    measure = "reward"
    reward_range = (-1.0, 1.0)
    labels = Labels(success="Guests seated", reward="Happiness")
"""


@pytest.fixture
def settings(own_code: Any, tmp_path: Path) -> Settings:
    """Settings of a project with two policies: the trained policy is as good in `food`, and worse in `price-cut`."""
    own_code(tmp_path, OWN)
    (tmp_path / "params.yaml").write_text("suite: mine:Table\n")
    spoken = {}
    for policy, cost in (("base", 0.0), ("trained", 0.01)):
        made = [dialogue(task, ["zero"], "x = 1", 0, policy) for task in TESTS[:12]]
        spoken[policy] = [
            replace(
                trajectory,
                task=replace(trajectory.task, suite="mine:Table"),
                tests=(),
                reward=0.25 - cost * place,
                parts={"food": 0.5, "price-cut": -0.25 - cost * place},
            )
            for place, trajectory in enumerate(made)
        ]
        TrajectoryStore(tmp_path / "data/evaluation" / policy).write_shard(0, spoken[policy])
    domain = find_domain("mine:Table")
    comparison = compare(results_of(spoken, domain), 0.95, 500, 0)
    comparison["parts"] = compare_parts(spoken["base"], spoken["trained"], 0.95, 500, 0)
    labels = {"success": domain.labels.success, "reward": domain.labels.reward}
    write_json(tmp_path / "reports/evaluation.json", comparison | {"measure": "reward", "labels": labels})
    return Settings(suite="mine:Table")


def test_an_own_domain_is_shown_by_its_measures(settings: Settings, tmp_path: Path, chromium: Chromium) -> None:
    viewer = open_viewer(str(tmp_path), settings, tmp_path / "links")
    parts = ["part of the reward: food", "part of the reward: price-cut"]
    assert [row[0] for row in viewer.meta()["evaluated"][:4]] == ["happiness", "guests seated", *parts]
    with serving(viewer) as address, chromium.looking(f"{address}#/overview") as tab:
        tab.until("document.querySelector('.charts')?.innerText.includes('Happiness by method')")
        assert tab.text(".overviewhead").startswith("Overview\n\nTraining hurt: happiness changed by −5.5 points on 12")
        lines = [line.split("\t") for line in tab.text(".charts .card").splitlines()]
        measured = {line[0]: line for line in lines if len(line) == 6}
        assert measured["happiness"][1:4] == ["25.0\u00a0%", "19.5\u00a0%", "−5.5 (−7.3 to −3.7)"]
        shows = [measured[name][5] for name in ("happiness", *parts)]
        assert shows == ["worse", "no difference is shown", "worse"]
        assert tab.js("document.querySelectorAll('td.bad').length") == 2
        tab.js("document.querySelector('.overviewhead select').value = 'part price-cut'; 0")
        tab.js("document.querySelector('.overviewhead select').dispatchEvent(new Event('change')); 0")
        tab.until("document.querySelector('.charts')?.innerText.includes('price-cut by method')")
        points = tab.js("[...document.querySelectorAll('.dots .estimate')].map(el => el.title)")
        assert any(title.startswith("trained: -30.5\u00a0% [-32.") for title in points)
        ends = "[...document.querySelectorAll('.estimate')].map(el => Number(el.style.getPropertyValue('--low')))"
        assert all(0 <= place <= 1 for place in tab.js(ends)), "on the scale"
        tab.to("#/dialogues?part+price-cut=..-0.26&sort=part+price-cut&columns=task,reward,part+price-cut")
        tab.until("document.querySelectorAll('.inner .row').length === 11")
        assert "Happiness" in tab.text(".head") and "price-cut" in tab.text(".head")
        assert "Guests seated" in tab.text("#filters")
        assert tab.text(".inner .row .part") == "-0.36", "the least first"
        tab.to(f"#/dialogue/data%2Fevaluation%2Fbase/{TESTS[0].id}/0")
        about = tab.until("document.querySelector('.about')?.innerText")
        assert "Happiness: food\n0.5" in about
