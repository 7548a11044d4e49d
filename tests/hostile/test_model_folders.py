"""Folders of weights that attack: code, pickles, templates and pointers never take effect; a sentence reports them."""

from __future__ import annotations

import ast
import builtins
import pickle
import resource
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from tests.hostile.conftest import change, load

CODE = """
from pathlib import Path
Path({canary!r}).write_text("this ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class EvilConfig(LlamaConfig):
    model_type = "evil"
class EvilModel(LlamaForCausalLM):
    config_class = EvilConfig
class EvilTokenizer(PreTrainedTokenizerFast):
    pass
"""
OWN = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}


class Bomb:
    """Writes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, (f"open({str(self.canary)!r}, 'w').write('this ran')",))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path, canary: Path) -> Path:
    """A copy of the tiny model that brings code; nothing names that code yet."""
    place = tmp_path / "model"
    shutil.copytree(tiny_model, place)
    (place / "evil.py").write_text(CODE.format(canary=str(canary)))
    return place


@pytest.fixture(autouse=True)
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts on stdin, each answered with `y`; a connection to the network is an error."""
    answered: list[str] = []

    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"a connection to the network: {arguments}")

    monkeypatch.setattr(builtins, "input", lambda *arguments: answered.append("input") or "y")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return answered


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_in_a_folder_is_refused_and_never_run(folder: Path, canary: Path, prompts: list[str], where: str) -> None:
    change(folder / "config.json", model_type="evil")
    if where == "config.json":
        change(folder / where, auto_map=OWN)
    else:
        change(folder / where, auto_map={"AutoTokenizer": ["evil.EvilTokenizer", None]}, tokenizer_class="Evil")
    with pytest.raises(UserError, match=f"{where} says that the model brings its own code"):
        load(folder)
    assert not canary.exists() and not prompts


def test_code_in_the_folder_of_a_vision_model_is_not_run(
    tiny_vision: Path, tmp_path: Path, canary: Path, prompts: list[str]
) -> None:
    from sweetrl.frontend.vision import load_vision

    place = tmp_path / "vision"
    shutil.copytree(tiny_vision, place)
    (place / "evil.py").write_text(CODE.format(canary=str(canary)))
    change(place / "config.json", model_type="evil")
    own = {"AutoTokenizer": [None, "evil.EvilTokenizer"]}
    change(place / "tokenizer_config.json", auto_map=own, tokenizer_class="Evil")
    with pytest.raises(UserError, match="brings its own code"):
        load_vision(place, "float32", "cpu")
    assert not canary.exists() and not prompts


def test_code_of_a_type_that_transformers_knows_is_left_alone(
    folder: Path, canary: Path, prompts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    change(folder / "config.json", auto_map=OWN)
    own = {"AutoTokenizer": [None, "evil.EvilTokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=own, tokenizer_class="PreTrainedTokenizerFast")
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "evil.py", folder / "custom_generate" / "generate.py")
    tokenizer, model = load(folder)
    assert type(model).__module__.startswith("transformers.") and type(tokenizer).__module__.startswith("transformers.")
    assert not canary.exists() and not prompts
    assert caplog.text.count("is not run") == 2


def test_a_kernel_of_the_hub_is_refused(folder: Path) -> None:
    change(folder / "config.json", text_config={"_attn_implementation": "stranger/kernel"})
    with pytest.raises(UserError, match="stranger/kernel"):
        load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_refused_and_never_read(folder: Path, canary: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(canary)))
    with pytest.raises(UserError, match=rf"the weights are pickled \({name}\)"):
        load(folder)
    assert not canary.exists()


@pytest.mark.parametrize("part", ["evil.bin", "../other.safetensors"])
def test_an_index_names_safetensors_beside_it_only(folder: Path, canary: Path, part: str) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "evil.bin").write_bytes(pickle.dumps(Bomb(canary)))
    change(folder / "model.safetensors.index.json", metadata={}, weight_map={"lm_head.weight": part})
    with pytest.raises(UserError, match="no safetensors file beside it"):
        load(folder)
    assert not canary.exists()


def test_a_base_with_an_adapter_that_names_another_base_is_refused(folder: Path, adapter: Path) -> None:
    for path in adapter.iterdir():
        shutil.copy(path, folder)
    change(folder / "adapter_config.json", base_model_name_or_path="stranger/other")
    with pytest.raises(UserError, match="may name another base"):
        load(folder)


