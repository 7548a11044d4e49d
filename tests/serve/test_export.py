"""Exported folders: read by transformers and peft alone, with a card that also says what is not recorded."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.models.licences import base_licence
from sweetrl.serve import export as handover
from sweetrl.serve import source
from sweetrl.serve.card import model_card
from sweetrl.serve.source import copy_version
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.tracking.lineage import Lineage
from tests.serve.made import write_adapter, write_results

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("I want a function that computes the price of a ticket.", "The rate is 7.", "price(hours)")


def greedy(model: Any, adapter: Path | None, system: str) -> list[str]:
    """The agent's greedy replies to three requests."""
    from sweetrl.engines.transformers import TransformersEngine
    from sweetrl.types import Prompt, Sampling

    engine = TransformersEngine(model, adapter, threads=1)
    prompts = [Prompt(engine.chat.open(system, words), 0) for words in WORDS]
    return [replies[0].text for replies in engine.sample(prompts, Sampling(12, 0.0))]


def metadata(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_merged_version_replies_as_base_and_adapter_do_and_has_its_lineage(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "merged"
    version = register_policy(settings, project).version
    assert handover.export(f"{settings.tracking.model}@challenger", settings, out, merge=True).version == version
    card = (out / "README.md").read_text()
    assert f"# {settings.tracking.model} version {version}" in card
    assert re.search(r"registered \| 20\d\d-", card) and "0.500 [0.400, 0.600]" in card and "0123abcd.dir" in card
    talk = json.loads((out / "agent.json").read_text())
    apart = greedy(project / "models/base", project / "models/policy", talk["system_prompt"])
    assert greedy(out, None, talk["system_prompt"]) == apart
    assert apart != greedy(project / "models/base", None, talk["system_prompt"])
    # And with transformers alone, as the card says.
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    for words, reply in zip(WORDS, apart, strict=True):
        messages = [{"role": "system", "content": talk["system_prompt"]}, {"role": "user", "content": words}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        generated = model.generate(**ids, max_new_tokens=talk["max_new_tokens"])[0, ids["input_ids"].shape[1] :]
        assert tokenizer.decode(generated, skip_special_tokens=True) == reply
    assert (out / "chat_template.jinja").exists() and (out / "generation_config.json").exists()
    assert not list(out.glob("adapter_*")) and not list(out.glob("*.bin"))
    assert talk["max_turns"] == 3


def test_who_plays_with_a_registered_agent_plays_on_the_base_that_it_was_trained_on(
    project: Path, settings: Settings
) -> None:
    from sweetrl.cli.show import load_agent

    register_policy(settings, project)
    other = settings.model_copy(update={"model": settings.model.model_copy(update={"base": "models/other"})})
    played = load_agent(f"{settings.tracking.model}@challenger", other)
    assert dvc_hash(Path(played.model.base)) == dvc_hash(project / "models/base")
    assert played.adapter is not None and dvc_hash(played.adapter) == dvc_hash(project / "models/policy")


def test_an_adapter_folder_has_its_tokenizer_and_its_card(project: Path, settings: Settings, tmp_path: Path) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "adapter"
    register_policy(settings, project)
    handover.export("models/policy", settings, out)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(project / "models/base"), out)
    assert model.peft_config["default"].r == 4 and AutoTokenizer.from_pretrained(out).chat_template
    named = model.peft_config["default"]
    assert (named.base_model_name_or_path, named.revision) == ("./models/base", None)
    assert AutoPeftModelForCausalLM.from_pretrained(out).peft_config["default"].r == 4  # we are in the project
    with pytest.raises(HFValidationError):  # elsewhere, nobody's repository on the hub is meant
        validate_repo_id(named.base_model_name_or_path)
    assert source.from_folder(out, settings).base == "models/base"
    card = (out / "README.md").read_text()
    assert metadata(card)["library_name"] == "peft" and metadata(card)["license"] == "unknown"
    assert dvc_hash(project / "models/policy") in card and dvc_hash(project / "models/base") in card
    assert "data/trajectories | 0123abcd.dir" in card
    assert "0.500 [0.400, 0.600]" in card and "90\u00a0% intervals" in card and "p < 0.001 (exact McNemar)" in card
    assert "licence of the base | unknown: the base's folder states none" in card
    assert "suite `backend` and method `sweet`" in card and "eprint        = {2503.15478}" in card


def test_full_weights_are_registered_and_handed_over_without_a_base(
    tiny_model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import torch

    from sweetrl.cli.show import load_agent
    from sweetrl.lm.adapters import load_base, save_trained, trainable

    monkeypatch.chdir(tmp_path)
    tracking = settings.tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/mlflow.db", "model": "full-agent"})
    settings = settings.model_copy(
        update={"tracking": tracking, "model": settings.model.model_copy(update={"train": "full"})}
    )
    (tmp_path / "data/tasks").mkdir(parents=True)
    (tmp_path / "data/tasks/test.parquet").write_bytes(b"test tasks")
    (tmp_path / "params.yaml").write_text("{}")
    shutil.copytree(tiny_model, "models/base")
    (tmp_path / "models/base/README.md").write_text("---\nlicense: mit\n---\n")
    policy = trainable(load_base(settings.model)[0], settings.model, settings.policy.lora, 0)
    generator = torch.Generator().manual_seed(1)
    for value in policy.parameters():
        value.data += torch.randn(value.shape, generator=generator) * 0.1
    save_trained(policy, tmp_path / "models/policy", "models/base")
    write_results(tmp_path, 0.5)
    version = register_policy(settings, tmp_path)
    assert register_policy(settings, tmp_path).version == version.version, "it is recognized by its content"
    system = source.from_folder(Path("models/policy"), settings).config.system_prompt
    replies = greedy(tmp_path / "models/base", tmp_path / "models/policy", system)
    assert replies != greedy(tmp_path / "models/base", None, system)
    assert load_agent("models/policy", settings).full
    (tmp_path / "models/base").rename(tmp_path / "gone")
    handed = source.fetch("full-agent@challenger", settings, tmp_path / "fetched")
    assert handed.base == str(handed.adapter) and not (handed.adapter.parent / "base").exists()
    assert greedy(handed.base, handed.adapter, system) == replies
    model = mlflow.pyfunc.load_model(f"models:/full-agent/{version.version}")
    request = [{"role": "user", "content": WORDS[0]}]
    assert model.predict(request, params={"temperature": 0.0, "max_new_tokens": 12}) == replies[0]
    handover.export("full-agent@challenger", settings, tmp_path / "out")
    assert greedy(tmp_path / "out", None, system) == replies
    card = (tmp_path / "out/README.md").read_text()
    assert metadata(card)["library_name"] == "transformers" and metadata(card)["license"] == "mit"
    assert "of which all weights were trained" in card


def test_a_critic_is_no_agent(project: Path, settings: Settings, tmp_path: Path) -> None:
    critic, headed = project / "models/critic", tmp_path / "headed"
    for folder in (critic, headed):
        shutil.copytree(project / "models/policy", folder)
    config = json.loads((headed / "adapter_config.json").read_text())
    (headed / "adapter_config.json").write_text(json.dumps(config | {"modules_to_save": ["score"]}))
    sentence = "this is a critic, which does not talk; name an agent: models/policy"
    for folder in (Path("models/critic"), critic, headed):
        with pytest.raises(UserError, match=sentence):
            handover.export(str(folder), settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    shutil.rmtree(critic)


def test_a_card_names_no_data_of_an_adapter_that_is_not_registered(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    kept = shutil.copytree(project / "models/policy", tmp_path / "kept")
    write_adapter(project, 5)
    try:
        handover.export("models/policy", settings, tmp_path / "out")
        adapter = dvc_hash(project / "models/policy")
    finally:
        shutil.rmtree(project / "models/policy")
        shutil.copytree(kept, project / "models/policy")
    card = (tmp_path / "out/README.md").read_text()
    assert f"| adapter | {adapter} |" in card and "data/trajectories" not in card and "models/policy" not in card
    assert "The data that it was trained on are not recorded." in card and "The parameters are not recorded." in card
    assert "| commit | unknown |" in card and "| dvc.lock | unknown |" in card
    assert "a method that is not recorded" in card and "No evaluation of exactly this adapter is recorded" in card


@pytest.mark.parametrize(
    ("config", "for_peft", "on_the_hub"),
    [
        (AgentConfig("org/name", base_revision="0a1b"), ("org/name", "0a1b"), True),
        (AgentConfig("org/name"), ("org/name", None), True),
        (AgentConfig("gpt2"), ("gpt2", None), True),
        (AgentConfig("models/base", "0123.dir"), ("./models/base", None), False),
        (AgentConfig("../base", "0123.dir"), ("../base", None), False),
        (AgentConfig("/models/base", "0123.dir"), ("/models/base", None), False),
        (AgentConfig("a/path/of/mine"), None, False),
    ],
)
def test_card_and_adapter_name_a_base_to_the_hub_only_by_the_hubs_name(
    config: AgentConfig,
    for_peft: tuple[str, str | None] | None,
    on_the_hub: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where no folder of the project is
    if for_peft is not None:
        assert tuple(handover.named_base(config).values()) == for_peft
    handed = source.Handed("agent", "1", tmp_path, str(tmp_path), config)
    for merged in (True, False):
        named = metadata(model_card(handed, Lineage("agent", "", adapter_hash="4567.dir"), merged)).get("base_model")
        assert named == (config.base if on_the_hub else None)


def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="this is there already"):
        handover.export("models/policy", settings, full)
    other = settings.model_copy(update={"model": settings.model.model_copy(update={"base": "models/other"})})
    with pytest.raises(UserError, match=r"trained on models/base, but `model.base` in params.yaml is models/other"):
        handover.export("models/policy", other, tmp_path / "out")
    with pytest.raises(UserError, match="no version is registered yet"):
        handover.export("nobody@champion", settings, tmp_path / "out")
    with pytest.raises(UserError, match=r"adapter_config\.json"):
        handover.export("models/base", settings, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert [path.name for path in full.iterdir()] == ["mine.txt"]


def test_a_base_that_has_sampling_values_alone_is_merged(project: Path, settings: Settings, tmp_path: Path) -> None:
    """Many fine-tunes have them: transformers loads such a generation config, and does not save it."""
    config = project / "models/base/generation_config.json"
    before = config.read_text()
    try:
        config.write_text(json.dumps({**json.loads(before), "do_sample": False, "temperature": 0.6, "top_p": 0.9}))
        handover.export("models/policy", settings, tmp_path / "out", merge=True)
    finally:
        config.write_text(before)
    saved = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert (saved["temperature"], saved["top_p"], saved["do_sample"]) == (0.6, 0.9, True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("flavors: {sklearn: {}}", "version 3: its MLmodel does not say how an agent talks, so sweetrl has not"),
        ("a: [", "MLmodel: line 1: this is not YAML"),
    ],
)
def test_a_version_that_somebody_else_registered_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    class Others:
        name = "agent"

        def get(self, reference: str) -> SimpleNamespace:
            return SimpleNamespace(version=3)

        def download(self, version: object, path: str, folder: Path) -> Path:
            (folder / path).write_text(text)
            return folder / path

    with pytest.raises(UserError, match=sentence):
        copy_version(Others(), "champion", tmp_path)  # type: ignore[arg-type]


def test_the_shipped_bases_have_the_licence_of_the_project(tmp_path: Path) -> None:
    """They are recognized by content, because their folders do not name it."""
    for name in ("base", "base-frontend"):
        content = dvc_hash(ROOT / "models" / name)
        assert base_licence(ROOT / "models" / name, content) == "apache-2.0", name
        assert base_licence(ROOT / "models" / name) == ""
    (tmp_path / "LICENSE").write_text("Another License")
    assert base_licence(tmp_path, content) == "Another License", "a folder speaks for itself first"


def test_a_licence_is_read_from_the_card_or_the_licence_file(tmp_path: Path) -> None:
    assert base_licence(tmp_path) == ""
    (tmp_path / "LICENSE").write_text("\n  Apache License\nVersion 2.0\n")
    assert base_licence(tmp_path) == "Apache License"
    for wrong in ("license: [", "license: 2024-13-45", "[" * 3000, "license: a\nlicense: b"):
        (tmp_path / "README.md").write_text(f"---\n{wrong}\n---\n# Base\n")
        assert base_licence(tmp_path) == "Apache License"
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    assert base_licence(tmp_path) == "apache-2.0"


def test_a_folder_is_pushed_as_a_private_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls: list[Any] = []

    class Hub:
        def create_repo(self, repo_id: str, **options: Any) -> str:
            calls.append((repo_id, options))
            return f"https://hub.example/{repo_id}"

        def upload_folder(self, **options: Any) -> None:
            calls.append(options)
            if options["repo_id"] == "me/forbidden":
                raise OSError("403 Forbidden: no write token\nmore")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert handover.push(tmp_path, "me/agent", "agent version 2") == "https://hub.example/me/agent"
    assert calls[0] == ("me/agent", {"private": True, "exist_ok": True})
    assert calls[1]["folder_path"] == str(tmp_path) and "agent version 2" in calls[1]["commit_message"]
    with pytest.raises(UserError, match=r"me/forbidden: the Hub did not take the folder \(403 Forbidden"):
        handover.push(tmp_path, "me/forbidden", "agent")


def test_the_command_exports_and_pushes(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from sweetrl.cli.main import app

    pushed: list[Any] = []
    monkeypatch.setattr(handover, "push", lambda *arguments: pushed.append(arguments) or "https://hub.example/me/agent")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["export", "models/policy", "--out", str(out), "--push", "me/agent"])
    assert done.exit_code == 0, done.output
    assert "adapter_model.safetensors" in done.output and "uploaded\thttps://hub.example/me/agent" in done.output
    assert pushed == [(out, "me/agent", "policy")] and os.environ["HF_HUB_OFFLINE"] == "0"
