"""What every policy did, task by task, in one file that git keeps: outcomes.parquet of a profile.

Folders of trained variants are large and are not in git; what they came to is small. The report writes this file, and
takes from it what is not in measured/ here: rows can be added on another day or machine, and intervals computed anew,
without training again. A row for each (variant, seed, file of measured/NAME/SEED/, task); the file's metadata
`sweetrl.parts` says the rest as JSON: {"parts": a list of {variant, seed, summary, training}, "claims": what
claims.yaml said, by the SHA-256 that a summary has in its place}.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import read_results
from sweetrl.io import atomic_path, read_json
from sweetrl.reproduce.variants import Variant
from sweetrl.tracking.runs import git_state
from sweetrl.types import Result

OUTCOMES = Path("outcomes.parquet")
SUMMARY = "summary.json"
MEASURED = "measured"  # folder of what policies did, beside the folders of what was trained
_PARTS = b"sweetrl.parts"
Key = tuple[str, int]  # of a variant, and a seed


class Condition(NamedTuple):
    """Under what a policy was measured: a temperature by name ("0", "0.5", "chosen"), and a user ("": the usual)."""

    temperature: str
    persona: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one variant came to on one seed: both stages' summaries, and the results by the name of their file.

    `summary` says what each file is (`measured`), and `origin`, where it was measured.
    """

    summary: Mapping[str, Any]
    training: Mapping[str, Any]
    results: Mapping[str, Sequence[Result]]

    @property
    def stages(self) -> dict[str, Any]:
        """The facts of all stages by name."""
        return {**self.training["stages"], **self.summary["stages"]}

    def measured(self, condition: Condition) -> Mapping[str, Any] | None:
        """Return what `summary` says of the file of results under `condition`; None where there is none."""
        chosen = condition.temperature == "chosen"
        for row in self.summary["measured"]:
            at = row["temperature"]
            same = at == self.summary["chosen"] if chosen else f"{at:g}" == condition.temperature
            if same and row["persona"] == condition.persona:
                return row
        return None


def origin() -> dict[str, str]:
    """Return when, on which commit and on which processor this is measured."""
    processors = Path("/proc/cpuinfo")
    text = processors.read_text(encoding="utf-8") if processors.exists() else ""
    found = re.search(r"model name\s*:\s*(.*)", text)
    commit, changed = git_state()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit[:12] + (" with changes" if changed else ""),
        "processor": found[1].strip() if found else platform.processor() or platform.machine(),
    }


def measured_outcome(variant: Variant, seed: int, folder: Path = Path()) -> Outcome | None:
    """Read what `variant` and `measure` have left in the profile's folder; None where nothing was measured."""
    trained = folder / variant.folder / variant.name / str(seed) / SUMMARY
    place = folder / MEASURED / variant.name / str(seed)
    if not (place / SUMMARY).exists():
        return None
    summary = read_json(place / SUMMARY)
    training = read_json(trained) if trained.exists() else {"stages": {}}
    return Outcome(summary, training, {one["file"]: read_results(place / one["file"]) for one in summary["measured"]})


def write_outcomes(path: Path, outcomes: Mapping[Key, Outcome]) -> None:
    """Write them as Parquet (zstd), sorted: equal outcomes give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = sorted(outcomes.items())
    rows = [
        {"variant": variant, "seed": seed, "file": file, **asdict(result)}
        for (variant, seed), one in known
        for file, results in sorted(one.results.items())
        for result in results
    ]
    claims, parts = {}, []
    for (variant, seed), one in known:
        kept = one.summary["claims"]
        claims[kept["sha256"]] = kept
        summary = {**one.summary, "claims": kept["sha256"]}
        parts.append({"variant": variant, "seed": seed, "summary": summary, "training": one.training})
    said = json.dumps({"parts": parts, "claims": claims}, sort_keys=True)
    table = pa.Table.from_pylist(rows)
    with (
        atomic_path(path, shared=True) as temporary,
        pq.ParquetWriter(temporary, table.schema, compression="zstd", compression_level=19) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({_PARTS: said})  # as metadata of the table it would be stored twice


def read_outcomes(path: Path) -> dict[Key, Outcome]:
    """Return what a file holds, nothing if there is none; what is no such file is a UserError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        return {}
    try:
        file = pq.ParquetFile(path)
        table, said = file.read(), json.loads(file.metadata.metadata[_PARTS])
        results: dict[Key, dict[str, list[Result]]] = {}
        names = [field.name for field in fields(Result)]
        for row in table.to_pylist():
            files = results.setdefault((row["variant"], row["seed"]), {})
            files.setdefault(row["file"], []).append(Result(**{name: row[name] for name in names}))
        outcomes = {}
        for part in said["parts"]:
            key, summary = (part["variant"], part["seed"]), part["summary"]
            claims = said["claims"][summary["claims"]]
            outcomes[key] = Outcome({**summary, "claims": claims}, part["training"], results.get(key, {}))
        return outcomes
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: these are no outcomes of a reproduction; restore the file from git.") from error
