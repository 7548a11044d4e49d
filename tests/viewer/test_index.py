"""The dialogues in a folder, and their table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from made import EXPLAINED, HOSTILE, TESTS, dialogue

from sweetrl.colbench.files import write_trajectories
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import result_of, write_results
from sweetrl.sweet.preferences import PREFERENCES, TOKEN_RATIOS
from sweetrl.sweet.tables import write_table
from sweetrl.types import Preference, Trajectory
from sweetrl.viewer import index as index_module
from sweetrl.viewer.dialogue import Dialogues
from sweetrl.viewer.index import SHARD, open_catalogue, terms
from sweetrl.viewer.overview import TrackedRuns
from sweetrl.viewer.rows import Domains
from sweetrl.viewer.run import open_viewer
from sweetrl.viewer.server import Viewer
from sweetrl.viewer.sources import Target, find_sources

Row = dict[str, Any]


def test_folders_on_another_disk_are_read_through_their_links_once(project: Path, other: Path, tmp_path: Path) -> None:
    for name in ("trajectories", "evaluation"):
        (other / "data" / name).rename(tmp_path / name)
        (other / "data" / name).symlink_to(tmp_path / name)
    (other / "data/round").symlink_to(other / "data")
    sources = find_sources(other)
    assert [source.name for source in sources] == [source.name for source in find_sources(project)]
    assert [len(source.rankings) for source in sources] == [0, 0, 1]


def test_rows_say_what_the_results_of_an_evaluation_say(
    viewer: Viewer, rows: list[Row], settings: Settings, project: Path
) -> None:
    domain = load_domain(settings)
    row_of = {(row["source"], row["task"], row["attempt"]): row for row in rows}
    assert len(row_of) == len(rows) == viewer.dialogues.catalogue.count == 64
    for policy in ("base", "trained"):
        for spoken in TrajectoryStore(project / "data/evaluation" / policy):
            row, result = row_of[f"data/evaluation/{policy}", spoken.task.id, 0], result_of(spoken, policy, domain, 7)
            assert (row["success"], row["reward"], row["turns"]) == (result.success, result.reward, result.turns)
            assert (row["topic"], row["method"], row["stage"]) == (result.topic, policy, "evaluate")
            for fault in ("premature", "repeated", "irrelevant", "unhinted", "untold", "forgotten", "mistaken"):
                assert row[fault] == int(getattr(result, fault)), fault
    firsts = Counter(row["first_fault"] for row in rows)
    assert firsts["none"] >= 18 and {"none", "premature", "mistaken", "repeated"} <= firsts.keys()
    assert sum(row["fault_turn"] is None for row in rows) == firsts["none"]
    assert sum(row["held_out"] for row in rows) > 0
    lost = [row for row in rows if row["outcome"] == "lost"]
    assert [(row["scored"], row["reward"]) for row in lost] == [(0, None)]


def test_what_the_critic_thought_is_in_the_rows(viewer: Viewer, rows: list[Row]) -> None:
    rows = [row for row in rows if row["stage"] == "collect"]
    assert [bool(row["ranked"]) for row in rows] == [True] * 6 + [False] * 10
    assert [row["needed_last"] for row in rows[:3]] == [0, 0, 1]
    assert rows[0]["advantage"] == pytest.approx(0.2) and rows[0]["pairs"] == rows[0]["turns"]
    assert rows[2]["least_advantage"] == pytest.approx(-0.4)
    contrasts = {(row["better"], row["worse"]): row for row in viewer.dialogues.catalogue.contrasts()}
    needed = contrasts["needed", "premature"]
    assert needed["ranking"] == "the ranking" and 0.5 < needed["share"] < 1 and needed["pairs"] > 8


def test_searching_finds_words_in_any_case_and_phrases(viewer: Viewer) -> None:
    catalogue = viewer.dialogues.catalogue
    assert terms('  Free "a Pack of" x') == ["free", "a pack of", "x"]
    words = [
        "\n".join([spoken.task.id, *(message.content for message in spoken.messages)]).lower()
        for _, spoken, _ in viewer.dialogues.every()
        if spoken is not None
    ]
    for query in ("RATE", '"is there one"', TESTS[2].id, "nowhere-to-be-found"):
        hits = [row for row, text in enumerate(words) if all(term in text for term in terms(query))]
        assert catalogue.search(query) == hits, query
    assert catalogue.search("onerror") == [27]
    assert catalogue.search("") == list(range(64))


def test_the_table_is_made_once_and_again_when_a_file_changes(
    other: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    write = index_module._write
    monkeypatch.setattr(index_module, "_write", lambda source, *rest: (made.append(source.name), write(source, *rest)))
    assert open_catalogue(find_sources(other), Domains(settings)).count == 64
    assert made == [], "files of equal content have the table that there is"
    store = TrajectoryStore(other / "data/evaluation/base")
    store.write_shard(1, list(store.read_shard(1))[:1])
    again = open_catalogue(find_sources(other), Domains(settings))
    assert made == ["data/evaluation/base"] and again.count == 61
    assert again.read(20)[2] == store[20] == store.row(1, 0)
    write_table(other / "data/preferences" / PREFERENCES, Preference, [])  # ranked again, with other pairs
    assert again.rows(0)["pairs"][45] > 0
    with pytest.raises(UserError, match="have changed"):
        again.read(45)
    assert not any(open_catalogue(find_sources(other), Domains(settings)).rows(0)["pairs"][45:])


def test_parts_of_the_table_go_over_sources(viewer: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    table = viewer.dialogues.catalogue.rows(0)
    monkeypatch.setattr(index_module, "SHARD", 10)
    parts = [viewer.dialogues.catalogue.rows(number) for number in range(7)]
    assert SHARD > 10 and [len(part["task"]) for part in parts] == [10] * 6 + [4]
    for name, values in table.items():
        assert [value for part in parts for value in part[name]] == values
    assert viewer.dialogues.catalogue.words(18, 14)[2:4] == viewer.dialogues.catalogue.words(20, 2)


def test_official_files_are_read_by_the_place_of_their_lines(settings: Settings, tmp_path: Path) -> None:
    spoken = [
        dialogue(task, ["zero", "rate"], task.ground_truth, number, "somebody") for number, task in enumerate(TESTS[:5])
    ]
    path = tmp_path / "their dialogues.jsonl"
    write_trajectories(path, spoken, 1)
    path.write_bytes(b"\n" + path.read_bytes())
    catalogue = open_catalogue(find_sources(path), Domains(settings))
    dialogues = Dialogues(catalogue, TrackedRuns(settings, Target(Path(), "", {})))
    assert catalogue.count == 5 and catalogue.names["method"] == ["their dialogues"]
    for row, written in enumerate(spoken):
        read = dialogues.read(row)[0]
        assert (read.task, read.messages, read.reward) == (written.task, written.messages, written.reward)
    assert [shown["task"]["id"] for _, _, shown in dialogues.every()] == [written.task.id for written in spoken]


def study(root: Path, spoken: list[Trajectory], settings: Settings) -> Path:
    domain = load_domain(settings)
    for method in ("grpo", "sweet"):
        folder = root / "measured" / method / "11"
        results = [result_of(trajectory, "trained", domain, 7) for trajectory in spoken]
        for name in ("t0", "t1", "t0-terse"):
            write_results(folder / f"{name}.parquet", results)
        says = [("t0", 0.0, ""), ("t1", 1.0, ""), ("t0-terse", 0.0, "terse")]
        summary = {"measured": [{"file": f"{name}.parquet", "temperature": t, "persona": p} for name, t, p in says]}
        (folder / "summary.json").write_text(json.dumps(summary))
    TrajectoryStore(root / "seed-data/11/trajectories").write_shard(0, spoken)
    return root


def test_a_study_has_methods_temperatures_users_and_seeds(settings: Settings, tmp_path: Path) -> None:
    spoken = [dialogue(task, ["zero"], "x = 1", number, "models/base") for number, task in enumerate(TESTS[:4])]
    catalogue = open_catalogue(find_sources(study(tmp_path, spoken, settings)), Domains(settings))
    assert catalogue.names["method"] == ["grpo", "models/base", "sweet"]
    assert catalogue.names["temperature"] == ["", "0", "1"]
    assert catalogue.names["persona"] == ["", "terse"] and catalogue.names["seed"] == ["11"]
    assert catalogue.count == 28
    dialogues = Dialogues(catalogue, TrackedRuns(settings, Target(Path(), "", {})))
    assert dialogues.describe(0)["messages"] is None
    with pytest.raises(UserError, match="only the numbers"):
        dialogues.read(0)


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        find_sources(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no dialogues here"):
        find_sources(tmp_path)
    other = tmp_path / "tasks.jsonl"
    other.write_text('{"problem_description": "x"}\n')
    with pytest.raises(UserError, match="neither an official trajectory file"):
        find_sources(other)


def test_a_dialogue_is_described_with_candidates_pairs_and_verdicts(viewer: Viewer, rows: list[Row]) -> None:
    row = next(row["row"] for row in rows if row["needed_last"])
    description = viewer.dialogues.describe(row)
    json.dumps(description, allow_nan=False)
    state = description["turns"][0]["rankings"]["the ranking"]
    advantages = [reply["advantage"] for reply in state["candidates"]]
    assert advantages == sorted(advantages, reverse=True)
    chosen = next(reply for reply in state["candidates"] if reply["said"])
    assert chosen["verdict"] == "needed" and chosen["advantage"] == pytest.approx(-0.4) and chosen["chosen"] == 1
    ((good, bad, margin),) = state["pairs"]
    assert state["candidates"][good]["said"] and state["candidates"][bad]["rejected"] == 1
    assert margin == pytest.approx(chosen["advantage"] - state["candidates"][bad]["advantage"])
    assert description["turns"][0]["perplexity"] == pytest.approx(1.6487, abs=1e-4)
    assert description["seed"] == str(2**62 + 1), "a number of JavaScript would round it"
    assert viewer.dialogues.describe(27)["messages"][2]["pieces"] == [("", HOSTILE)]


def test_token_ratios_are_given_where_they_are_stored(
    viewer: Viewer, rows: list[Row], settings: Settings, other: Path, tmp_path: Path
) -> None:
    collected = [row["row"] for row in rows if row["stage"] == "collect"]
    for number in (0, EXPLAINED):
        for reply in viewer.dialogues.describe(collected[number])["turns"][0]["rankings"]["the ranking"]["candidates"]:
            assert (reply["heat"] is not None) == (number < EXPLAINED)
            if reply["heat"]:
                assert reply["heat"][0][0] == HOSTILE and len(reply["heat"]) == 6
                assert sum(ratio for _, ratio in reply["heat"]) / 6 == pytest.approx(reply["advantage"], abs=1e-5)
    (other / "data/preferences" / TOKEN_RATIOS).unlink()  # `rank.token_ratios: 0`
    shown = open_viewer(str(other), settings, tmp_path / "links").dialogues
    (turn, *_) = shown.describe(collected[0])["turns"]
    assert all(reply["heat"] is None for reply in turn["rankings"]["the ranking"]["candidates"])
