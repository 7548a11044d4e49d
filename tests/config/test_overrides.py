"""Parameters named one by one, and YAML that says something twice: what is taken, and what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.overrides import differences, parse_changes, profile_changes, value_of, with_changes
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TREE: dict[str, Any] = read_yaml(ROOT / "params.yaml")


def test_values_are_as_the_settings_read_them_and_the_tree_stays() -> None:
    pairs = ["rank.candidates=32", "critic.learning_rate=1e-3", "suite_options.deep=[1]", "validate.lost_share=0.1"]
    changed = with_changes(TREE, parse_changes(pairs))
    changes = {key: (before, after) for key, before, after in differences(TREE, changed)}
    assert changes == {
        "rank.candidates": (TREE["rank"]["candidates"], 32),
        "critic.learning_rate": (TREE["critic"]["learning_rate"], 0.001),
        "suite_options.deep": (None, [1]),
        "validate.lost_share": (TREE["validate"]["lost_share"], 0.1),
    }
    assert value_of(changed, "rank.candidates") == 32 and value_of(changed, "rank.nothing.here") is None


def test_one_key_twice_is_refused() -> None:
    with pytest.raises(UserError, match="`seed` is set twice"):
        parse_changes(["seed=1", "seed=2"])


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(ROOT.glob("reproduce/*/params.yaml"))])
def test_every_profile_can_be_run(name: str) -> None:
    changes = profile_changes(name, ROOT)
    changed = with_changes(TREE, changes, name)
    assert not any(key.startswith("tracking") for key in changes)
    if "model.base" in changes:
        assert changed["sources"]["base"] == changed["model"]["base"]


@pytest.mark.parametrize("text", ["", "- a", "hello", "settings: {1: 2}", "settings: {true: 2}", "settings: [a]"])
def test_a_profile_that_is_none_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "reproduce/mine").mkdir(parents=True)
    (tmp_path / "reproduce/mine/params.yaml").write_text(text)
    with pytest.raises(UserError, match="expected a mapping `settings` of dotted parameters"):
        profile_changes("mine", tmp_path)
    for name in ("..", "x" * 5000, "mine/", "a\0b"):
        with pytest.raises(UserError, match=r"there is no reproduce/.*known are mine"):
            profile_changes(name, tmp_path)


def test_a_key_and_one_below_it_cannot_both_be_set() -> None:
    for keys in (("suite_options.a", "suite_options.a.b"), ("suite_options.a.b", "suite_options.a")):
        for value in (1, {"c": 1}):  # a mapping would take the other's value away, without a word
            with pytest.raises(UserError, match=r"`suite_options\.a` and `suite_options\.a\.b` cannot both be set"):
                with_changes(TREE, dict.fromkeys(keys, value))


def test_anchors_may_be_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("one: &one {a: 1, b: 2}\ntwo: {<<: *one, b: 3}\n")
    assert read_yaml(path)["two"] == {"a": 1, "b": 3}
