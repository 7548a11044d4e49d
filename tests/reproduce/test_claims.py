"""Claims: written before the measurement, judged after it, and none left out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import holm
from sweetrl.reproduce.claims import Claim, judged, read_claims, record, verdict
from sweetrl.reproduce.hierarchical import Hierarchical
from sweetrl.reproduce.outcomes import Measured
from sweetrl.reproduce.run import Profile
from sweetrl.reproduce.variants import VARIANTS
from tests.reproduce.made import COLD, ROOT, WARM, measured, measured_results, record_of, result

SWEET = Claim(claim="SWEET-RL is above Multi-Turn DPO", better="sweet", worse="multi-turn-dpo")
DPO = Claim(claim="Multi-Turn DPO is above RFT", better="multi-turn-dpo", worse="rft")
RFT = Claim(claim="RFT is above zero-shot", better="rft", worse="zero-shot")
SEEDS = (7, 8, 9)


def variants(*claims: Claim) -> dict[str, Measured]:
    rates = {"sweet": 0.9, "multi-turn-dpo": 0.5, "rft": 0.95, "zero-shot": 0.95}
    return {name: measured(name, dict.fromkeys(SEEDS, rate), claims=claims) for name, rate in rates.items()}


def test_claims_are_confirmed_refuted_or_open() -> None:
    rows = judged([SWEET, DPO, RFT], variants(SWEET, DPO, RFT), 0.95, 500)
    assert [row["verdict"] for row in rows] == ["confirmed", "refuted", "open"]
    assert [row["written"] for row in rows] == ["before"] * 3
    gaps = [row["difference"] for row in rows]
    assert [row["p_adjusted"] for row in rows] == holm([gap["p_value"] for gap in gaps])
    assert all(gap["groups"] == 3 and gap["n"] == 600 for gap in gaps)


def test_a_claim_is_about_one_temperature_and_one_kind_of_task() -> None:
    def variant(name: str, cold: bool) -> Measured:
        by_condition = {
            COLD: [result(f"t{n}", cold, held_out=n < 5) for n in range(30)],
            WARM: [result(f"t{n}", cold or n >= 5, held_out=n < 5) for n in range(30)],
        }
        return measured_results(name, dict.fromkeys(SEEDS, by_condition))

    both = {"sweet": variant("sweet", True), "multi-turn-dpo": variant("multi-turn-dpo", False)}
    places = [{"temperature": 0}, {"temperature": 1}, {"temperature": 1, "held_out": True}]
    claims = [Claim.model_validate({**SWEET.model_dump(), **place}) for place in places]
    assert [claim.at for claim in claims] == ["0", "1", "1"]
    gaps = [row["difference"] for row in judged(claims, both, 0.95, 200)]
    assert [(gap["value"], gap["n"]) for gap in gaps] == [
        (1.0, 90),
        (pytest.approx(1 / 6), 90),
        (1.0, 15),
    ]


def test_what_was_not_measured_counts_among_all_claims() -> None:
    without = variants(SWEET, RFT)
    del without["zero-shot"]
    rows = judged([SWEET, RFT], without, 0.95, 500)
    assert [row["verdict"] for row in rows] == ["confirmed", "not measured"]
    assert rows[0]["p_adjusted"] == pytest.approx(2 * rows[0]["difference"]["p_value"])
    assert rows[1]["difference"] is None and rows[1]["p_adjusted"] is None


def test_a_claim_that_was_not_there_before_says_so() -> None:
    rows = judged([SWEET, DPO], variants(SWEET), 0.95, 500)
    assert [row["written"] for row in rows] == ["before", "after"]
    late = variants(SWEET)
    before = late["sweet"].outcomes
    last = replace(before[8], summary={**before[8].summary, "claims": record_of()})
    late["sweet"] = replace(late["sweet"], outcomes={**before, 8: last})
    assert judged([SWEET], late, 0.95, 500)[0]["written"] == "after", "one seed had been measured before it stood there"
    assert judged([SWEET], {}, 0.95, 500)[0]["written"] == ""
    reworded = Claim.model_validate(SWEET.model_dump() | {"claim": "other words"})
    (row,) = judged([reworded], variants(SWEET), 0.95, 500)
    assert (row["written"], row["claim"]) == ("before", "other words")


def test_a_claim_that_is_taken_out_is_judged_all_the_same() -> None:
    rows = judged([SWEET], variants(SWEET, DPO), 0.95, 500)
    assert [(row["claim"], row["withdrawn"], row["verdict"]) for row in rows] == [
        (SWEET.claim, False, "confirmed"),
        (DPO.claim, True, "refuted"),
    ]
    assert rows[0]["p_adjusted"] == pytest.approx(2 * rows[0]["difference"]["p_value"])


def test_a_verdict_needs_the_interval_and_the_adjusted_p() -> None:
    def gap(low: float, high: float) -> Hierarchical:
        return Hierarchical((low + high) / 2, low, high, 100, 0.95, 3, 0.01, None, None)

    assert verdict(gap(0.01, 0.2), 0.04, 0.95) == "confirmed"
    assert verdict(gap(-0.2, -0.01), 0.04, 0.95) == "refuted"
    assert verdict(gap(0.01, 0.2), 0.06, 0.95) == "open"
    assert verdict(gap(-0.01, 0.2), 0.04, 0.95) == "open"
    assert verdict(None, 1.0, 0.95) == "not measured"


def test_the_record_holds_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    assert read_claims(path, ["0"]) == []
    path.write_text(yaml.safe_dump([SWEET.model_dump(), DPO.model_dump() | {"temperature": 0}]), encoding="utf-8")
    claims = read_claims(path, ["0", "1"])
    assert [(claim.at, claim.measure, claim.held_out) for claim in claims] == [
        ("chosen", "success", False),
        ("0", "success", False),
    ]
    kept = record(path, claims)
    assert len(kept["sha256"]) == 64
    assert [Claim.model_validate(values) for values in kept["claims"]] == claims
    path.write_text(path.read_text(encoding="utf-8") + "# more\n", encoding="utf-8")
    assert record(path, claims)["sha256"] != kept["sha256"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("claims: {}", "this is no list of claims"),
        ("- sweet is best", "claim 1: this is no claim"),
        ("- {claim: a, better: sweet, worse: rft, temprature: 0}", "claim 1: unknown parameter `temprature`"),
        ("- {claim: a, better: swet, worse: rft}", "claim 1: there is no variant `swet`"),
        ("- {claim: a, better: sweet, worse: rft, persona: rude}", "persona rude is not measured in this profile"),
        ("- {claim: a, better: sweet, worse: sweet}", "compares a variant with itself, or is claimed twice"),
        (
            "- &a {claim: a, better: sweet, worse: rft}\n- *a",
            "claim 2: `a` compares a variant with itself, or is claimed",
        ),
    ],
)
def test_an_invalid_claim_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=says):
        read_claims(path, ["0", "1"], ["terse"])


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "reproduce").glob("*/params.yaml")))
def test_the_claims_of_a_profile_are_about_what_it_measures(name: str) -> None:
    profile = Profile(ROOT / "reproduce" / name)
    names = {variant.name for variant in profile.variants}
    assert profile.claims
    for claim in profile.claims:
        assert {claim.better, claim.worse} <= names, claim.claim
        assert claim.measure in {profile.domain.measure, "reward"}


def test_the_guide_shows_files_that_are_taken(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    plan, claims, grid = re.findall(r"^```text\n(.*?)^```", guide, re.S | re.M)
    (tmp_path / "claims.yaml").write_text(claims, encoding="utf-8")
    parameters = yaml.safe_load(plan)
    (claim,) = read_claims(tmp_path / "claims.yaml", ["0", "1"], parameters["personas"])
    assert (claim.better, claim.at, claim.held_out, claim.persona) == ("sweet", "chosen", True, "terse")
    assert yaml.safe_load(grid)["tuning"].keys() <= VARIANTS.keys()
    assert set(parameters) | {"tuning"} <= set(Profile(ROOT / "reproduce" / "small").values)
