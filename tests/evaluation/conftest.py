from pathlib import Path

import pytest

from sweetrl.engines.chat import ChatFormat


@pytest.fixture(scope="package")
def chat(tiny_model: Path) -> ChatFormat:
    from transformers import AutoTokenizer

    return ChatFormat(AutoTokenizer.from_pretrained(tiny_model))
