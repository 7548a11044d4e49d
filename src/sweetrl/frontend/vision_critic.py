"""The critic that looks at pages (critic.parameterization: vision-head), trained and loaded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.types import TrainingResult

if TYPE_CHECKING:
    from sweetrl.browser.renderer import Renderer
    from sweetrl.config.settings import BrowserSettings, CriticSettings, ModelSettings
    from sweetrl.config.training import VisionSettings
    from sweetrl.frontend.vision import VisionCritic, VisionProcessor, VisionPrompt
    from sweetrl.types import Trajectory, TrajectoryPair


def fit_vision_critic(
    critic: CriticSettings,
    model_settings: ModelSettings,
    browser: BrowserSettings,
    seed: int,
    dialogues: Iterable[Trajectory],
    pairs: Sequence[TrajectoryPair],
    scratch: Path,
    where: str,
) -> TrainingResult:
    """Train an adapter and a head on a vision-language model. A killed run begins again."""
    from sweetrl.browser.renderer import Renderer
    from sweetrl.frontend.vision import fit
    from sweetrl.lm.adapters import attach_adapter, save_adapter
    from sweetrl.sweet.pairs import index_pairs

    if not pairs:
        raise UserError(f"{where}: there is no pair to learn from; bring more attempts at each task.")
    model, processor = _load(critic.vision, model_settings)
    found: list[Trajectory] = []
    places = index_pairs(pairs, dialogues, found.append, where)
    adapted = attach_adapter(model, critic.lora, seed, head=True)
    started = time.monotonic()
    with Renderer(browser) as renderer:
        prompts = Pairs(found, places, renderer, critic.privileged)
        losses = fit(
            adapted,
            processor,
            prompts,
            beta=critic.beta,
            learning_rate=critic.learning_rate,
            epochs=max(1, round(critic.epochs)),
            batch_size=critic.batch_size,
            clip=critic.max_grad_norm,
            seed=seed,
        )
    save_adapter(adapted, scratch / "adapter", critic.vision.model)
    return TrainingResult(
        scratch / "adapter",
        f"{len(losses)} steps on {len(prompts)} pairs of dialogues, loss {losses[-1]:.4f}",
        {"pairs": len(prompts), "seconds_training": time.monotonic() - started, "loss": losses[-1]},
        adapted,
    )


class Pairs(Sequence[tuple[list["VisionPrompt"], list["VisionPrompt"]]]):
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
        """Return (prompts of the chosen, prompts of the rejected) of one pair."""
        from sweetrl.frontend.vision import vision_prompts

        chosen, rejected = (
            vision_prompts(self.dialogues[place], self.renderer.render, self.privileged) for place in self.places[index]
        )
        return chosen, rejected


def load_vision_critic(
    critic: CriticSettings, model_settings: ModelSettings, browser: BrowserSettings, folder: Path
) -> VisionCritic:
    """Load the trained critic from `folder`; its browser is closed when the process ends."""
    from sweetrl.browser.renderer import Renderer
    from sweetrl.frontend.vision import VisionCritic
    from sweetrl.lm.adapters import load_adapter

    model, processor = _load(critic.vision, model_settings)
    return VisionCritic(load_adapter(model, folder), processor, Renderer(browser).render, critic.privileged)


def _load(vision: VisionSettings, model: ModelSettings) -> tuple[Any, VisionProcessor]:
    from sweetrl.frontend.vision import load_vision

    if not vision.model:
        raise UserError("critic.vision.model: this is empty; name the Qwen2-VL model that looks at the pages.")
    return load_vision(vision.model, model.dtype, model.device, vision.tokens)
