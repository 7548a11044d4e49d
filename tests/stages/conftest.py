"""Stages on their own: they write their run files, and nothing into a store of MLflow unless a test wants that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import LoraSettings, ModelSettings
from sweetrl.types import Score, TestResult, Trajectory


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")


class LongScorer:
    """Scores without a sandbox: the longer the better; the first test passes if the answer is longer than 40."""

    def __init__(self, settings: Any) -> None:
        """Needs nothing."""

    def __enter__(self) -> LongScorer:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to free."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        return [self._one(one, len(one.answer or "")) for one in dialogues]

    def _one(self, dialogue: Trajectory, length: int) -> Score:
        names = [name for name, _ in dialogue.task.test_cases]
        tests = tuple(TestResult(name, at == 0 and length > 40, "passed") for at, name in enumerate(names))
        return Score(min(1.0, length / 50), tests, semantics="fixed", isolation="none")


@pytest.fixture
def long_answers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweetrl.backend.rewards.CodeScorer", LongScorer)


@pytest.fixture
def changing_adapter(tiny_model: Path) -> Callable[[Path], None]:
    """A function that writes into a folder an adapter that changes what the tiny model says."""
    from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter

    def write(folder: Path) -> None:
        model = attach_adapter(load_base(ModelSettings(base=str(tiny_model)))[0], LoraSettings(rank=2), 1)
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.data.fill_(0.4)
        save_adapter(model, folder, str(tiny_model))

    return write
