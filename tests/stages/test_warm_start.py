"""The stage `warm-start`: what it teaches, that it resumes, and what its folder says of the model it is made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.base_agent.pretraining import READING
from sweetrl.base_agent.warm_start import demonstrations, steps_of
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.models.licences import base_licence
from sweetrl.models.load import load_tokenizer, load_weights
from sweetrl.stages import warm_start as module
from sweetrl.sweet import arguments
from tests.stages.conftest import content

PRETRAINED = Path("pretrained")
NEW = Path("models/warm")


def settings_of(**changes: Any) -> Settings:
    common = {"base": str(PRETRAINED), "dialogues": 10, "batch_size": 2, "micro_batch_size": 2, "checkpoints": 5}
    values = {
        "model": {"base": str(NEW), "device": "cpu", "threads": 1},
        "agent": {"prompt": "short", "max_turns": 5},
        "warm_start": {**common, "learning_rate": 1e-3, "lora": {"rank": 4, "dropout": 0.1}, **changes},
    }
    return parse_settings(values)


def sections(settings: Settings) -> tuple[Any, ...]:
    """What `demonstrations` takes of the settings."""
    return settings.warm_start, settings.pretrain, settings.agent, settings.tasks.difficulty


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pretrained model in bfloat16, whose card, licence and origin are there."""
    import torch

    monkeypatch.chdir(tmp_path)
    load_weights(tiny_model, "float32").to(torch.bfloat16).save_pretrained(PRETRAINED)
    load_tokenizer(tiny_model).save_pretrained(PRETRAINED)
    (PRETRAINED / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    (PRETRAINED / "LICENSE.txt").write_text("Apache License\n")
    (PRETRAINED / "Notice").write_text("by somebody\n")
    (PRETRAINED / "origin.json").write_text('{"package": "somewhere==1"}')
    Path("params.yaml").write_text("seed: 7\n")
    return tmp_path


def test_all_weights_may_be_trained(project: Path) -> None:
    import torch

    settings = settings_of()
    module.warm_start(settings.model_copy(update={"model": settings.model.model_copy(update={"train": "full"})}))
    before, after = load_weights(PRETRAINED, "bfloat16"), load_weights(NEW, "bfloat16")
    moved = {name for name, value in before.state_dict().items() if not torch.equal(value, after.state_dict()[name])}
    assert "model.embed_tokens.weight" in moved and "model.layers.0.mlp.down_proj.weight" in moved
    assert not (NEW / "full_weights.json").exists(), "it is a base like any other"
    assert "(4 steps, all weights)" in (NEW / "README.md").read_text()


def test_the_result_is_a_folder_like_any_other_with_the_bases_licence(project: Path) -> None:
    import torch

    module.warm_start(settings_of())
    before, after = load_weights(PRETRAINED, "bfloat16"), load_weights(NEW, "bfloat16")
    assert read_json(NEW / "config.json")["dtype"] == "bfloat16"
    changed = [name for name, value in before.state_dict().items() if not torch.equal(value, after.state_dict()[name])]
    assert changed and all("_proj" in name for name in changed), "the adapter is in the weights, the rest is as it was"
    assert not list(NEW.glob("adapter*")) and (NEW.stat().st_mode & 0o055) == 0o055
    assert all((path.stat().st_mode & 0o044) == 0o044 for path in NEW.iterdir()), "others may read it"
    assert load_tokenizer(NEW).chat_template == load_tokenizer(PRETRAINED).chat_template
    assert base_licence(NEW) == "apache-2.0"
    for name in ("LICENSE.txt", "Notice"):
        assert (NEW / name).read_bytes() == (PRETRAINED / name).read_bytes()
    assert (NEW / "BASE.md").read_text() == (PRETRAINED / "README.md").read_text()
    origin = read_json(NEW / "origin.json")
    assert (origin["base"], origin["license"], origin["origin"]) == (
        str(PRETRAINED),
        "apache-2.0",
        {"package": "somewhere==1"},
    )
    assert origin["hash"].endswith(".dir")
    recipe = read_json(NEW / "recipe.json")
    assert recipe["settings"]["warm_start"] == settings_of().warm_start.model_dump(mode="json")
    assert (recipe["demonstrations"], recipe["steps"]) == (10, 4), "5 readers' dialogues and 5 others', 2 a step"
    facts = read_json(Path("reports/runs/warm-start.json"))
    assert facts["metrics"]["readers"] == 5 and facts["inputs"]["base"].startswith(f"{PRETRAINED.name} ")


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.warm_start(settings_of())
    undisturbed = content(NEW)
    shutil.rmtree(NEW)
    shutil.rmtree(".scratch")
    save: Callable[..., None] = arguments.Checkpoints.on_save
    steps: list[int] = []

    def killed(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        save(self, args, state, control, **kwargs)
        steps.append(state.global_step)
        if len(steps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(arguments.Checkpoints, "on_save", killed)
    with pytest.raises(KeyboardInterrupt):
        module.warm_start(settings_of())
    assert steps == [1, 2] and not NEW.exists()
    module.warm_start(settings_of())
    assert steps == [1, 2, 3, 4], "it goes on after the second step"
    assert content(NEW) == undisturbed


def test_readers_come_first_and_an_actor_is_shown_what_it_may_see(tiny_model: Path) -> None:
    settings = settings_of(dialogues=40, epochs=2.0, batch_size=4, micro_batch_size=4)
    domain, chat = load_domain(settings), ChatFormat(load_tokenizer(tiny_model))
    skills: list[dict[str, float]] = []
    demonstrate = type(domain).demonstrate

    class Watched(type(domain)):  # type: ignore[misc]
        def demonstrate(self, task: Any, skill: Any, max_turns: int, seed: int) -> Any:
            skills.append({name: getattr(skill, name) for name in READING})
            return demonstrate(self, task, skill, max_turns, seed)

    domain.__class__ = Watched
    data = demonstrations(domain, chat, *sections(settings), 2048)
    assert [skill == READING for skill in skills] == [True] * 20 + [False] * 20
    assert (len(data.rows), data.readers, data.too_long) == (40, 20, 0)
    steps = steps_of(data, settings.warm_start)
    order = [chosen for step in steps for chosen, _ in step.pairs]
    assert len(steps) == 20 and sorted(order[:40]) == sorted([*range(20)] * 2), "both passes over the readers' first"
    assert sorted(order[40:]) == sorted([*range(20, 40)] * 2)

    tokenizer = chat.tokenizer
    privileged = 0
    for row, task in zip(data.rows, domain.pretraining_tasks(40, 11, 3), strict=True):
        shown = tokenizer.decode(row.token_ids[: row.spans[0][0]])
        informed = domain.privileged_prompt(task).strip() in shown
        privileged += informed
        assert informed or task.ground_truth.split("\n", 1)[1] not in shown
        assert domain.system_prompt("short") in shown and task.problem_description in shown
        for start, end in row.spans:
            assert row.token_ids[end - 1] == chat.end_of_turn, "learnt: the replies, to their end"
            assert tokenizer.decode(row.token_ids[:start]).endswith("<|assistant|>")
    assert privileged == data.informed and 0 < privileged < 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": ""}, "`warm_start.base` is empty; name a pretrained model"),
        ({"base": str(NEW)}, "`warm_start.base` and `model.base` are both models/warm"),
        ({"base": "models/none"}, "models/none: there is no folder here"),
        ({"lora": {"target_modules": "none"}}, "lora.target_modules = 'none'"),
    ],
)
def test_bad_settings_are_one_sentence(project: Path, changes: dict[str, Any], words: str) -> None:
    Path("models").mkdir()
    with pytest.raises(UserError, match=words):
        module.warm_start(settings_of(**changes))
    assert not NEW.exists()


def test_a_model_that_is_there_already_is_not_written_over(project: Path) -> None:
    shutil.copytree(PRETRAINED, NEW)
    before = content(NEW)
    with pytest.raises(UserError, match=r"models/warm: `model\.base` is not made by"):
        module.warm_start(settings_of())
    assert content(NEW) == before
    shutil.rmtree(NEW)
    for _ in range(2):  # its own may be made again
        module.warm_start(settings_of(dialogues=2))


def test_a_domain_without_a_demonstrator_is_one_sentence(project: Path, own_code: Callable[[Path, str], Path]) -> None:
    own_code(
        project,
        "import sweetrl\n\n\nclass Mine(sweetrl.Domain):\n    prompt = 'Ask.'\n\n"
        "    def tasks(self, split, count, seed, difficulty):\n        yield sweetrl.Task('1', 'Say it.', 'x')\n",
    )
    settings = settings_of().model_copy(update={"suite": "mine:Mine"})
    with pytest.raises(UserError, match=r"mine:Mine: the domain has no scripted agent \(`demonstrate`\)"):
        module.warm_start(settings)
    assert not NEW.exists()


def test_what_does_not_fit_is_left_out_and_nothing_at_all_is_one_sentence(tiny_model: Path) -> None:
    settings, chat = settings_of(), ChatFormat(load_tokenizer(tiny_model))
    domain: Domain = load_domain(settings)
    lengths = sorted(len(row.token_ids) for row in demonstrations(domain, chat, *sections(settings), 2048).rows)
    some = demonstrations(domain, chat, *sections(settings), lengths[4])
    assert (len(some.rows), some.too_long) == (5, 5)
    with pytest.raises(UserError, match="none of 10 demonstrations fits into the model's context of 20 tokens"):
        demonstrations(domain, chat, *sections(settings), 20)


@pytest.mark.parametrize("suite", ["backend", "frontend"])
def test_tasks_from_files_are_shown_from_the_last_where_the_domain_has_facts(
    suite: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def f(x):\n    return x + {}" if suite == "backend" else "<html><body>{}</body></html>"
    tests = {"test_cases": {"test1": "f(1)"}} if suite == "backend" else {}
    rows = [{"problem_description": f"Please, {n}.", "ground_truth": code.format(n), **tests} for n in range(8)]
    files = {"source": "files", "train": 6, "validation": 1, "test": 1}
    for name, part in (("train", rows[:7]), ("test", rows[7:])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        files[f"{name}_file"] = f"{name}.jsonl"
    settings = parse_settings({**settings_of().model_dump(mode="json", by_alias=True), "suite": suite, "tasks": files})
    shown: list[str] = []

    def watched(*given: Any) -> Any:
        shown.extend(task.problem_description for task in given[-1])
        raise UserError("seen")

    monkeypatch.setattr("sweetrl.base_agent.warm_start.demonstrations", watched)
    with pytest.raises(UserError, match="seen"):
        module.warm_start(settings)
    assert shown == ([f"Please, {n}." for n in range(5, -1, -1)] if suite == "backend" else [])
