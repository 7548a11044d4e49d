"""The parts of a reproduction with simulated stages: what is trained, measured and tuned, and where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.io import read_json, write_json
from sweetrl.reproduce import __main__ as program
from sweetrl.reproduce import run
from sweetrl.reproduce.claims import sha256
from sweetrl.reproduce.evaluate import OUT, PLAN
from sweetrl.reproduce.run import STAGES, Profile
from sweetrl.reproduce.tuning import budgets, read_tuning
from sweetrl.sweet.pairs import read_pairs, trajectory_pairs, write_pairs
from sweetrl.types import Message, Task, Trajectory, TrajectoryPair
from tests.reproduce.made import edit, profile_folder, read_variant, results

Calls = list[tuple[str, str]]
OF_A_VARIANT = {"summary.json", "parameters.json"}
LEAST = "profile: x\nseeds: [7]\nvariants: [rft]\ntemperatures: [0]\nchoose: {}\nsettings: {}\n"  # of a profile


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile with a base and one seed's data; the current folder."""
    folder = profile_folder(tmp_path)
    (tmp_path / "models" / "base").mkdir(parents=True)
    (tmp_path / "models" / "base" / "weights").write_text("w", encoding="utf-8")
    for name in ("tasks", "trajectories"):
        (folder / "seed-data" / "7" / name).mkdir(parents=True)
    (folder / "seed-data" / "7" / "tasks" / "validation.parquet").write_text("tasks", encoding="utf-8")
    (folder / "seed-data" / "7" / "pairs.parquet").write_text("pairs", encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The stages that were run, as (folder, stage); each leaves what the real one would, and takes 3 seconds."""
    seen: Calls = []

    def stage(place: Path, name: str, parent: None, module: str, part: str) -> None:
        seen.append((place.name, name))
        if name == "train-critic":
            write_json(place / "models" / "critic" / "critic.json", {})
        if name == "rank":
            write_json(place / "data" / "preferences" / "preferences.json", {})
        if name == "train-policy":
            write_json(place / "models" / "policy" / "adapter_config.json", {"part": part})
        if name == "evaluate":
            pretend(place)
        write_json(place / "reports" / "runs" / f"{name}.json", {"summary": "", "metrics": {}})

    monkeypatch.setattr(run, "run_stage_in", stage)
    monkeypatch.setattr(run, "_parent", lambda *given: None)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=count(step=3).__next__))
    return seen


@contextmanager
def dying_at(stage: str, after: int = 0) -> Iterator[None]:
    """The run is interrupted at `stage`, after `after` earlier runs of that stage."""
    go_on: Callable[..., None] = run._stage
    times = count()

    def dies(place: Path, name: str, *args: Any) -> None:
        if name == stage and next(times) >= after:
            raise KeyboardInterrupt
        go_on(place, name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_stage", dies)
        yield


def pretend(place: Path) -> None:
    """What the measuring stage leaves behind: colder is better, and so is a higher learning rate of RFT."""
    from sweetrl.evaluation.metrics import write_results

    plan = read_json(place / PLAN)
    rate = yaml.safe_load((place / "params.yaml").read_text(encoding="utf-8"))["rft"]["learning_rate"]
    count = plan["choose"]["tasks"]
    validation = {
        f"{at:g}": {"success": 0.5 - at / 4 + 10 * rate, "reward": 0.6, "questions": 3.0, "tasks": count}
        for at in plan["choose"]["grid"]
    }
    files = [(at, persona) for persona in ["", *plan["personas"]] for at in plan["temperatures"]]
    measured = [
        {"file": f"t{at:g}{persona}.parquet", "temperature": at, "persona": persona, "reply_tokens": 9.0}
        for at, persona in files
    ]
    for record in measured:
        write_results(place / OUT / record["file"], results(0.5, 7, 20))
    write_json(place / OUT / "summary.json", {"validation": validation, "chosen": 0.0, "measured": measured})


def test_training_and_measuring_are_parts_of_their_own(folder: Path, calls: Calls) -> None:
    run.train_variant(Profile(), "sweet", 7)
    assert calls == [("sweet-7", stage) for stage in ("train-critic", "rank", "train-policy")]
    kept = folder / "variants" / "sweet" / "7"
    assert {path.name for path in kept.iterdir()} == {*OF_A_VARIANT, "policy", "critic", "preferences"}
    stages = read_json(kept / "summary.json")["stages"]
    assert {name: facts["seconds"] for name, facts in stages.items()} == dict.fromkeys(STAGES, 3)
    calls.clear()
    run.measure(Profile(), "sweet", 7)
    assert calls == [("measured-sweet-7", "evaluate")]
    summary = read_json(folder / "measured" / "sweet" / "7" / "summary.json")
    personas = {record["persona"] for record in summary["measured"]}
    assert personas == {"", *Profile().personas}, "SWEET-RL meets the others, too"
    sweet = read_variant("sweet", [7])
    assert set(sweet.stages[7]) == {"train-critic", "rank", "train-policy", "evaluate"}
    assert sweet.outcomes[7].summary["chosen"] == 0.0
    assert not any((folder / ".work").iterdir())


def test_a_profile_may_set_a_variant_otherwise(folder: Path, calls: Calls) -> None:
    plain = Profile()
    edit(folder / "params.yaml", variant_settings={"no-privileged": {"critic.learning_rate": 0.25}})
    run.train_variant(Profile(), "no-privileged", 7)
    run.measure(Profile(), "no-privileged", 7)
    variant = Profile().variant("no-privileged")
    assert variant.settings == {**plain.variant("no-privileged").settings, "critic.learning_rate": 0.25}
    kept = read_json(folder / "measured" / "no-privileged" / "7" / "summary.json")
    assert kept["settings"] == Profile().mark(variant, 7)["settings"]
    assert kept["settings"] != plain.mark(plain.variant("no-privileged"), 7)["settings"], "kept outcomes notice it"
    assert Profile().variant("sweet") == plain.variant("sweet")


def played(task: str, attempt: int, reward: float) -> Trajectory:
    request = Message("user", f"Request {task}")
    described = Task(task, request.content, f"program {task}", (("test1", "f()"),), f"facts {task}")
    return Trajectory(described, attempt, (request, Message("assistant", f"{task} {attempt}")), reward=reward)


@pytest.mark.parametrize("name", ["sweet", "other-c", "no-rewards", "sweet-third"])
def test_a_control_learns_from_what_it_says(folder: Path, calls: Calls, name: str) -> None:
    """Another task's c with its own facts, tests and rewards; or pairs by rewards that were shuffled."""
    dialogues = [played(f"t{task}", attempt, float(attempt == 1)) for task in range(12) for attempt in range(4)]
    TrajectoryStore(folder / "seed-data" / "7" / "trajectories").write_shard(0, dialogues)
    real, _ = trajectory_pairs(dialogues, "all")
    write_pairs(folder / "seed-data" / "7" / "pairs.parquet", real)
    seen: list[tuple[list[Trajectory], list[TrajectoryPair]]] = []
    go_on = run._stage

    def look(place: Path, stage: str, *rest: Any) -> None:
        if stage == "train-critic":
            data = place / "data"
            seen.append((list(TrajectoryStore(data / "trajectories").read()), read_pairs(data / "pairs.parquet")))
        go_on(place, stage, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_stage", look)
        run.train_variant(Profile(), name, 7)
    ((copies, pairs),) = seen
    count = 16 if name == "sweet-third" else 48
    programs = {copy.task.id: copy.task.ground_truth for copy in copies}
    if name == "other-c":
        assert sorted(programs.values()) == sorted(f"program {task}" for task in programs)
        assert all(program != f"program {task}" for task, program in programs.items())
        copies = [replace(copy, task=replace(copy.task, ground_truth=f"program {copy.task.id}")) for copy in copies]
    assert copies == dialogues[:count], "all else is as it was"
    if name != "no-rewards":
        assert pairs == real[: len(real) * count // 48]
        return
    assert [pair.task_id for pair in pairs] == [pair.task_id for pair in real], "as many pairs of each task"
    chosen = {pair.chosen_attempt for pair in pairs}
    assert chosen == {0, 1, 2, 3} != {pair.chosen_attempt for pair in real}


@pytest.mark.parametrize("changed", ["data", "base", "code"])
def test_a_killed_variant_does_not_go_on_with_other_inputs(
    folder: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Its critic would be of the old inputs, and its policy of the new ones."""
    with dying_at("rank"):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                run.train_variant(Profile(), "sweet", 7)
    assert calls == [("sweet-7", "train-critic")], "with equal inputs it goes on"
    if changed == "code":
        (folder / "package").mkdir()
        monkeypatch.setattr("sweetrl.__file__", str(folder / "package" / "__init__.py"))
    else:
        data = folder / "seed-data" / "7" / "pairs.parquet"
        path = data if changed == "data" else folder.parents[1] / "models" / "base" / "weights"
        path.write_text("others", encoding="utf-8")
    calls.clear()
    run.train_variant(Profile(), "sweet", 7)
    assert [name for _, name in calls] == ["train-critic", "rank", "train-policy"]


def test_a_killed_best_of_n_does_not_go_on_with_other_settings(folder: Path, calls: Calls) -> None:
    """Its finished batches lie in the folder's .scratch, whose name does not know how a variant's critic rates."""
    for weight in (0.02, 0.5):
        edit(folder / "params.yaml", variant_settings={"sweet": {"policy.advantage_temperature": weight}})
        with dying_at("best-of-n"), pytest.raises(KeyboardInterrupt):
            run.best_of_n(Profile(), "sweet", 7)
        begun = folder / ".work" / "best-of-n-sweet-7" / ".scratch"
        assert not begun.exists()
        begun.mkdir()
    with dying_at("best-of-n"), pytest.raises(KeyboardInterrupt):
        run.best_of_n(Profile(), "sweet", 7)
    assert begun.exists(), "with the same settings it goes on"


def test_a_row_is_trained_as_it_says_whatever_the_project_trains(folder: Path, calls: Calls) -> None:
    """With `method: rft` in the project's params.yaml the row SWEET-RL was rejection fine-tuning."""
    project = folder.parents[1] / "params.yaml"
    kept = {name: Profile().mark(Profile().variant(name), 7) for name in ("sweet", "no-privileged", "sweet-iterations")}
    edit(project, method="rft", iterations=3)
    assert {name: Profile().mark(Profile().variant(name), 7) for name in kept} == kept
    run.train_variant(Profile(), "sweet", 7)
    parameters = read_json(folder / "variants" / "sweet" / "7" / "parameters.json")["parameters"]
    assert (parameters["method"], parameters["iterations"]) == ("sweet", 1)
    assert [name for _, name in calls] == ["train-critic", "rank", "train-policy"]


def test_a_policy_of_other_settings_is_not_measured_as_one_of_these(folder: Path, calls: Calls) -> None:
    """DVC trains again what has changed, but a part run by hand measured the old policy as if it were the new one."""
    run.train_variant(Profile(), "rft", 7)
    project = folder.parents[1] / "params.yaml"
    values = yaml.safe_load(project.read_text(encoding="utf-8"))
    edit(project, gate={**values["gate"], "power": 0.9}, policy={**values["policy"], "epochs": 9.0})
    run.measure(Profile(), "rft", 7)  # neither decides anything here
    edit(project, rft={**values["rft"], "epochs": 9.0})
    with pytest.raises(UserError, match=r"rft/7: this policy was trained with other `rft` than .* variant rft 7"):
        run.measure(Profile(), "rft", 7)
    edit(project, **values)
    (folder / "seed-data" / "7" / "pairs.parquet").write_text("others", encoding="utf-8")
    with pytest.raises(UserError, match="with other `data` than there are now"):
        run.measure(Profile(), "rft", 7)
    run.train_variant(Profile(), "rft", 7)
    run.measure(Profile(), "rft", 7)


def test_what_is_not_trained_is_measured_as_it_is(folder: Path, calls: Calls) -> None:
    run.train_variant(Profile(), "zero-shot", 7)
    assert calls == []
    run.measure(Profile(), "zero-shot", 7)
    assert not (folder / "variants" / "zero-shot" / "7" / "policy").exists()
    run.train_variant(Profile(), "answered-turns", 7)
    run.measure(Profile(), "answered-turns", 7)
    summary = read_json(folder / "measured" / "answered-turns" / "7" / "summary.json")
    assert {record["persona"] for record in summary["measured"]} == {""}


def test_claims_are_kept_from_before_the_first_test_task(folder: Path, calls: Calls) -> None:
    run.train_variant(Profile(), "zero-shot", 7)
    before = sha256(folder / "claims.yaml")
    with dying_at("evaluate"), pytest.raises(KeyboardInterrupt):
        run.measure(Profile(), "zero-shot", 7)
    with (folder / "claims.yaml").open("a", encoding="utf-8") as file:
        file.write("- {claim: late, better: sweet, worse: rft, temperature: 1}\n")
    run.measure(Profile(), "zero-shot", 7)
    kept = read_json(folder / "measured" / "zero-shot" / "7" / "summary.json")["claims"]
    assert kept["sha256"] == before, "those from before the kill"
    assert "late" not in [claim["claim"] for claim in kept["claims"]] and len(kept["claims"]) > 2
    (folder / "claims.yaml").write_text("- {claim: x, better: y, worse: rft}", encoding="utf-8")
    with pytest.raises(UserError, match="claim 1: there is no variant `y`"):
        run.measure(Profile(), "zero-shot", 7)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("params.yaml", "a: [", r"params\.yaml: line 1: this is not YAML"),
        ("params.yaml", "profile: x", r"params\.yaml: `seeds` is missing; reproduce/small/params\.yaml shows"),
        ("params.yaml", f"{LEAST}warm_start_settings: {{model.rate: 1}}", r"unknown parameter `model\.rate`"),
        ("params.yaml", f"{LEAST}variant_settings: {{swet: {{}}}}", "there is no variant `swet`; there are zero-shot"),
        ("params.yaml", f"{LEAST}variant_settings: {{rft: {{rft.rate: 1}}}}", r"unknown parameter `rft\.rate`"),
        ("../../params.yaml", "- 1", r"params\.yaml: these are no parameters \(names and values\)"),
    ],
)
def test_a_broken_file_of_a_profile_is_one_sentence(folder: Path, file: str, text: str, message: str) -> None:
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        _ = Profile().claims


def test_tuning_tries_a_grid_on_validation_tasks_and_keeps_every_run(folder: Path, calls: Calls) -> None:
    assert read_tuning(folder / "none.yaml") == []
    edit(folder / "params.yaml", tuning={"rft": [{}, {"rft.learning_rate": 4.0e-03}]})
    program.run(["tune", "rft", "7"])
    assert [stage for _, stage in calls] == ["train-policy", "evaluate"] * 2
    runs = read_tuning(folder / "tuning.yaml")
    assert [(run["variant"], run["seed"], run["settings"]) for run in runs] == [
        ("rft", 7, {}),
        ("rft", 7, {"rft.learning_rate": 4.0e-03}),
    ]
    assert set(runs[0]["at"]) == {"0", "1"} and runs[0]["tasks"] == Profile().values["choose"]["tasks"]
    text = (folder / "tuning.yaml").read_text(encoding="utf-8")
    assert text.startswith("# What was tried"), "comments stay"
    calls.clear()
    program.run(["tune", "rft", "7"])
    assert calls == [], "what is in the file is not run again"
    (folder / "seed-data" / "7" / "tasks" / "validation.parquet").write_text("others", encoding="utf-8")
    program.run(["tune", "rft", "7"])
    assert len(read_tuning(folder / "tuning.yaml")) == 4, "other tasks are other runs"
    edit(folder / "params.yaml", tuning_tasks=60)
    program.run(["tune", "rft", "7"])
    assert [run["tasks"] for run in read_tuning(folder / "tuning.yaml")[4:]] == [60, 60]
    assert not any((folder / ".work").iterdir())


def test_tuning_trains_a_critic_once_for_settings_of_later_stages(folder: Path, calls: Calls) -> None:
    policy, ranks = {"policy.epochs": 3.0}, {"rank.reply_types": "median_centered"}
    edit(folder / "params.yaml", tuning={"sweet": [{}, policy, ranks, {**ranks, **policy}, {"critic.epochs": 2.0}]})
    program.run(["tune", "sweet", "7"])
    ranks_too, everything = ["rank", "train-policy"], ["train-critic", "rank", "train-policy"]
    runs = [everything, ["train-policy"], ranks_too, ["train-policy"], everything]
    assert [name for _, name in calls] == [name for names in runs for name in [*names, "evaluate"]]
    assert [run["settings"] for run in read_tuning(folder / "tuning.yaml")] == Profile().values["tuning"]["sweet"]
    assert not any((folder / ".work").iterdir())


def test_a_killed_tuning_goes_on_with_the_critics_of_runs_that_were_done(folder: Path, calls: Calls) -> None:
    edit(folder / "params.yaml", tuning={"sweet": [{}, {"policy.epochs": 3.0}]})
    stages = len(STAGES) + 1
    with dying_at("train-policy", after=1), pytest.raises(KeyboardInterrupt):
        program.run(["tune", "sweet", "7"])
    assert len(calls) == stages
    program.run(["tune", "sweet", "7"])
    assert [name for _, name in calls[stages:]] == ["train-policy", "evaluate"]
    assert not any((folder / ".work").iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tune", "zero-shot", "7"], "`tuning.zero-shot` lists no settings to try"),
        (
            ["tune", "rft", "8"],
            "seed-data/8: there is nothing here yet; run the part that makes it",
        ),
        (["tune", "raft", "7"], "there is no variant `raft`"),
        (["measure", "rft"], "is no part; name a part: .*measure NAME SEED.*tune NAME SEED"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(folder: Path, calls: Calls, arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        program.run(arguments)


def test_budgets_are_counted_by_method() -> None:
    def tried(variant: str, value: float, **settings: Any) -> dict[str, Any]:
        at = {"0": {"success": value, "reward": 0.0}, "1": {"success": value / 2, "reward": 0.0}}
        return {"variant": variant, "seed": 7, "settings": settings, "at": at, "digest": "d"}

    runs = [tried("sweet", 0.2, a=1), tried("rft", 0.9), tried("sweet", 0.6, a=2), tried("sweet", 0.3)]
    rft, sweet = budgets(runs, "success")
    assert (rft["variant"], rft["runs"], sweet["variant"], sweet["runs"]) == ("rft", 1, "sweet", 3)
    cold = sweet["at"]["0"]
    assert (cold["best"], cold["median"], cold["settings"], cold["values"]) == (0.6, 0.3, {"a": 2}, [0.2, 0.3, 0.6])
    assert sweet["at"]["1"]["best"] == 0.3


def test_a_profiles_base_is_a_pretrained_model_after_its_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in a folder of its own, where a killed run goes on; the project's model is not touched."""
    profile = profile_folder(tmp_path, "smollm2")
    pretrained = tmp_path / "models" / "smollm2"
    pretrained.mkdir(parents=True)
    (pretrained / "weights").write_text("w", encoding="utf-8")
    monkeypatch.chdir(profile)
    seen: list[str] = []

    def stage(place: Path, name: str, profile: Profile, seed: int, part: str, module: str = "") -> None:
        tree = yaml.safe_load((place / "params.yaml").read_text(encoding="utf-8"))
        assert (place / tree["warm_start"]["base"] / "weights").read_text(encoding="utf-8") == "w"
        seen.append(name)
        if len(seen) == 1:
            raise UserError("killed")
        write_json(place / tree["model"]["base"] / "config.json", {"new": True})

    monkeypatch.setattr(run, "_stage", stage)
    with pytest.raises(UserError):
        program.run(["warm-start"])
    program.run(["warm-start"])
    assert seen == ["warm-start", "warm-start"]
    assert read_json(profile / "models" / "smollm2-warm" / "config.json") == {"new": True}
    assert not (profile / ".work" / "warm-start").exists() and [*pretrained.iterdir()] == [pretrained / "weights"]
    # The parts that begin from it get that folder, and not one of the project.
    folder = run.workspace(Profile(), "part", Profile().tree(31))
    assert (folder / "models" / "smollm2-warm").resolve() == (profile / "models" / "smollm2-warm").resolve()
