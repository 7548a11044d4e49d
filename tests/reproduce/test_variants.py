"""The variants of the reproduction: every row's settings exist, and the profiles name rows that exist."""

from __future__ import annotations

from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.methods.base import find_method
from sweetrl.methods.baselines import AnsweredTurns
from sweetrl.reproduce import run
from sweetrl.reproduce.run import VARIANT_LISTS
from sweetrl.reproduce.tuning import read_tuning
from sweetrl.reproduce.variants import TABLES, VARIANTS, Variant, merged, variant_named
from sweetrl.types import Message, Task, Trajectory
from tests.reproduce.made import ROOT, profile_folder


def settings_of(values: Any, variant: Variant) -> Settings:
    return parse_settings(merged(values, variant.settings))


PROFILES = sorted(path.parent.name for path in (ROOT / "reproduce").glob("*/params.yaml"))


def project() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variants_settings_are_settings(name: str) -> None:
    settings = settings_of(project(), VARIANTS[name])
    assert settings.method == VARIANTS[name].settings.get("method", "sweet")
    assert find_method(settings.method).name == settings.method


def test_a_variant_stands_in_a_table_and_is_compared_with_one_on_its_base() -> None:
    for variant in VARIANTS.values():
        assert variant.table in TABLES
        assert VARIANTS[variant.against].settings.get("model.base") == variant.settings.get("model.base")


def test_the_filter_that_knows_no_refusal_imitates_every_question_and_successes() -> None:
    method = find_method(str(VARIANTS["every-question"].settings["method"]))
    assert isinstance(method, AnsweredTurns) and method.section == "rft"
    words = Message("user", "A price?"), Message("assistant", "Free?"), Message("user", "No.")
    lost = Trajectory(Task("t", "A price?", "x"), 0, (*words, Message("assistant", "I WANT TO ANSWER:\n0")), reward=0.0)
    assert method.imitated(lost) == [0] and AnsweredTurns().imitated(lost) == []
    assert method.imitated(replace(lost, reward=1.0)) == [0, 1]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_names_variants_and_settings_that_there_are(profile: str) -> None:
    values = yaml.safe_load((ROOT / "reproduce" / profile / "params.yaml").read_text(encoding="utf-8"))
    for part in values.keys() & VARIANT_LISTS:
        assert {variant_named(name).folder for name in values[part]} == {part}, "each list is a matrix of its own"
        assert set(values.get(f"{part}_seeds", [])) <= set(values["seeds"])
    named = {name for part in VARIANT_LISTS for name in values.get(part, [])}
    assert set(values.get("fewer_seeds", {"variants": []})["variants"]) <= named
    assert set(values["critics"]) <= set(values["variants"])
    assert set(values["best_of_n_seeds"]) <= set(values["seeds"])
    least = {0.0} if profile in ("colbench", "smollm2") else {0.0, 1.0}  # there sampling takes too long
    assert least <= set(values["temperatures"])
    assert {*values["temperatures"]} <= {*values["choose"]["grid"]}
    assert set(values["persona_variants"]) <= named
    tree = merged(project(), values["settings"])
    if "large" in values:
        larger = settings_of(merged(tree, values["large_base"]), VARIANTS["large-sweet"])
        assert larger.pretrain.layers > tree["pretrain"]["layers"]
        assert larger.pretrain.width == tree["pretrain"]["width"]
    for name in values.get("online", []):
        online = settings_of(tree, VARIANTS[name])
        collected = tree["collect"]["tasks"] * tree["collect"]["attempts"]
        if online.method == "grpo":  # on as many dialogues of its own as the others are given
            assert online.grpo.iterations * online.grpo.tasks * online.grpo.group_size == collected
    for name, grid in values.get("tuning", {}).items():
        for changes in grid:
            parse_settings(merged(tree, variant_named(name).settings, changes), f"tuning of {name}")
    assert tree["collect"]["tasks"] <= tree["tasks"]["train"]
    assert max(values["choose"]["tasks"], values.get("tuning_tasks", 0)) <= tree["tasks"]["validation"]
    assert tree["evaluate"]["tasks"] <= tree["tasks"]["test"]


