"""Results of variants that were never run: what the tests of the report read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from sweetrl.evaluation.metrics import write_results
from sweetrl.io import read_json, write_json
from sweetrl.reproduce import report
from sweetrl.reproduce.claims import Claim
from sweetrl.reproduce.outcomes import MEASURED, SUMMARY, Condition, Measured, Outcome, measured_outcome
from sweetrl.reproduce.run import Profile
from sweetrl.reproduce.variants import VARIANTS
from sweetrl.types import Result

ROOT = Path(__file__).resolve().parents[2]
COLD, WARM, CHOSEN = Condition("0"), Condition("1"), Condition("chosen")
ORIGIN = {"date": "2026-01-02", "commit": "0123456789ab", "processor": "a processor"}


def result(task: str, won: bool, **values: Any) -> Result:
    plain = Result(task, "trained", "d", float(won), won, "answered", 10 * won, 10, 5, 4, 1)
    return replace(plain, **{"premature": False, "irrelevant": 0, "details": 3, "untold": 1, **values})


def results(rate: float, seed: int, tasks: int = 200, **values: Any) -> list[Result]:
    """Every fifth task is of a held-out domain."""
    chance = random.Random(seed)
    return [result(f"t{n}", chance.random() < rate, held_out=n % 5 == 0, **values) for n in range(tasks)]


def record_of(*claims: Claim, digest: str = "x") -> dict[str, Any]:
    """What is kept of a file of claims."""
    return {"sha256": digest, "claims": [claim.model_dump(mode="json") for claim in claims]}


def measured(
    name: str, rates: Mapping[int, float], condition: Condition = CHOSEN, tasks: int = 200, claims: Sequence[Claim] = ()
) -> Measured:
    """A variant with success rates by seed, under one condition."""
    by_seed = {seed: {condition: results(rate, seed, tasks)} for seed, rate in rates.items()}
    return measured_results(name, by_seed, {"rank": {"seconds": 2.0, "metrics": {}}}, claims)


def measured_results(
    name: str,
    by_seed: Mapping[int, Mapping[Condition, Sequence[Result]]],
    stages: Mapping[str, Any] | None = None,
    claims: Sequence[Claim] = (),
) -> Measured:
    """A variant with results by seed and condition; the chosen temperature is 0.5."""
    outcomes = {}
    for seed, by_condition in by_seed.items():
        files = {f"{condition}": (condition, rows) for condition, rows in by_condition.items()}
        records = [
            {
                "file": file,
                "temperature": 0.5 if condition.temperature == "chosen" else float(condition.temperature),
                "persona": condition.persona,
                "reply_tokens": 8.5,
            }
            for file, (condition, _) in files.items()
        ]
        summary = {"measured": records, "chosen": 0.5, "validation": {}, "stages": stages or {}}
        summary["claims"] = record_of(*claims)
        outcomes[seed] = Outcome(summary, {"stages": {}}, {file: rows for file, (_, rows) in files.items()})
    return Measured(VARIANTS[name], outcomes)


def profile_folder(root: Path, name: str = "small") -> Path:
    """A profile without anything that has been run."""
    folder = root / "reproduce" / name
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "params.yaml", root)
    for file in ("params.yaml", "claims.yaml"):
        shutil.copy(ROOT / "reproduce" / name / file, folder)
    first, *_ = (ROOT / "reproduce" / name / "tuning.yaml").read_text(encoding="utf-8").splitlines()
    (folder / "tuning.yaml").write_text(f"{first}\n", encoding="utf-8")
    values = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    few = {name: [7] for name in ("large_seeds", "online_seeds", "best_of_n_seeds") if values.get(name)}
    own = {**values, "seeds": [7, 8, 9], **few, "fewer_seeds": {"count": 3, "variants": []}}
    own |= {
        "choose": {"grid": [0.0, 0.5, 1.0], "tasks": 100},
        "settings": {**values["settings"], "evaluate.tasks": 200},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(own, sort_keys=False), encoding="utf-8")
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Set values of a file of parameters."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**values, **changes}, sort_keys=False), encoding="utf-8")


def keep(
    folder: Path,
    name: str,
    seed: int,
    files: Mapping[str, Sequence[Result]],
    chosen: float = 0.5,
    training: Mapping[str, Any] | None = None,
    **summary: Any,
) -> None:
    """Write what `variant` and `measure` leave behind; `files` are results by "TEMPERATURE" or "TEMPERATURE-USER"."""
    variant = VARIANTS[name]
    if training is not None:
        write_json(folder / variant.folder / name / str(seed) / SUMMARY, training)
    place = folder / MEASURED / name / str(seed)
    records = []
    for key, rows in files.items():
        temperature, _, persona = key.partition("-")
        write_results(place / f"t{key}.parquet", rows)
        records.append(
            {"file": f"t{key}.parquet", "temperature": float(temperature), "persona": persona, "reply_tokens": 8.5}
        )
    validation = {
        f"{at:g}": {"success": 0.5 - abs(at - chosen) / 4, "reward": 0.6, "questions": 3.0, "tasks": 100}
        for at in (0, 0.5, 1)
    }
    stages = {"evaluate": {"seconds": 60.0, "metrics": {}}}
    origin = {
        "variant": name,
        "seed": seed,
        "origin": ORIGIN,
        **(Profile(folder).mark(variant, seed) if (folder / "params.yaml").exists() else {}),
    }
    kept = {"chosen": chosen, "validation": validation, "measured": records, "stages": stages}
    write_json(place / SUMMARY, {**origin, **kept, "claims": record_of(), **summary})


def write_report() -> dict[str, Any]:
    """Write the report of the profile in the current folder; return results.json, of which results.md is made."""
    report.write(Profile())
    recorded: dict[str, Any] = read_json(Path("results.json"))
    assert report.markdown(recorded) == Path("results.md").read_text(encoding="utf-8")
    return recorded


def read_variant(name: str, seeds: Sequence[int], folder: Path = Path()) -> Measured:
    """What `keep` has written, on several seeds."""
    outcomes = {seed: measured_outcome(VARIANTS[name], seed, folder) for seed in seeds}
    return Measured(VARIANTS[name], {seed: outcome for seed, outcome in outcomes.items() if outcome})
