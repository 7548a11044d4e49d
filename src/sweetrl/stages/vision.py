"""The critic that looks at pages (critic.parameterization: vision-head), as stages train and load it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.settings import Settings
from sweetrl.stages.common import StageRun, publish
from sweetrl.stages.training import CRITIC, PAIRS, TRAJECTORIES

if TYPE_CHECKING:
    from sweetrl.browser.renderer import Renderer
    from sweetrl.colbench.types import Trajectory
    from sweetrl.learning.vision import Eyes, Look, VisionCritic


def train_vision_critic(run: StageRun) -> None:
    """Train an adapter and a head on a vision-language model, write models/critic/. A killed run begins again."""
    from sweetrl.browser.renderer import Renderer
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.learning.adapters import attach_adapter, save_adapter
    from sweetrl.learning.pairs import find_pairs, read_pairs
    from sweetrl.learning.vision import fit

    settings, wanted = run.settings, run.settings.critic
    model, eyes = _load(settings)
    run.log_input("trajectories", TRAJECTORIES)
    run.log_input("pairs", PAIRS)
    run.log_input("vision-model", wanted.vision.model)
    dialogues, places = find_pairs(read_pairs(PAIRS), TrajectoryStore(TRAJECTORIES).read(), str(PAIRS))
    adapted = attach_adapter(model, wanted.lora, settings.seed, head=True)
    started = time.monotonic()
    with Renderer(settings.browser) as renderer:
        pairs = Pairs(dialogues, places, renderer, wanted.privileged)
        losses = fit(
            adapted,
            eyes,
            pairs,
            beta=wanted.beta,
            learning_rate=wanted.learning_rate,
            epochs=max(1, round(wanted.epochs)),
            batch_size=wanted.batch_size,
            clip=wanted.clip,
            seed=settings.seed,
        )
    run.log_metric_series("loss", losses)
    run.log_metrics({"pairs": len(pairs), "seconds_training": time.monotonic() - started})
    folder = run.scratch(TRAJECTORIES, PAIRS) / "adapter"
    save_adapter(adapted, folder, wanted.vision.model)
    publish(folder, CRITIC)
    run.summary = f"{len(losses)} steps on {len(pairs)} pairs of dialogues, loss {losses[-1]:.4f}, adapter in {CRITIC}"


class Pairs(Sequence[tuple[list["Look"], list["Look"]]]):
    """Pairs of dialogues as the critic sees them, rendered when they are asked for: all pictures would be too many."""

    def __init__(
        self,
        dialogues: Sequence[Trajectory],
        places: Sequence[tuple[int, int]],
        renderer: Renderer,
        privileged: bool,
    ) -> None:
        self.dialogues, self.places, self.renderer, self.privileged = dialogues, places, renderer, privileged

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        """Return (looks of the chosen, looks of the rejected) of one pair."""
        from sweetrl.learning.vision import looks_of

        chosen, rejected = (
            looks_of(self.dialogues[place], self.renderer.render, self.privileged) for place in self.places[index]
        )
        return chosen, rejected


def load_vision_critic(settings: Settings, folder: Path) -> VisionCritic:
    """Load the trained critic from `folder`; its browser is closed when the process ends."""
    from sweetrl.browser.renderer import Renderer
    from sweetrl.learning.adapters import load_adapter
    from sweetrl.learning.vision import VisionCritic

    model, eyes = _load(settings)
    critic = load_adapter(model, folder)
    return VisionCritic(critic, eyes, Renderer(settings.browser).render, settings.critic.privileged)


def _load(settings: Settings) -> tuple[Any, Eyes]:
    from sweetrl.learning.vision import load_vision

    vision = settings.critic.vision
    if settings.suite != "frontend":
        raise UserError("critic.parameterization: `vision-head` looks at pages; set `suite: frontend` or take another.")
    if not vision.model:
        raise UserError("critic.vision.model: this is empty; name the Qwen2-VL model that looks at the pages.")
    return load_vision(vision.model, settings.model.dtype, settings.model.device, vision.tokens)
