"""Running one part of a reproduction: the ordinary stages, in a folder of their own, with the settings of a variant.

The folder .work/<part>-<seed> of the profile's folder holds what is unfinished: a killed part goes on where it was.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import sweetrl
from sweetrl.api.learning import own_settings
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import digest, private_folder, publish, read_json, write_json
from sweetrl.paths import LAST_POLICY, POLICY, RUNS
from sweetrl.reproduce.claims import CLAIMS, Claim, read_claims, record
from sweetrl.reproduce.evaluate import OUT, PLAN
from sweetrl.reproduce.outcomes import MEASURED, SUMMARY, Outcome, origin
from sweetrl.reproduce.permuted import permuted_references, permuted_rewards
from sweetrl.reproduce.variants import LARGE_BASE, ONLINE, VARIANTS, Variant, merged, variant_named
from sweetrl.stages.launch import absolute_tracking, finished, link, prepare, run_stage_in
from sweetrl.sweet.pairs import trajectory_pairs, write_pairs
from sweetrl.tracking.runs import RunLog

ROOT = Path("../..")  # of the project, from a profile's folder, where dvc.yaml runs every command
WORK = Path(".work")
STAGES = ("train-critic", "rank", "train-policy")
PARAMETERS = "parameters.json"  # beside a variant's results: what they were made with
ELSEWHERE = ("gate", "ingest", "sources")  # sections that no training looks at
VARIANT_LISTS = ("variants", "large", "online")  # in a profile's params.yaml; each is a matrix of its own in dvc.yaml


class Profile:
    """What reproduce/<name>/params.yaml says, over the project's own params.yaml.

    The first of `seeds` comes first everywhere. Every variant is measured at all `temperatures`, beside the one that is
    chosen. `personas` are users other than the one who was trained with; policies meet them at `persona_temperatures`.
    """

    def __init__(self, folder: Path = Path()) -> None:
        self.folder = folder
        path, root = folder / "params.yaml", folder / ROOT
        if not path.exists() or not (root / "params.yaml").exists():
            raise UserError(f"{path.resolve()}: no profile of a reproduction; run `make reproduce` in the project.")
        self.values: dict[str, Any] = _mapping(path)
        for key in ("profile", "seeds", "variants", "temperatures", "choose", "settings"):
            if key not in self.values:
                raise UserError(f"{path}: `{key}` is missing; reproduce/small/params.yaml shows what a profile says.")
        project = _mapping(root / "params.yaml")
        # Rows say how they are trained; what the project itself is set to would train all of them so.
        ours = {"method": "sweet", "iterations": 1}
        store = absolute_tracking(project["tracking"], root)  # the project's, wherever a stage runs
        tracking = {f"tracking.{name}": store[name] for name in ("uri", "artifacts")}
        self.settings = merged(project, ours, self.values["settings"], tracking)
        self._own: Mapping[str, Mapping[str, Any]] = self.values.get("variant_settings") or {}
        self.warm_start_settings: Mapping[str, Any] = self.values.get("warm_start_settings") or {}
        for changes in (self.warm_start_settings, *(self.variant(name).settings for name in self._own)):
            merged(self.settings, changes)  # what is not there is said before anything runs
        self.seeds = [int(seed) for seed in self.values["seeds"]]
        self.temperatures = [float(temperature) for temperature in self.values["temperatures"]]
        self.personas = [str(persona) for persona in self.values.get("personas", [])]
        self.persona_temperatures = [float(each) for each in self.values.get("persona_temperatures", [])]

    @property
    def domain(self) -> Domain:
        """What is measured, and so what the tables say."""
        return load_domain(parse_settings(self.settings, "reproduce"))

    @property
    def variants(self) -> list[Variant]:
        """The variants in the order of the tables."""
        return [self.variant(name) for part in VARIANT_LISTS for name in self.values.get(part, [])]

    def variant(self, name: str) -> Variant:
        """Return a variant with what the profile's `variant_settings` says of it over its own settings."""
        variant = variant_named(name)
        return replace(variant, settings={**variant.settings, **self._own.get(name, {})})

    def seeds_of(self, variant: Variant) -> list[int]:
        """The seeds that a variant is run on: the first few of them for those that `fewer_seeds` names."""
        seeds = [int(seed) for seed in self.values.get(f"{variant.folder}_seeds", self.seeds)]
        fewer = self.values.get("fewer_seeds", {"count": 0, "variants": []})
        return seeds[: int(fewer["count"])] if variant.name in fewer["variants"] else seeds

    @property
    def claims(self) -> list[Claim]:
        """What claims.yaml says."""
        temperatures = [f"{temperature:g}" for temperature in self.temperatures]
        return read_claims(self.folder / CLAIMS, temperatures, self.personas)

    def plan(self, variant: Variant) -> dict[str, Any]:
        """Return what is measured of a variant (the content of evaluate.PLAN)."""
        met = variant.name in self.values.get("persona_variants", [])
        grid, tasks = self.values["choose"]["grid"], self.values["choose"]["tasks"]
        return {
            "temperatures": self.temperatures,
            "choose": {"grid": [float(temperature) for temperature in grid], "tasks": int(tasks)},
            "personas": self.personas if met else [],
            "persona_temperatures": self.persona_temperatures,
            "opening": variant.opening,
        }

    def tree(self, seed: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the parameters of a part as a tree."""
        return merged(self.settings, {"seed": seed}, changes or {})

    def base_of(self, tree: Mapping[str, Any]) -> Path:
        """Return where the base of the parameters `tree` lies: one of the reproduction itself, else the project's."""
        own = self.folder / tree["model"]["base"]
        return own if own.exists() else self.folder / ROOT / tree["model"]["base"]

    def decisive(self, variant: Variant, tree: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return those of the parameters `tree` that a variant's policy depends on, and its base's hash, "" for none.

        What other methods are set to is none of them, nor is what is measured on test tasks.
        """
        base = self.base_of(tree)
        others = {VARIANTS[name].method.section for name in VARIANTS}
        others |= {"rank", "judge", "tracking", "evaluate", "best_of_n", *ELSEWHERE}
        if variant.trained:
            others -= {variant.method.section, *(("rank", "judge") if variant.ranks else ())}
        every = parse_settings(dict(tree), "reproduce").model_dump(mode="json", by_alias=True)
        settings = {name: values for name, values in every.items() if name not in others}
        return settings, dvc_hash(base) if base.exists() else ""

    def mark(self, variant: Variant, seed: int) -> dict[str, str]:
        """Return what is kept with results, so that `still` can tell whether settings and base are those of then."""
        settings, base = self.decisive(variant, self.tree(seed, variant.settings))
        return {"settings": digest(settings), "base": base}

    def still(self, kept: Outcome) -> bool:
        """Whether results are those of the present settings and base, of as many tasks and with the same temperatures.

        A base that is not here is not looked at.
        """
        summary, tried = kept.summary, kept.summary["validation"]
        if summary["variant"] not in VARIANTS:  # of another version
            return False
        variant = self.variant(summary["variant"])
        now, choose = self.mark(variant, int(summary["seed"])), self.plan(variant)["choose"]
        tasks = min(self.settings["evaluate"]["tasks"], self.settings["tasks"]["test"])
        return (
            summary["settings"] == now["settings"]
            and now["base"] in ("", summary["base"])
            and all(len(results) == tasks for results in kept.results.values())
            and set(tried) == {f"{temperature:g}" for temperature in choose["grid"]}
            and max(means["tasks"] for means in tried.values()) == choose["tasks"]
        )


def _mapping(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: these are no parameters (names and values); restore the file from git.")
    return values


def base(profile: Profile) -> None:
    """Train the profile's base agent from scratch (stage `pretrain`) into the project's models/.

    One that does not ship with the project (the profile has `base_settings`) comes into the profile's own models/.
    """
    own = profile.values.get("base_settings")
    tree = profile.tree(profile.seeds[0], own)
    folder = workspace(profile, "base", tree, fresh=True)
    root = profile.folder if own is not None else profile.folder / ROOT
    _make_base(profile, folder, "pretrain", tree, root / tree["model"]["base"])


def warm_start(profile: Profile) -> None:
    """Let the profile's pretrained model learn from demonstrations (stage `warm-start`) -> its `model.base`."""
    tree = profile.tree(profile.seeds[0], profile.warm_start_settings)
    folder = workspace(profile, "warm-start", tree, fresh=True)
    pretrained = tree["warm_start"]["base"]
    link(profile.folder / ROOT / pretrained, folder / pretrained)
    _make_base(profile, folder, "warm-start", tree, profile.folder / tree["model"]["base"])


def base_large(profile: Profile) -> None:
    """Train the larger base of Table 4, grown from the small one -> models/base-large/."""
    tree = merged(profile.settings, profile.values["large_base"])
    folder = workspace(profile, "base-large", tree, fresh=True)
    link(profile.folder / ROOT / tree["model"]["base"], folder / "small")
    _make_base(profile, folder, "pretrain", tree, Path(LARGE_BASE), "sweetrl.reproduce.larger")


def _make_base(
    profile: Profile, folder: Path, stage: str, tree: Mapping[str, Any], out: Path, module: str = ""
) -> None:
    if not finished(folder, stage):
        _stage(folder, stage, profile, int(tree["seed"]), folder.name, module)
    _finish(folder, folder / tree["model"]["base"], out)


def seed_data(profile: Profile, seed: int) -> None:
    """Tasks, dialogues of the base agent and pairs of them, for one seed -> seed-data/<seed>/."""
    folder = workspace(profile, f"seed-data-{seed}", profile.tree(seed))
    stages = ("tasks", "collect", "validate")
    for stage in stages:
        _stage(folder, stage, profile, seed, "seed-data")
    write_json(folder / "data" / "facts.json", {stage: _facts(folder, stage) for stage in stages})
    _finish(folder, folder / "data", Path("seed-data") / str(seed))


def train_variant(profile: Profile, name: str, seed: int) -> None:
    """Train one variant on one seed -> variants/<name>/<seed>/ (or large/, online/)."""
    variant = profile.variant(name)
    tree, made_of = profile.tree(seed, variant.settings), inputs(profile, variant, seed)
    settings = parse_settings(tree, f"variant {name}")
    folder = workspace(profile, f"{name}-{seed}", tree, made_of=made_of)
    train(profile, folder, variant, settings, name)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    done = [stage for stage in (*STAGES, "iterate") if finished(folder, stage)]
    summary = {"variant": name, "seed": seed, "stages": {stage: _facts(folder, stage) for stage in done}}
    if variant.table == ONLINE:
        method = variant.method
        own = own_settings(method, settings)
        summary["dialogues"] = method.dialogues(own, settings.collect, settings.iterations)
    write_json(out / SUMMARY, summary)
    del tree["tracking"]  # the store's place is nobody's result
    write_json(out / PARAMETERS, {**made_of, "parameters": tree})
    if variant.trained:
        shutil.copytree(folder / POLICY, out / POLICY.name)
    for source in (folder / "models/critic", folder / "data/preferences") if variant.ranks else ():
        if source.exists() and not (source / "skipped.json").exists():
            shutil.copytree(source, out / source.name)
    for kind in ("data", "models") if settings.iterations > 1 else ():
        shutil.copytree(folder / kind / "iterations", out / "iterations" / kind)
    _finish(folder, out, Path(variant.folder) / name / str(seed))


def _finish(folder: Path, made: Path, out: Path) -> None:
    """Put what a part has made in its place; its workspace goes."""
    publish(made, out)
    shutil.rmtree(folder)


def inputs(profile: Profile, variant: Variant, seed: int) -> dict[str, str]:
    """Return the hashes of what a variant is trained from: its base and the seed's data."""
    data = Path("seed-data") / str(seed)
    if not data.exists():
        raise UserError(f"{data}: there is nothing here yet; run the part that makes it (`dvc repro`) first.")
    return {"base": profile.mark(variant, seed)["base"], "data": dvc_hash(data)}


def train(profile: Profile, folder: Path, variant: Variant, settings: Settings, part: str) -> None:
    """Run the stages of a variant that make its policy, in its workspace; what is finished there is not run again."""
    seed = settings.seed
    _learn_from(folder, Path("seed-data") / str(seed), variant, settings)
    if variant.trained:
        for stage in STAGES if variant.ranks else STAGES[-1:]:
            if not finished(folder, stage):
                _stage(folder, stage, profile, seed, part)
    if settings.iterations > 1:
        if not finished(folder, "iterate"):
            _stage(folder, "iterate", profile, seed, part)
        publish(folder / LAST_POLICY, folder / POLICY)  # what is evaluated


def measure(profile: Profile, name: str, seed: int) -> None:
    """Let the policy of a variant attempt the test tasks, at every temperature -> measured/<name>/<seed>/.

    What claims.yaml says before the first of them is kept with the results.
    """
    variant = profile.variant(name)
    folder = workspace(profile, f"{MEASURED}-{name}-{seed}", profile.tree(seed, variant.settings))
    link(Path("seed-data") / str(seed) / "tasks", folder / "data" / "tasks")
    if variant.trained:
        trained = Path(variant.folder) / name / str(seed)
        _check_trained(profile, variant, seed, trained)
        link(trained / POLICY.name, folder / POLICY)
    note = folder / "claims.json"
    if not note.exists():  # else a killed run's, from before it saw anything
        write_json(note, record(profile.folder / CLAIMS, profile.claims))
    run_plan(profile, folder, profile.plan(variant), seed, name)
    out = folder / OUT
    identity = {"variant": name, "seed": seed, "origin": origin(), **profile.mark(variant, seed)}
    summary = {**identity, "claims": read_json(note), **read_json(out / SUMMARY)}
    write_json(out / SUMMARY, summary | {"stages": {"evaluate": _facts(folder, "evaluate")}})
    _finish(folder, out, Path(MEASURED) / name / str(seed))


def _check_trained(profile: Profile, variant: Variant, seed: int, trained: Path) -> None:
    """Raise a UserError for a policy of other settings, another base or other data than those that are noted now."""
    if not (trained / PARAMETERS).exists():
        return
    kept, now = read_json(trained / PARAMETERS), inputs(profile, variant, seed)
    before = kept | profile.decisive(variant, kept["parameters"])[0]
    today = now | profile.decisive(variant, profile.tree(seed, variant.settings))[0]
    if other := [f"`{name}`" for name in today if digest(before.get(name)) != digest(today[name])]:
        raise UserError(
            f"{trained}: this policy was trained with other {', '.join(other)} than there are now; train it again: "
            f"`python -m sweetrl.reproduce variant {variant.name} {seed}`."
        )


def run_plan(profile: Profile, folder: Path, plan: Mapping[str, Any], seed: int, part: str) -> None:
    """Measure the policy in a workspace as `plan` says."""
    write_json(folder / PLAN, dict(plan))
    _stage(folder, "evaluate", profile, seed, part, "sweetrl.reproduce.evaluate")


def best_of_n(profile: Profile, name: str, seed: int) -> None:
    """Let the critic of a variant pick replies at N = 1, 2, 4, ... -> best-of-n/<variant>/<seed>.json."""
    own = profile.variant(name).settings.items()
    decisive = ("critic.", "rank.", "policy.advantage_temperature")
    tree = profile.tree(seed, {key: value for key, value in own if key.startswith(decisive)})
    folder = workspace(profile, f"best-of-n-{name}-{seed}", tree)
    link(Path("seed-data") / str(seed) / "tasks", folder / "data" / "tasks")
    trained = Path("variants") / name / str(seed) / "critic"
    (folder / "critics").mkdir(exist_ok=True)
    if trained.exists():  # the controls have none
        link(trained, folder / "critics" / name)
    (folder / "critics" / f"{name}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    _stage(folder, "best-of-n", profile, seed, f"best-of-n {name}", "sweetrl.reproduce.picking")
    out = picked(name, seed)
    write_json(out, read_json(folder / "reports" / "best-of-n.json") | {"seconds": _facts(folder, "best-of-n")})
    shutil.rmtree(folder)


def picked(name: str, seed: int) -> Path:
    """Where the curve of a variant's critic is."""
    return Path("best-of-n") / name / f"{seed}.json"


def workspace(
    profile: Profile,
    name: str,
    tree: Mapping[str, Any],
    fresh: bool = False,
    made_of: Mapping[str, str] | None = None,
) -> Path:
    """Make (or find, after a kill) the folder of a part: its parameters, the base model, the shared cache.

    What is left of other parameters is removed: nothing stale goes on. With `made_of` (hashes of what the part reads)
    neither does what was begun with other inputs, or by other code: its finished stages would be taken for these. A
    `fresh` part makes the base model itself.
    """
    folder = profile.folder / WORK / name
    now = {**(made_of or {}), "code": dvc_hash(Path(sweetrl.__file__).parent)} if made_of is not None else None
    note = folder / "inputs.json"
    if now is not None and note.exists() and read_json(note) != now:
        shutil.rmtree(folder)
    prepare(folder, tree)
    if now is not None:
        write_json(note, now)
    if not fresh:
        link(profile.base_of(tree), folder / tree["model"]["base"])
    link(private_folder(profile.folder / ROOT / ".cache"), folder / ".cache")
    return folder


def _learn_from(folder: Path, source: Path, variant: Variant, settings: Settings) -> None:
    """Put a seed's data into a variant's folder: as they are, those of the first tasks, or permuted."""
    as_they_are = variant.data >= 1.0 and not variant.permuted
    for name in {"tasks", *(("trajectories", "pairs.parquet") if variant.trained and as_they_are else ())}:
        link(source / name, folder / "data" / name)
    if not variant.trained or (folder / "data" / "pairs.parquet").exists():
        return
    everything = list(TrajectoryStore(source / "trajectories").read())
    order = list(dict.fromkeys(each.task.id for each in everything))
    kept = set(order[: round(variant.data * len(order))])
    part = [each for each in everything if each.task.id in kept]
    if variant.permuted == "references":
        part = permuted_references(part, settings.seed)
    TrajectoryStore(folder / "data" / "trajectories").write_shard(0, part)
    compared = permuted_rewards(part, settings.seed) if variant.permuted == "rewards" else part
    pairs, _ = trajectory_pairs(compared, settings.critic.pairs, settings.critic.gap)
    write_pairs(folder / "data" / "pairs.parquet", pairs)


def _stage(folder: Path, stage: str, profile: Profile, seed: int, part: str, module: str = "") -> None:
    """Run one stage in `folder` under a run of the part, and add to its run file how long it took."""
    parent, started = _parent(folder, profile, seed, part), time.monotonic()
    run_stage_in(folder, stage, parent, module, f"{part}, seed {seed}")
    note = folder / RUNS / f"{stage}.json"
    write_json(note, read_json(note) | {"seconds": round(time.monotonic() - started, 3)})


def _parent(folder: Path, profile: Profile, seed: int, part: str) -> str | None:
    """The MLflow run that a part's stages belong to; made once, kept in the part's folder."""
    note = folder / "run.json"
    if note.exists():
        run_id: str | None = read_json(note)["run_id"]
        return run_id
    settings = parse_settings(_mapping(folder / "params.yaml"))
    tags = {"sweetrl.kind": "reproduction", "sweetrl.variant": part, "sweetrl.seed": str(seed)}
    run = RunLog(settings.tracking, f"{part} {seed}", {**tags, "sweetrl.profile": str(profile.values["profile"])})
    run.log_params({"variant": part, "seed": seed})
    run.finish("FINISHED")
    write_json(note, {"run_id": run.run_id})
    return run.run_id


def _facts(folder: Path, stage: str) -> dict[str, Any]:
    note = {"seconds": 0.0} | read_json(folder / RUNS / f"{stage}.json")  # a kill just behind the end: not known
    return {key: note[key] for key in ("summary", "seconds", "metrics") if key in note}
