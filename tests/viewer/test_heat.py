"""Token log-ratios by a critic, curves of tracked runs, and dialogues of earlier versions."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import TESTS, dialogue

from sweetrl.api.learning import TrainedCritic
from sweetrl.cli import show
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.console.screen import Screen
from sweetrl.errors import UserError
from sweetrl.file_hashes import cached, dvc_hash
from sweetrl.models.load import load_tokenizer
from sweetrl.tracking import lineage as lineage_module
from sweetrl.tracking.lineage import RunFacts
from sweetrl.tracking.runs import DataInput
from sweetrl.types import AgentTurn, Message
from sweetrl.viewer.dialogue import plain
from sweetrl.viewer.heat import Heat
from sweetrl.viewer.overview import TrackedRuns
from sweetrl.viewer.rows import Domains
from sweetrl.viewer.run import open_viewer
from sweetrl.viewer.sources import Target, find_target


def small(settings: Settings, model: Path) -> Settings:
    """Settings of a random model with short replies."""
    return settings.model_copy(
        update={
            "model": settings.model.model_copy(update={"base": str(model)}),
            "agent": settings.agent.model_copy(update={"max_turns": 2, "max_new_tokens": 4}),
        }
    )


@pytest.fixture(scope="module")
def critic(tiny_model: Path, write_adapter: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes something."""
    return write_adapter(tiny_model, tmp_path_factory.mktemp("critic") / "critic", 0.5)


def test_token_ratios_have_the_advantage_as_their_mean(settings: Settings, tiny_model: Path, critic: Path) -> None:
    chosen = small(settings, tiny_model)
    heat = Heat(Domains(chosen), critic)
    spoken = dialogue(TESTS[0], ["zero", "rate"], TESTS[0].ground_truth, 3, "base")
    turns = tuple(AgentTurn(turn.message_index, turn.raw) for turn in spoken.turns)  # imported: without ids
    spoken = type(spoken)(**{**spoken.__dict__, "turns": turns})
    ratios = heat.ratios(spoken)
    means = [sum(ratio for _, ratio in turn) / len(turn) for turn in ratios]
    expected = TrainedCritic.load(load_domain(chosen), critic).advantages(spoken)
    assert means == pytest.approx(expected, abs=2e-5) and max(map(abs, means)) > 1e-3
    assert "".join(text for text, _ in ratios[0]).startswith(spoken.turns[0].raw)
    assert heat.ratios(spoken) == ratios
    with pytest.raises(UserError, match="no trained log-ratio critic"):
        Heat(Domains(chosen), critic / "nowhere").ratios(spoken)


def test_prompts_are_shown_as_they_were_sent(settings: Settings, tiny_model: Path, tmp_path: Path) -> None:
    chosen, tokenizer = small(settings, tiny_model), load_tokenizer(tiny_model)
    spoken = dialogue(TESTS[0], ["zero", "rate", "rate"], TESTS[0].ground_truth, 3, "base")
    texts = ["<|user|>What is the rate?<|end|>", "<|user|>7.<|end|>", " rate", "<|end|><|user|>7.<|end|>"]
    new = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    turns, read = [], 0  # the second goes on, the third leaves out the last reply, the fourth ends it with another id
    for turn, ids, lost in zip(spoken.turns, new, (0, 0, len(spoken.turns[1].token_ids), 1), strict=True):
        turns.append(replace(turn, prompt_kept=read - lost, prompt_ids=ids))
        read += len(ids) - lost + len(turn.token_ids)
    shown = [turn["prompt"] for turn in plain(replace(spoken, turns=tuple(turns)), load_domain(chosen))["turns"]]
    assert [turn["new"] for turn in shown] == [len(ids) for ids in new]
    assert [turn["anew"] for turn in shown] == [False, False, True, False]
    assert shown[-1]["tokens"] + len(turns[-1].token_ids) == read
    assert Heat(Domains(chosen), tmp_path).prompts(replace(spoken, turns=tuple(turns))) == texts
    assert plain(spoken, load_domain(chosen))["turns"][0]["prompt"] is None, "not recorded"