def test_the_base_that_an_adapter_names_is_never_looked_for(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.config.settings import ModelSettings
    from sweetrl.lm.adapters import load_adapter, load_base

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    change(adapter / "adapter_config.json", base_model_name_or_path="stranger/other", revision="main")
    model, _ = load_base(ModelSettings(base=str(tiny_model), device="cpu"))
    loaded: Any = load_adapter(model, adapter)
    assert loaded.peft_config["default"].base_model_name_or_path == str(tiny_model)
    assert loaded.get_base_model() is model


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peft_type": "XLORA", "adapters": {"0": "stranger/other"}}, "only LoRA"),
        ({"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "stranger/other"}, "only LoRA"),
        ({"megatron_config": {"a": 1}, "megatron_core": "evil"}, "megatron_config"),
        ({"layer_replication": [[0, 10**9]]}, "layer_replication"),
        ({"r": "2"}, "no rank"),
    ],
)
def test_adapters_that_are_more_than_weights_are_refused(
    tiny_model: Path, adapter: Path, changes: dict[str, Any], reason: str
) -> None:
    from sweetrl.engines.policy import adapter_lora_rank
    from sweetrl.engines.vllm import adapter_name

    change(adapter / "adapter_config.json", **changes)
    for look in (adapter_lora_rank, adapter_name):
        with pytest.raises(UserError, match=reason):
            look(adapter)


def test_a_pickled_adapter_is_refused_and_never_read(tiny_model: Path, adapter: Path, canary: Path) -> None:
    from sweetrl.engines.transformers import load_model

    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    with pytest.raises(UserError, match=r"the weights are pickled \(adapter_model.bin\)"):
        load_model(tiny_model, adapter, "float32", "cpu")
    assert not canary.exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", '{"a": ' + "[" * 200_000, "levels deep"),
        ("config.json", '{"a": ' + '{"b": ' * 100 + "1" + "}" * 101, "levels deep"),
        ("config.json", '{"a": ' + "9" * 10_000 + "}", "not JSON"),
        ("config.json", "[]", "no JSON object"),
        ("generation_config.json", b'{"a": "\xff"}', "not JSON"),
        ("tokenizer_config.json", b'{"a": "\xff"}', "not JSON"),
        ("tokenizer.json", '{"a": ' + "[" * 200_000, "levels deep"),
    ],
    ids=["bottomless", "deep", "long-number", "list", "not-utf-8", "of-a-tokenizer", "its-vocabulary"],
)
def test_json_that_attacks_its_reader_is_a_sentence(
    tiny_model: Path, tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    from sweetrl.models.check import check_tokenizer, check_weights

    place = tmp_path / "model"
    place.mkdir()
    for path in tiny_model.iterdir():
        if path.name != name:
            (place / path.name).symlink_to(path)
    (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=f"{name}: .*{reason}"):
        check_weights(place)
        check_tokenizer(place)


def test_a_file_out_of_all_proportion_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("r+") as file:
        file.truncate(40 * 2**30)
    with pytest.raises(UserError, match="more than 4 MiB"):
        load(folder)


def normalizers(*each: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(each)}}


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(regex: str) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}}


TOKENIZERS = {
    "doubles": normalizers(*[replaced({"String": "i"}, "ii")] * 21),
    "doubles-often": normalizers(*[replaced({"String": "i"}, "ii")] * 60),
    "lengthens": normalizers(replaced({"String": "h"}, "hi" * 100_000)),
    "pattern": normalizers(replaced({"Regex": "."}, "hi" * 1000)),
    "between": normalizers(replaced({"Regex": ""}, "hi" * 1000)),
    "prepends": normalizers({"type": "Prepend", "prepend": "x" * 100_000}),
    "rare-letter": normalizers(replaced({"String": "q"}, "q" * 5000)),
    "accent": normalizers(replaced({"String": "\u00e9"}, "e" * 500_000)),
    "looks-back": split(r"(?:a|a?)+(?=[^a]x)|(.*)*(.*)*(.*)*!!"),
    "special": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}] * 100_000,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [4], "tokens": ["<|end|>"]}},
        }
    },
    "decodes": {"decoder": replaced({"Regex": "."}, "x" * 1_000_000)},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_blows_texts_up_is_refused(folder: Path, name: str) -> None:
    change(folder / "tokenizer.json", **TOKENIZERS[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"tokenizer\.json: .*take another folder"):
        load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 2**10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 10**7),
        ("vocab_size", 10**11),
        ("hidden_size", 2**20),
        ("intermediate_size", 10**10),
        ("head_dim", 10**8),
        ("num_hidden_layers", 4000),
        ("num_local_experts", 10**8),
        ("num_labels", 10**9),
        ("attention_types", [[["global"], 10**9]]),
        ("hybrid_override_pattern", "*" * 10**6),
        ("layers_block_type", ["mamba"] * 10**5),
    ],
)
def test_a_config_that_asks_for_more_than_the_weights_hold_is_refused(folder: Path, key: str, value: Any) -> None:
    change(folder / "config.json", **{key: value})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"config\.json: .* no model has more" if "num" in key else r"config\.json"):
        load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 2**10


