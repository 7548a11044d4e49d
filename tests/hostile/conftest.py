"""Folders of weights that tests may spoil."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def load(folder: Path) -> Any:
    from sweetrl.models.load import load_tokenizer, load_weights

    return load_tokenizer(folder), load_weights(folder, "float32")


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    from sweetrl.config.settings import LoraSettings, ModelSettings
    from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter

    base, _ = load_base(ModelSettings(base=str(tiny_model), device="cpu"))
    save_adapter(attach_adapter(base, LoraSettings(rank=2), 0), tmp_path / "adapter", "models/base")
    return tmp_path / "adapter"
