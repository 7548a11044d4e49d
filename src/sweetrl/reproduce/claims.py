"""What is claimed before anything is measured (claims.yaml of a profile), and what the measurements say of it.

`record` is kept with every variant's results from before its first test task. So the report can say of each claim
whether it stood there at that time, and name those that were taken out later: they are judged, and counted, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sweetrl.config.sections import Section
from sweetrl.config.settings import section
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import holm
from sweetrl.reproduce.hierarchical import Hierarchical
from sweetrl.reproduce.outcomes import Condition, Measured, difference
from sweetrl.reproduce.variants import VARIANTS

CLAIMS = Path("claims.yaml")
CHOSEN = "chosen"


class Claim(Section):
    """`better` is above `worse` in `measure`; `held_out`: on the tasks of domains that training never saw.

    `temperature` "chosen" is that of each variant which was chosen on its validation tasks.
    """

    claim: str = Field(min_length=1)
    better: str
    worse: str
    temperature: float | Literal["chosen"] = "chosen"
    measure: Literal["success", "reward"] = "success"
    held_out: bool = False
    persona: str = ""

    @property
    def identity(self) -> str:
        """What is claimed, whatever the words."""
        return f"{self.better} {self.worse} {self.at} {self.measure} {self.held_out} {self.persona}"

    @property
    def at(self) -> str:
        """The temperature as results name it."""
        return self.temperature if isinstance(self.temperature, str) else f"{self.temperature:g}"

    @property
    def condition(self) -> Condition:
        """Under what the two are compared."""
        return Condition(self.at, self.persona)


def read_claims(path: Path, temperatures: Sequence[str], personas: Sequence[str] = ()) -> list[Claim]:
    """Return the claims of a file, none if there is no file; what cannot be measured is a UserError that names it."""
    loaded = (read_yaml(path) or []) if path.exists() else []
    if not isinstance(loaded, list):
        raise UserError(f"{path}: this is no list of claims; docs/reproduce.md shows one.")
    claims: list[Claim] = []
    for number, values in enumerate(loaded, start=1):
        where = f"{path}: claim {number}"
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: this is no claim; write `claim`, `better`, `worse` and `temperature`.")
        claim = section(Claim, values, where)
        for name in (claim.better, claim.worse):
            if name not in VARIANTS:
                raise UserError(f"{where}: there is no variant `{name}`; there are {', '.join(VARIANTS)}.")
        for what, measured in (
            (f"temperature {claim.at}", claim.at in (*temperatures, CHOSEN)),
            (f"persona {claim.persona}", claim.persona in ("", *personas)),
        ):
            if not measured:
                raise UserError(f"{where}: {what} is not measured in this profile; add it to params.yaml.")
        if claim.better == claim.worse or any(claim.identity == other.identity for other in claims):
            raise UserError(f"{where}: `{claim.claim}` compares a variant with itself, or is claimed twice.")
        claims.append(claim)
    return claims


def record(path: Path, claims: Sequence[Claim]) -> dict[str, Any]:
    """Return the digest of a file of claims and what is in it: what is kept with results."""
    return {"sha256": sha256(path), "claims": [claim.model_dump(mode="json") for claim in claims]}


def sha256(path: Path) -> str:
    """Return the digest of a file; that of nothing where there is none."""
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def judged(
    claims: Sequence[Claim], measured: Mapping[str, Measured], confidence: float, resamples: int
) -> list[dict[str, Any]]:
    """Return each claim with its difference, the p-value adjusted over all of them, and what that says.

    The claims are those of the file and those that stood in it when something was measured. One that was not measured
    counts as p = 1. `written` is "before" if the claim was in the file whenever one of its two variants was measured.
    """
    now = {claim.identity: claim for claim in claims}
    records = [record for row in measured.values() for record in row.claims.values()]
    then = {claim.identity: claim for record in records for claim in _claims_in(record)}
    everything = now | then | now  # the claims of today first, in the words of today

    def gap_of(claim: Claim) -> Hierarchical | None:
        if not {claim.better, claim.worse} <= measured.keys():
            return None
        pair = measured[claim.better], measured[claim.worse]
        gaps = difference(*pair, claim.condition, confidence, resamples, claim.held_out)
        return gaps[claim.measure] if gaps else None

    gaps = {name: gap_of(claim) for name, claim in everything.items()}
    adjusted = dict(zip(gaps, holm([gap.p_value if gap else 1.0 for gap in gaps.values()]), strict=True))
    return [
        {
            **claim.model_dump(mode="json"),
            "temperature": claim.at,
            "labels": [VARIANTS[claim.better].label, VARIANTS[claim.worse].label],
            "difference": gap.as_dict() if (gap := gaps[name]) else None,
            "p_adjusted": adjusted[name] if gap else None,
            "written": written(claim, measured),
            "withdrawn": name not in now,
            "verdict": verdict(gap, adjusted[name], confidence),
        }
        for name, claim in everything.items()
    ]


def _claims_in(record: Mapping[str, Any]) -> list[Claim]:
    """The claims of variants that there are, as they stood in the file when something was measured."""
    present = [values for values in record["claims"] if {values["better"], values["worse"]} <= VARIANTS.keys()]
    return [section(Claim, values, "claims kept with results") for values in present]


def written(claim: Claim, measured: Mapping[str, Measured]) -> str:
    """Whether the claim was written down before its variants met a test task: "before", "after", "" (nothing yet)."""
    rows = [measured[name] for name in (claim.better, claim.worse) if name in measured]
    records = [record for row in rows for record in row.claims.values()]
    there = [any(claim.identity == other.identity for other in _claims_in(record)) for record in records]
    return "" if not records else "before" if all(there) else "after"


def verdict(gap: Hierarchical | None, adjusted: float, confidence: float) -> str:
    """What a difference says of "it is above zero": its interval must lie on one side, and the adjusted p be small."""
    if gap is None:
        return "not measured"
    if adjusted >= 1 - confidence or gap.low <= 0 <= gap.high:
        return "open"
    return "confirmed" if gap.low > 0 else "refuted"
