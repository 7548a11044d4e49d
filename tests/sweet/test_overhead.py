"""What a training step costs beside arithmetic, counted: waits for the device, walks over modules, Python calls."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import CriticSettings, LoraSettings, PolicySettings
from sweetrl.lm import tree_attention
from tests.lm.test_memory import model_of
from tests.lm.test_trees import dialogues

WALKS = ("named_modules", "named_parameters", "train")  # modules(), parameters() and zero_grad() end in these
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim")  # the host needs the result


def waiting(note: Callable[[str], None]) -> Any:
    """A context that notes `waits` for the device."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Waits(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function.overloadpacket.__name__
            masked = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
            if name in WAITS or masked:
                note("waits")
            return function(*args, **(kwargs or {}))

    return Waits()


def count(kind: str, folder: Path, layers: int = 2) -> Counter[str]:
    """Count what happens in the second and third of three steps, `waits` within passes only."""
    from sweetrl.sweet import trainer as trainers

    seen, step = Counter[str](), 0

    def note(name: str) -> None:
        if step > 1:
            seen[name] += 1

    class Counted(getattr(trainers, kind)):  # type: ignore[misc]
        def training_step(self, *given: Any, **more: Any) -> Any:
            nonlocal step
            step += 1
            return super().training_step(*given, **more)

        def compute_loss(self, *given: Any, **more: Any) -> Any:
            note("passes")
            with waiting(note):
                return super().compute_loss(*given, **more)

    def see(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            note("calls")
            if frame.f_code.co_name in WALKS and frame.f_code.co_filename.endswith("nn/modules/module.py"):
                note("walks")

    settings: Any = {"batch_size": 8, "micro_batch_size": 4, "epochs": 1, "lora": LoraSettings(rank=4)}
    how = CriticSettings(**settings) if kind == "CriticTrainer" else PolicySettings(**settings)
    trainer = Counted(model_of(layers, "float32", 4), dialogues(tasks=8), how, folder, seed=0)
    trainer.args.save_strategy = "no"  # checkpoints may walk
    sys.setprofile(see)
    try:
        trainer.fit()
    finally:
        sys.setprofile(None)
    assert step == 3
    return seen


@pytest.mark.parametrize("kind", ["CriticTrainer", "PolicyTrainer"])
def test_a_step_waits_for_no_device_and_walks_over_no_modules(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics are read at the end of a step; a layer costs so many Python calls a pass, and a step few beside."""
    monkeypatch.setattr(tree_attention, "tree_mask", lambda **_: None)  # windows are read, from the host's memory
    two, four = count(kind, tmp_path, 2), count(kind, tmp_path, 4)
    assert two["passes"] == four["passes"] >= 4
    assert two["waits"] == two["walks"] == 0, two
    each = (four["calls"] - two["calls"]) / 2 / two["passes"]
    assert each < 3000 and two["calls"] / two["passes"] - 2 * each < 4000, (each, two)
