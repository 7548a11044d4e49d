"""Shared fixtures: a tiny random chat model, the real tasks (where they are), and quiet, offline settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.types import Task

# A busy machine must not fail a property (no deadlines), and equal code must give equal verdicts (no random examples).
settings.register_profile(
    "project", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")

for key, value in {
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(key, value)

# `make test ARGS="-k x"` hands its variables to every make under it, and a test's `make run` would take -k for its own.
for key in ("ARGS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"):
    os.environ.pop(key, None)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared" / "colbench"

TEXTS = [
    "I want a function that computes the price of a parking ticket. The signature of the function is: def price(hours)",
    "Is there a maximum? What is the rate per hour? How should the result be rounded?",
    "The rate is 7. There is no maximum. Round it to 2 places. I do not know.",
    "I WANT TO ANSWER:\n```python\ndef price(hours):\n    total = hours * 7\n    return round(total, 2)\n```",
]


@pytest.fixture(scope="module", autouse=True)
def _a_module_keeps_its_store_to_itself() -> Iterator[None]:
    """Opening a store makes MLflow set MLFLOW_TRACKING_URI for the whole process: the next module has its own."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    yield
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if before is not None:
        os.environ["MLFLOW_TRACKING_URI"] = before


@pytest.fixture(autouse=True)
def _threads_that_there_are() -> None:
    """A stage in this process sets `model.threads`; where OpenMP allows fewer, bfloat16 gives NaN (torch 2.13)."""
    if (limit := os.environ.get("OMP_THREAD_LIMIT")) and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(limit))


def shared(name: str) -> Path:
    """A file of real ColBench tasks; skips where it is not there (they are never part of the project)."""
    if not (SHARED / name).exists():
        pytest.skip(f"the real ColBench tasks (CC-BY-NC) are not here: put {name} in ../shared/colbench")
    return SHARED / name


@pytest.fixture(scope="session")
def real_backend_tasks() -> Path:
    """The 300 real ColBench backend tasks."""
    return shared("backend_300.jsonl")


@pytest.fixture(scope="session")
def real_frontend_tasks() -> Path:
    """150 real ColBench frontend tasks."""
    return shared("frontend_150.jsonl")


@pytest.fixture(scope="session")
def write_tasks() -> Callable[[Path, Iterable[Task]], Path]:
    """A function that writes tasks as a file of ColBench's official format and returns its path."""
    from sweetrl.colbench.files import task_row

    def write(path: Path, tasks: Iterable[Task]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(task_row(task)) + "\n" for task in tasks), encoding="utf-8")
        return path

    return write


@pytest.fixture
def postgres_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """sqlite refuses what PostgreSQL does: a text that is longer than its column, or has a NUL."""
    from sqlalchemy import String

    def bind_processor(column: String, dialect: object) -> Callable[[str | None], str | None]:
        def bind(value: str | None) -> str | None:
            if value is not None and (len(value) > (column.length or len(value)) or "\0" in value):
                raise ValueError(f"value too long for type character varying({column.length}), or with a NUL")
            return value

        return bind

    monkeypatch.setattr(String, "bind_processor", bind_processor)


@pytest.fixture
def own_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], Path]]:
    """A function that writes the module `mine` into a project's folder; it can be imported until the test ends."""
    from sweetrl import plugins

    def write(folder: Path, text: str) -> Path:
        monkeypatch.syspath_prepend(folder)
        (folder / "mine.py").write_text(text, encoding="utf-8")
        return folder / "mine.py"

    yield write
    plugins.find.cache_clear()
    sys.modules.pop("mine", None)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The last value of each metric that a stage hands to MLflow."""
    from sweetrl.tracking.runs import RunLog

    values: dict[str, float] = {}
    monkeypatch.setattr(RunLog, "log_metrics", lambda log, more, step=0: values.update(more))
    return values


@pytest.fixture
def fake_server() -> Any:
    """The class FakeServer of tests/fake_server.py, to be used as a context manager."""
    from tests.fake_server import FakeServer

    return FakeServer


@pytest.fixture(scope="session")
def browser() -> None:
    """Skips where no browser is found, or none starts."""
    from sweetrl.browser.renderer import Renderer
    from sweetrl.config.settings import BrowserSettings
    from sweetrl.errors import UserError

    try:
        with Renderer(BrowserSettings(cache="", tabs=1)) as renderer:
            renderer.render("<html><body>x</body></html>")
    except UserError as error:
        pytest.skip(f"no browser here: {error}")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama and its tokenizer with chat template: loads with the Auto classes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sweetrl.base_agent.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = build_tokenizer(TEXTS, vocabulary=512, numbers=100)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat(tiny_model: Path) -> ChatFormat:
    """How dialogues become the tiny model's tokens."""
    from transformers import AutoTokenizer

    from sweetrl.engines.chat import ChatFormat

    return ChatFormat(AutoTokenizer.from_pretrained(tiny_model))


@pytest.fixture(scope="session")
def tokenizer(chat: ChatFormat) -> Any:
    """The tiny model's tokenizer."""
    return chat.tokenizer


@pytest.fixture(scope="session")
def write_adapter() -> Callable[..., Path]:
    """The function write_adapter of tests/adapters.py."""
    from tests.adapters import write_adapter

    return write_adapter


@pytest.fixture(scope="session")
def shipped_base() -> Path:
    """The base model that the project ships; skips where it is missing."""
    if not (REPOSITORY / "models/base/config.json").exists():
        pytest.skip("models/base is missing: git pull, or make base-model")
    return REPOSITORY / "models/base"


@pytest.fixture(scope="session")
def tiny_vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2-VL of random weights and a few thousand parameters, with a tokenizer and a picture processor."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from sweetrl.base_agent.tokenizer import build_tokenizer

    place = tmp_path_factory.mktemp("vision")
    tokenizer = build_tokenizer(['<html><body class="p-8">Welcome</body></html>', "Show me a page, please."], 400)
    torch.manual_seed(5)
    text = {
        "vocab_size": 410, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}
    ids = {"image_token_id": 401, "video_token_id": 402, "vision_start_token_id": 403, "vision_end_token_id": 404}
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **ids))
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    Qwen2VLImageProcessorPil().save_pretrained(place)
    return place