def test_all_profiles_run_the_same_pipeline() -> None:
    texts = {name: (ROOT / "reproduce" / name / "dvc.yaml").read_text(encoding="utf-8") for name in PROFILES}
    assert sorted(texts) == [
        "colbench",
        "controls",
        "frontend",
        "full",
        "small",
        "smollm2",
        "uninformed",
        "vague",
    ]
    assert texts["full"] == texts["small"]
    pages, programs = (yaml.safe_load(texts[name])["stages"] for name in ("frontend", "small"))
    for name in ("seed-data", "variant", "measure", "report"):
        assert pages[name]["cmd"] == programs[name]["cmd"]
    base, package = "../../models/base", "../src/sweetrl"
    for name in ("seed-data", "variant", "measure"):  # the same, but with a browser for the sandbox
        words = (("base-frontend", "base"), ("frontend", "backend"))
        own = {dep.replace(*words[0]).replace(*words[1]) for dep in pages[name]["deps"]}
        assert own == set(programs[name]["deps"]) - {"../src/sweetrl/sandbox"} | {"../src/sweetrl/browser"}
        assert {f"{base}-frontend", f"{package}/frontend"} <= set(pages[name]["deps"])


def test_the_profile_of_a_pretrained_model_runs_the_same_stages_on_its_warm_start() -> None:
    smollm2, small = (
        yaml.safe_load((ROOT / "reproduce" / name / "dvc.yaml").read_text())["stages"] for name in ("smollm2", "small")
    )
    converted = [*smollm2["smollm2"]["outs"][0]]
    assert smollm2["warm-start"]["deps"][0] == converted[0] == "../../models/smollm2"
    for name in ("seed-data", "variant", "measure"):
        own = [dep for dep in smollm2[name]["deps"] if dep not in converted]  # the row `pretrained` is measured of it
        assert own == [dep.replace("../../models/base", "models/smollm2-warm") for dep in small[name]["deps"]]
        assert {**smollm2[name], "deps": ()} == {**small[name], "deps": ()}
    tree = run.Profile(ROOT / "reproduce" / "smollm2").settings
    assert [tree["model"]["base"]] == smollm2["warm-start"]["outs"]
    assert f"../../{tree['warm_start']['base']}" == converted[0]
    assert VARIANTS["pretrained"].settings["model.base"] == tree["warm_start"]["base"]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_profile_sets_for_a_variant_makes_dvc_train_and_measure_it_again(profile: str) -> None:
    folder = ROOT / "reproduce" / profile
    stages = yaml.safe_load((folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert "variant_settings" in yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    for name in {"variant", "measure", "large", "measure-large", "online", "measure-online"} & stages.keys():
        parameters = stages[name]["params"]
        (project_keys,) = (keys["../../params.yaml"] for keys in parameters if isinstance(keys, dict))
        assert "settings" in parameters and "variant_settings" in parameters
        assert name.startswith("measure") or "preset" in project_keys, name


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_profile_depends_on_is_there_and_what_it_makes_is_ignored(profile: str) -> None:
    folder = ROOT / "reproduce" / profile
    stages = yaml.safe_load((folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    made = {"../../models/smollm2"}  # by `make smollm2`
    made |= {"../../models/qwen2.5-coder-0.5b", "../../data/colbench"} if profile == "colbench" else set()  # user's
    named = [dep for stage in stages.values() for dep in stage["deps"] if dep.startswith("../") and dep not in made]
    assert named and all((folder / dep).exists() for dep in named)
    assert all((folder / file).exists() for file in ("claims.yaml", "tuning.yaml"))
    ignored = (folder / ".gitignore").read_text(encoding="utf-8").splitlines()
    outs = [out for stage in stages.values() for out in stage["outs"] if isinstance(out, str) and out not in made]
    assert {f"/{out.partition('/')[0]}" for out in outs} | {"/.work"} <= set(ignored)


def test_dvc_at_the_root_knows_no_reproduction_and_sources_have_one_hash_in_both_projects() -> None:
    """`dvc status` at the root is about the main job alone; reproduce/ is a DVC project that links to src/."""
    from dvc.repo import Repo

    hashes = []
    for root in (ROOT, ROOT / "reproduce"):
        with Repo(str(root)) as repo:
            files = {Path(stage.path).relative_to(root).as_posix() for stage in repo.index.stages}
            deps = (
                dep for stage in repo.index.stages if stage.name in ("collect", "seed-data@11") for dep in stage.deps
            )
            hashes.append({Path(str(dep)).name: dep.get_hash() for dep in deps if "sweetrl/" in str(dep)})
        expected = ["dvc.yaml", "iterations/dvc.yaml"] if root == ROOT else [f"{name}/dvc.yaml" for name in PROFILES]
        assert files == set(expected)
    main, other = hashes
    assert {"api", "engines", "rollout"} <= main.keys() & other.keys()
    assert all(main[name] == other[name] for name in main.keys() & other.keys())


def test_the_lock_of_the_pretrained_model_is_of_the_code_that_makes_it() -> None:
    """`make smollm2` writes it; a pull of models/smollm2 gives what the code of this commit makes."""
    folder = ROOT / "reproduce" / "smollm2"
    for dep in yaml.safe_load((folder / "dvc.lock").read_text(encoding="utf-8"))["stages"]["smollm2"]["deps"]:
        assert md5((folder / dep["path"]).read_bytes(), usedforsecurity=False).hexdigest() == dep["md5"], dep["path"]


@pytest.mark.parametrize(
    ("name", "place", "sizes"),
    [
        ("frontend", "../../models/base-frontend", (768, 0.3, 1)),
        ("uninformed", "models/base-uninformed", (1280, 0.0, 2)),
    ],
)
def test_a_base_that_does_not_ship_is_made_in_the_profiles_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str, sizes: tuple[Any, ...]
) -> None:
    """Trainings begin from it; a base that ships replaces the old one."""
    folder = profile_folder(tmp_path, name)
    out = folder / place

    def stage(workspace: Path, stage: str, *rest: Any) -> None:
        settings = parse_settings(yaml.safe_load((workspace / "params.yaml").read_text(encoding="utf-8")))
        pretrain = settings.pretrain
        assert (stage, pretrain.vocabulary, pretrain.informed, settings.model.threads) == ("pretrain", *sizes)
        (workspace / "models" / out.name).mkdir(parents=True)
        (workspace / "models" / out.name / "recipe.json").write_text("new")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(run, "_stage", stage)
    if name == "frontend":
        out.mkdir(parents=True)
        (out / "recipe.json").write_text("old")
    profile = run.Profile()
    run.base(profile)
    assert (out / "recipe.json").read_text() == "new" and not (folder / ".work" / "base").exists()
    assert profile.base_of(profile.tree(61)).resolve() == out.resolve()
    assert (tmp_path / "models").exists() == (name == "frontend")


def test_rows_with_and_without_c_differ_in_nothing_else_where_they_are_untuned() -> None:
    profile = run.Profile(ROOT / "reproduce" / "colbench")
    sweet, without = (settings_of(profile.tree(71), profile.variant(row)) for row in ("sweet", "no-privileged"))
    assert sweet.critic.privileged and not without.critic.privileged
    seen = without.critic.model_copy(update={"privileged": True})
    assert without.model_copy(update={"critic": seen}) == sweet, "these rows differ in c alone"


@pytest.mark.parametrize(
    ("name", "budget", "more"), [("uninformed", 7, "conditioned"), ("smollm2", 4, "forced-answer")]
)
def test_rows_have_the_best_of_equally_many_runs(name: str, budget: int, more: str) -> None:
    values = run.Profile(ROOT / "reproduce" / name).values
    runs, tuning = read_tuning(ROOT / "reproduce" / name / "tuning.yaml"), values["tuning"]
    assert tuning["sweet"] == tuning["no-privileged"] == tuning.get("conditioned", tuning["sweet"])
    for row in ("rft", "multi-turn-dpo", "answered-turns", "sweet", "no-privileged", more):
        own = [run for run in runs if run["variant"] == row]
        assert [each["settings"] for each in own] == tuning[row] and len(own) == budget
        best = max(own, key=lambda each: each["at"]["0"]["success"])
        assert values["variant_settings"][row].items() >= best["settings"].items()