def test_dialogues_of_a_registered_version_come_from_the_cache(
    project: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = {}

    def keep(path: Path, content: bytes) -> str:
        key = dvc_hash(path)
        place = cached(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return key

    for name in ("data/evaluation", "data/trajectories", "data/preferences"):
        files = {path: keep(path, path.read_bytes()) for path in sorted((project / name).rglob("*.parquet"))}
        rows = [{"md5": key, "relpath": str(path.relative_to(project / name))} for path, key in files.items()]
        data[name] = keep(project / name, json.dumps(rows).encode())
    version = SimpleNamespace(data=data, stages=(SimpleNamespace(name="rank", run_id="1"),), model="agent", version="3")
    monkeypatch.setattr(lineage_module, "lineage", lambda name, tracking: version)
    viewer = open_viewer("agent@champion", settings, tmp_path / "links")
    assert viewer.target.title == "agent version 3" and viewer.target.runs == {"rank": "1"}
    assert viewer.dialogues.catalogue.count == 64
    assert viewer.dialogues.describe(48)["turns"][0]["rankings"]
    listing = cached(data["data/trajectories"])
    (row,) = json.loads(content := listing.read_text())
    odd = [[row | {"relpath": relative}] for relative in ("../../out.parquet", "/out", "", 7)]
    for broken in (*odd, [row | {"md5": None}], [7], {}):
        listing.write_text(json.dumps(broken))
        with pytest.raises(UserError, match=r"listing .* is damaged"):
            find_target("agent@champion", settings, tmp_path / "deep/er/links")
        shutil.rmtree(tmp_path / "deep", ignore_errors=True)
    assert not list(tmp_path.rglob("out*"))
    listing.write_text(content)
    cached(data["data/evaluation"]).unlink()
    with pytest.raises(UserError, match="not in DVC's cache"):
        find_target("agent@champion", settings, tmp_path / "again")
    inputs = (DataInput("trajectories", "data/trajectories", data["data/trajectories"]), DataInput("x", "", "y"))
    run, made = SimpleNamespace(inputs=inputs, name="rank"), dict[str, RunFacts]()
    records = SimpleNamespace(run=lambda run_id: run if run_id == "a" * 32 else None, made=lambda folder: made)
    monkeypatch.setattr(lineage_module, "Records", lambda tracking: records)
    assert open_viewer("a" * 32, settings, tmp_path / "run").dialogues.catalogue.count == 16
    with pytest.raises(UserError, match="knows no such run"):
        find_target("b" * 32, settings, tmp_path / "no run")
    made["rank"] = RunFacts("a" * 32, "rank", "FINISHED", parent="c" * 32)
    for run_id in ("a" * 32, "c" * 32):
        assert find_target(run_id, settings, tmp_path) == Target(Path(), f"run {run_id[:8]}", {"rank": "a" * 32})
    version.data = {"models/base": "x"}
    with pytest.raises(UserError, match="names no dialogues"):
        find_target("agent/3", settings, tmp_path / "once more")
    with pytest.raises(UserError, match="no such folder"):
        find_target("nothing", settings, tmp_path)


def test_curves_are_those_of_the_training_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def histories(run_id: str, names: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
        read.append(run_id)
        return {"loss": [(step, 1.0 / (step + 1)) for step in range(1000)], "accuracy": [(0, 0.5)]}

    monkeypatch.setattr(lineage_module, "Records", lambda tracking: SimpleNamespace(histories=histories))
    (curve,) = TrackedRuns(settings, Target(Path(), "", {"train-policy": "a", "rank": "b"})).curves()
    assert read == ["a"] and curve["metric"] == "loss" and 100 < len(curve["points"]) <= 240


def test_show_and_play_say_what_is_expected_and_what_the_critic_thinks(
    project: Path, settings: Settings, tiny_model: Path, critic: Path, tmp_path: Path
) -> None:
    domain, written = load_domain(small(settings, tiny_model)), io.StringIO()
    console = Screen(file=written, width=160)
    spoken = show.find(project / "data/evaluation/base", domain, TESTS[1].id, 0)
    more = show.known_more(spoken, domain, critic, True)
    show.show_trajectory(console, spoken, domain, False, more)
    text = written.getvalue()
    assert len(more["advantages"]) == len(spoken.turns)
    assert all(f"advantage {value:+.3f}" in text for value in more["advantages"])
    assert "expected" in text and all(run["expected"] in text for run in more["runs"]) and len(more["runs"]) == 10
    assert show.known_more(spoken, domain, None, False) == {}
    with pytest.raises(UserError, match="no peft adapter here"):
        TrainedCritic.load(domain, tmp_path)
    user = show.TerminalUser(console, domain, TrainedCritic.load(domain, critic))
    user.task = TESTS[1]
    advantage = user.advantage([spoken.messages[0], Message("assistant", "Rate: how high is it?")])
    assert advantage is not None and abs(advantage) > 1e-6
    assert show.TerminalUser(console, domain).advantage(spoken.messages) is None
