"""params.yaml as settings: the project's file is complete, mistakes are one sentence, the page is current."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from sweetrl.config.page import page
from sweetrl.config.sections import is_section
from sweetrl.config.settings import TRAINED, Settings, TrainerSettings, load_settings, parse_settings, setting_keys
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.stages.parameters import stage_parameters

REPOSITORY = Path(__file__).resolve().parents[2]


def keys(tree: object, prefix: str = "") -> set[str]:
    """Every key of a tree of settings, dotted."""
    if not isinstance(tree, dict) or not tree:
        return {prefix}
    return {key for name, value in tree.items() for key in keys(value, f"{prefix}.{name}" if prefix else name)}


def sections(tree: type[BaseModel] = Settings) -> list[type[BaseModel]]:
    inner = (field.annotation for field in tree.model_fields.values())
    return [tree, *(section for kind in inner if is_section(kind) for section in sections(kind))]


def test_the_projects_parameters_spell_out_every_key() -> None:
    """DVC sees only what the file says, so a changed default must not hide behind a missing key."""
    written = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    assert keys(TrainerSettings().model_dump()) == keys(written["trainer"])
    for name in TRAINED:
        written[name] = written["trainer"] | written[name] | {"lora": written["trainer"]["lora"]}
    full = load_settings(REPOSITORY / "params.yaml").model_dump(mode="json", by_alias=True)
    assert keys(written) == keys(full | {"trainer": written["trainer"]})


def test_there_are_no_more_settings_than_people_can_read() -> None:
    """Those of `trainer` count once, whichever sections have them, too. Who needs another takes one out."""
    every = setting_keys()
    leaves = {key for key in every if not any(other.startswith(f"{key}.") for other in every)}
    shared = {f"{section}.{key}" for section in TRAINED for key in setting_keys(TrainerSettings)}
    assert len(leaves - shared) <= 240


def test_what_a_section_does_not_state_is_as_trainer_says() -> None:
    tree: dict[str, Any] = {
        "trainer": {"epochs": 3.0, "lora": {"rank": 4, "alpha": 8.0}},
        "critic": {"epochs": 2.0, "lora": {"rank": 2}},
    }
    settings = parse_settings(tree)
    assert (settings.critic.epochs, settings.rft.epochs) == (2.0, 3.0)
    assert (settings.critic.lora.rank, settings.critic.lora.alpha) == (2, 8.0)
    assert settings.grpo.lora.rank == 4 and settings.rft.batch_size == Settings().rft.batch_size
    dumped = settings.model_dump(mode="json", by_alias=True)
    assert "trainer" not in dumped and parse_settings(dumped).critic == settings.critic


def test_every_setting_has_a_description_and_every_section_a_docstring() -> None:
    for section in sections():
        assert (section.__doc__ or "").strip(), section
        for name, field in section.model_fields.items():
            assert is_section(field.annotation) or field.description, f"{section.__name__}.{name} has no description"


def test_the_parameters_page_is_current() -> None:
    committed = (REPOSITORY / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert committed == page(Settings), "run `make docs` and commit docs/parameters.md"


def test_the_parameters_page_names_every_key() -> None:
    text = page(Settings)
    for section in sections():
        for name, field in section.model_fields.items():
            if not is_section(field.annotation):
                assert re.search(rf"^\| `{field.alias or name}(?:: [^|]*)?` \|", text, re.MULTILINE), name
    assert "Undefined" not in text and "typing." not in text, "defaults and types are said in words"
    assert "| `options: {}` | a mapping |" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("critic: {lora: {rnk: 3}}\n", "unknown parameter `critic.lora.rnk`"),
        ("trainer: {epoch: 3}\n", "unknown parameter `trainer.epoch` (did you mean `trainer.epochs`?)"),
        ("trainer: {epochs: 0}\n", "`trainer.epochs` = 0"),
        ("reward: {turn_cost: .inf}\n", "`reward.turn_cost` = inf"),
        ("gate: {extra_turns: .nan}\n", "`gate.extra_turns` = nan"),
        ("reward: {workers: 100000}\n", "`reward.workers` = 100000"),  # before, as many processes were started
        ("critic: {normalization: turns}\n", "`critic.normalization` = 'turns'"),
        ("model: {device: 'cuda:1'}\n", "yaml: model.device: training moves a model from `cuda:1`"),
        ("model: {train: full, dtype: float16}\n", "yaml: parameter `model`: `train: full` computes in"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file_and_the_key(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        load_settings(path)
    message = str(raised.value)
    assert message.startswith(str(path)) and expected in message and "\n" not in message


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run from the project's root"):
        load_settings(tmp_path / "params.yaml")


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
    critic = {f"critic.{name}" for name in ("normalization", "privileged_position", "token_set")}
    assert changed == {*critic, "rank.reference", "policy.loss_tokens"}
    defaults = Settings()
    assert (defaults.critic.normalization, defaults.rank.reference) == ("turn", "conditioned")


def test_a_single_turn_agent_is_evaluated_in_one_turn_and_collects_in_all() -> None:
    single = parse_settings({"method": "single-turn", "agent": {"prompt": "full"}})
    evaluated = find_method(single.method).at_evaluation(single.agent)
    assert evaluated.max_turns == 1 and evaluated.prompt == "single"
    assert single.agent.max_turns == 10
    assert find_method("sweet").at_evaluation(single.agent) is single.agent


def test_what_a_domain_decides_is_left_to_it_by_default() -> None:
    """A domain has prompts of its own and says itself where its user is cut: a default would hide them."""
    settings = Settings()
    assert (settings.simulator.prompt, settings.judge.prompt, settings.simulator.reply_characters) == ("", "", 0)


@pytest.mark.parametrize("section", ["rank", "trainer", "critic"])
def test_what_is_no_section_where_one_belongs_is_named(section: str) -> None:
    for value in (3, ["extremes"], None):
        with pytest.raises(UserError, match=f"parameter `{section}` = "):
            parse_settings({section: value})


def test_a_seed_that_some_library_refuses_is_refused_at_once() -> None:
    for tree in ({"seed": -1}, {"pretrain": {"seed": 2**32}}, {"warm_start": {"seed": 2**32}}):
        with pytest.raises(UserError, match=r"seed` = -?\d+: Input should be (greater|less) than or equal to"):
            parse_settings(tree)


@pytest.mark.parametrize(
    ("values", "vllm", "cuda", "kind"),
    [
        ({"model": {"dtype": "bfloat16"}}, True, True, "vllm"),
        ({"model": {"dtype": "bfloat16"}}, False, True, "transformers"),
        ({"model": {"dtype": "bfloat16"}}, True, False, "transformers"),
        ({"model": {"dtype": "bfloat16", "device": "cpu"}}, True, True, "transformers"),
        ({"model": {"dtype": "bfloat16"}, "rank": {"critic": "rollout-value"}}, True, True, "transformers"),
        ({}, True, True, "transformers"),  # float32: vLLM's kernels for adapters take none
        ({"engine": {"kind": "openai"}, "model": {"dtype": "bfloat16"}}, True, True, "openai"),
    ],
)
def test_auto_takes_vllm_where_it_can_run(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], vllm: bool, cuda: bool, kind: str
) -> None:
    """What is logged and kept names the engine that is taken."""
    import torch

    monkeypatch.setattr("sweetrl.config.settings.find_spec", lambda name: name if vllm else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    settings = parse_settings(values)
    assert settings.engine.kind == kind
    assert stage_parameters("collect", settings)["engine"]["kind"] == kind
