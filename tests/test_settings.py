"""params.yaml as settings: the project's file is complete, mistakes are one sentence, the page is current."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from sweetrl import renamed
from sweetrl.errors import UserError
from sweetrl.plugins import load_method
from sweetrl.settings import Section, Settings, load_settings, parameters_page, parse_settings

REPOSITORY = Path(__file__).resolve().parents[1]


def tree_of(key: str, value: Any) -> dict[str, Any]:
    """The settings of a params.yaml in which only the dotted `key` is written."""
    *path, last = key.split(".")
    tree: dict[str, Any] = {last: value}
    for part in reversed(path):
        tree = {part: tree}
    return tree


def keys(tree: object, prefix: str = "") -> set[str]:
    """Every key of a tree of settings, dotted."""
    if not isinstance(tree, dict) or not tree:
        return {prefix}
    return {key for name, value in tree.items() for key in keys(value, f"{prefix}.{name}" if prefix else name)}


def sections(tree: type[Section] = Settings) -> list[type[Section]]:
    inner = [field.annotation for field in tree.model_fields.values()]
    nested = [kind for kind in inner if isinstance(kind, type) and issubclass(kind, Section)]
    return [tree, *(found for kind in nested for found in sections(kind))]


def test_the_projects_parameters_are_valid() -> None:
    settings = load_settings(REPOSITORY / "params.yaml")
    assert settings.tasks.source == "synthetic"


def test_the_projects_parameters_spell_out_every_key() -> None:
    """DVC sees only what the file says, so a changed default must not hide behind a missing key."""
    written = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    full = load_settings(REPOSITORY / "params.yaml").model_dump(mode="json", by_alias=True)
    assert keys(written) == keys(full)


def test_defaults_need_no_file() -> None:
    assert parse_settings({}) == Settings()


def test_every_setting_has_a_description_and_every_section_a_docstring() -> None:
    for section in sections():
        assert (section.__doc__ or "").strip(), section
        for name, field in section.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
            assert nested or field.description, f"{section.__name__}.{name} has no description"


def test_the_parameters_page_is_current() -> None:
    committed = (REPOSITORY / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert committed == parameters_page(), "run `make docs` and commit docs/parameters.md"


def test_the_parameters_page_names_every_key() -> None:
    page = parameters_page()
    for section in sections():
        for name, field in section.model_fields.items():
            if not (isinstance(field.annotation, type) and issubclass(field.annotation, Section)):
                assert f"| `{field.alias or name}` |" in page
    assert "Undefined" not in page and "typing." not in page, "defaults and types are said in words"
    assert "| `options` | `{}` | a mapping |" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colect: {tasks: 3}\n", "unknown parameter `colect`"),
        ("collect: {taks: 3}\n", "unknown parameter `collect.taks`"),
        ("critic: {lora: {rnk: 3}}\n", "unknown parameter `critic.lora.rnk`"),
        ("collect: {tasks: 0}\n", "`collect.tasks` = 0"),
        ("reward: {turn_cost: -0.1}\n", "`reward.turn_cost` = -0.1"),
        ("reward: {turn_cost: .inf}\n", "`reward.turn_cost` = inf"),
        ("critic: {normalization: turns}\n", "`critic.normalization` = 'turns'"),
        ("seed: 1\ntasks: {train: 3\nmodel: 2\n", "line 3: this is not YAML"),
        ("- seed\n", "expected sections of settings"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        load_settings(path)
    message = str(raised.value)
    assert said in message
    assert message.startswith(str(path))
    assert "\n" not in message


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run from the project's root"):
        load_settings(tmp_path / "params.yaml")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().collect.tasks = 5  # type: ignore[misc]


def test_the_official_preset_sets_its_switches_and_nothing_else() -> None:
    paper = parse_settings({"critic": {"normalization": "none", "beta": 0.3}})
    assert paper.critic.normalization == "none", "with `paper` every switch is as it is written"
    official = parse_settings({"preset": "official", "critic": {"normalization": "none", "beta": 0.3}})
    assert official.critic.normalization == "trajectory" and official.critic.beta == 0.3
    changed = {
        f"{section}.{name}"
        for section, values in official.model_dump().items()
        if isinstance(values, dict)
        for name, value in values.items()
        if value != paper.model_dump()[section][name]
    }
    assert changed == {
        *(
            "critic.normalization",
            "critic.privileged_position",
            "critic.token_set",
            "rank.reference",
            "policy.loss_tokens",
        )
    }
    defaults = Settings()
    assert (defaults.critic.normalization, defaults.rank.reference) == ("turn", "conditioned")


def test_a_single_turn_agent_is_evaluated_in_one_turn_and_collects_in_all() -> None:
    single = parse_settings({"method": "single-turn", "agent": {"prompt": "full"}})
    evaluated = load_method(single).at_evaluation(single)
    assert evaluated.agent.max_turns == 1 and evaluated.agent.prompt == "single"
    assert single.agent.max_turns == 10
    sweet = parse_settings({})
    assert load_method(sweet).at_evaluation(sweet) is sweet


def test_what_a_domain_decides_is_left_to_it_by_default() -> None:
    """A domain has prompts of its own and says itself where its user is cut: a default would hide them."""
    settings = Settings()
    assert (settings.simulator.prompt, settings.judge.prompt, settings.simulator.reply_characters) == ("", "", 0)


@pytest.mark.parametrize(("old", "new"), renamed.KEYS.items())
def test_a_key_of_an_earlier_version_is_answered_with_its_name_now(old: str, new: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_settings(tree_of(old, 1), "params.yaml")
    assert str(raised.value) == f"params.yaml: `{old}` is called `{new}` now; rename the key."
    known = keys(Settings().model_dump(by_alias=True))
    assert new in known and old not in known


@pytest.mark.parametrize(("key", "old", "new"), [(*place, new) for place, new in renamed.VALUES.items()])
def test_a_value_of_an_earlier_version_is_answered_with_its_name_now(key: str, old: str, new: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_settings(tree_of(key, old), "params.yaml")
    assert str(raised.value) == f"params.yaml: `{key}: {old}` is called `{new}` now; rename the value."
    parse_settings(tree_of(key, new))


def test_an_old_key_with_an_old_value_is_answered_one_after_the_other() -> None:
    with pytest.raises(UserError, match=r"`rank\.kinds` is called `rank\.reply_types` now"):
        parse_settings({"rank": {"kinds": "centred"}})
    with pytest.raises(UserError, match=r"`rank\.reply_types: centred` is called `mean_centered` now"):
        parse_settings({"rank": {"reply_types": "centred"}})


@pytest.mark.parametrize("tree", [{"rank": 3}, {"rank": ["centred"]}, {"rank": None}])
def test_no_section_where_one_belongs_is_no_old_value(tree: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="parameter `rank` = "):
        parse_settings(tree)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_some_library_refuses_is_refused_at_once(seed: int) -> None:
    for tree in ({"seed": seed}, {"pretrain": {"seed": seed}}, {"warm_start": {"seed": seed}}):
        with pytest.raises(UserError, match=r"seed` = -?\d+: Input should be (greater|less) than or equal to"):
            parse_settings(tree)