@pytest.mark.parametrize("key", ["extra_ids", "offset"])
def test_a_tokenizer_that_makes_tokens_without_end_is_refused(folder: Path, key: str) -> None:
    (folder / "tokenizer.json").unlink()
    change(folder / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer", **{key: 10**10})
    with pytest.raises(UserError, match=rf"`{key}` is 10000000000; no tokenizer has more than 65536"):
        load(folder)


BOMBS = {
    "loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "processor time",
    ),
    "constant": ("{{ 'a' * 100000000000 }}", "MemoryError"),
    "output": ("{% for message in messages %}{{ message['content'] * 20000 }}{% endfor %}", "characters"),
    "long": ("a" * 300_000, "KiB"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_chat_template_without_bounds_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from sweetrl import bounded
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.models import chat_templates
    from sweetrl.models.load import load_tokenizer

    monkeypatch.setattr(chat_templates, "CPU_SECONDS", 1)
    template, reason = BOMBS[name]
    (folder / "chat_template.jinja").write_text(template)
    started = time.monotonic()
    with pytest.raises(UserError, match=reason):
        ChatFormat(load_tokenizer(folder))
    assert time.monotonic() - started < bounded.WALL_SECONDS / 2


def test_a_template_that_prints_the_day_prints_the_same_every_day(folder: Path) -> None:
    from sweetrl.models.chat_templates import render_dialogues

    assert render_dialogues("{{ strftime_now('%Y-%m-%d') }}", [[]], {}) == [{"text": "2024-07-26"}]


@pytest.mark.parametrize("words", ["--trust-remote-code", "--trust_remote_code=True", "--trust-remote"])
def test_a_server_of_ours_never_trusts_a_folders_code(words: str) -> None:
    from sweetrl.engines.vllm_server import vllm_command

    for template, arguments in ((f"vllm serve {{model}} {words}", ""), ("vllm serve {model}", words)):
        with pytest.raises(UserError, match="would run code"):
            vllm_command(template, arguments, "models/base", 8000, "base", 16)


def test_a_server_of_ours_is_not_started_on_such_a_folder(folder: Path, tmp_path: Path) -> None:
    from sweetrl.config.settings import EngineSettings, ModelSettings
    from sweetrl.engines.policy import watched

    change(folder / "config.json", model_type="evil", auto_map=OWN)
    engine = EngineSettings(kind="vllm", command="false {model}")
    with (
        pytest.raises(UserError, match="brings its own code"),
        watched(engine, ModelSettings(base=str(folder)), tmp_path / "log"),
    ):
        pass


def test_a_checkpoint_is_read_without_running_what_is_pickled_in_it(
    tiny_model: Path, tmp_path: Path, canary: Path
) -> None:
    import torch

    from sweetrl.config.settings import LoraSettings, ModelSettings, RftSettings
    from sweetrl.lm.adapters import attach_adapter, load_base
    from sweetrl.lm.data import PreferenceData, Row
    from sweetrl.sweet.trainer import ImitationTrainer

    rows = tuple(Row((1, 2, 3, 4 + number), ((2, 4),)) for number in range(4))
    data = PreferenceData(rows, tuple((number, number) for number in range(4)))
    options = RftSettings(epochs=1, batch_size=2, micro_batch_size=2, checkpoints=2, learning_rate=1e-3)

    def trainer() -> ImitationTrainer:
        base, _ = load_base(ModelSettings(base=str(tiny_model), device="cpu"))
        return ImitationTrainer(attach_adapter(base, LoraSettings(rank=2), 0), data, options, tmp_path / "scratch", 0)

    def resume() -> int:
        shutil.rmtree(tmp_path / "scratch" / "checkpoint-2", ignore_errors=True)
        return len(trainer().fit())

    trainer().fit()
    last = tmp_path / "scratch" / "checkpoint-1"
    pickled = sorted(path.name for path in last.iterdir() if path.suffix in (".pt", ".pth", ".bin"))
    assert pickled == ["optimizer.pt", "rng_state.pth", "scheduler.pt", "training_args.bin"]
    torch.save(Bomb(canary), last / "training_args.bin")
    assert resume() == 2  # never read at all
    for name in pickled[:3]:
        original = (last / name).read_bytes()
        torch.save(Bomb(canary), last / name)
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            resume()
        (last / name).write_bytes(original)
    assert not canary.exists()


def test_nothing_loads_models_but_two_places() -> None:
    """Folders and names on the hub, and GGUF files, alone in a folder and after their header was read with limits."""
    source = Path(__file__).parents[2] / "src" / "sweetrl"
    loaders = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                (".from_pretrained", "torch.load", "pickle.load", "pickle.loads")
            ):
                loaders.add(path.relative_to(source).as_posix())
    assert loaders - {"reproduce/larger.py"} == {
        "models/load.py",
        "models/gguf.py",
    }  # the one loads the project's own small base
