"""The paper's critic of pages (critic.parameterization: vision-head): a vision-language model looks at both pages, and
a head on the mean of all its tokens gives the turn's advantage.

A(o_t, a_t, c) = w . (1/N) sum_n h_n + b, with h_n the last layer's states of all N tokens, of words and pictures alike:
the dialogue, the reply, the picture of its page, and (c) the picture of the reference. Trained by Eq. 2 on pairs of
whole dialogues. Built on transformers' Qwen2-VL classes.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.colbench.markers import visible_reply
from sweetrl.colbench.users import transcript
from sweetrl.errors import UserError
from sweetrl.frontend.pages import find_page, without_pages
from sweetrl.lm.head import HEAD, base_of
from sweetrl.protocols import Work
from sweetrl.sweet.pairs import index_pairs
from sweetrl.thoughts import MARKS, Marks
from sweetrl.types import TrainingResult, Trajectory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sweetrl.browser.page import Page
    from sweetrl.config.settings import BrowserSettings, CriticSettings, ModelSettings
    from sweetrl.types import TrajectoryPair

VisionPrompt = tuple[str | bytes, ...]  # words and pictures (PNG) in their order
Attempt = TypeVar("Attempt")
PIXELS = 28 * 28  # of a picture that one token stands for


def vision_prompt(
    dialogue: Trajectory, turn: int, reply: str, render: Callable[[str], Page], privileged: bool = True
) -> VisionPrompt:
    """Return what the critic is shown of `reply` in the place of agent turn `turn` (from 0)."""
    earlier = transcript(dialogue.messages[: 2 * turn + 1], without_pages)
    parts: list[str | bytes] = [f"{earlier}\nAssistant: {without_pages(reply)}\nThe assistant's page:\n"]
    html = find_page(reply)
    parts.append("none" if html is None else render(html).png)
    if privileged:
        parts += ["\nThe page that the person wants:\n", render(dialogue.task.ground_truth).png]
    return tuple(parts)


@dataclass(frozen=True)
class VisionProcessor:
    """Makes prompts into tensors: a Qwen2-VL tokenizer and picture processor; a picture has at most `tokens`."""

    tokenizer: Any
    pictures: Any
    tokens: int = 256

    def inputs(self, prompt: VisionPrompt, config: Any) -> dict[str, Tensor]:
        """Return the model's inputs: input_ids, attention_mask, mm_token_type_ids [1, N]; pixel_values, image_grid_thw
        of all pictures in order, where there are any.
        """
        import torch
        from PIL import Image

        row: list[int] = []
        pictures: list[Any] = []
        size = {"shortest_edge": 4 * PIXELS, "longest_edge": self.tokens * PIXELS}
        for part in prompt:
            if isinstance(part, str):
                row += self.tokenizer.encode(part, add_special_tokens=False)
                continue
            with Image.open(io.BytesIO(part)) as image:
                picture = self.pictures(images=[image.convert("RGB")], size=size, return_tensors="pt")
            pictures.append(picture)
            count = int(picture["image_grid_thw"].prod()) // self.pictures.merge_size**2
            row += [config.vision_start_token_id, *[config.image_token_id] * count, config.vision_end_token_id]
        ids = torch.tensor([row])
        kinds = (ids == config.image_token_id).int()
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
        if pictures:
            names = ("pixel_values", "image_grid_thw")
            inputs |= {name: torch.cat([picture[name] for picture in pictures]) for name in names}
        return inputs


def prompt_value(model: nn.Module, processor: VisionProcessor, prompt: VisionPrompt) -> Tensor:
    """The head's value of a prompt, a scalar: the mean goes over all tokens, words and pictures alike."""
    base = base_of(model)
    place = next(base.parameters()).device
    inputs = {name: value.to(place) for name, value in processor.inputs(prompt, base.config).items()}
    hidden = base.model(**inputs, use_cache=False).last_hidden_state
    head = getattr(base, HEAD)
    return head(hidden.mean(1).to(next(head.parameters()).dtype)).squeeze()


def fit(
    model: nn.Module,
    processor: VisionProcessor,
    pairs: Sequence[tuple[Attempt, Attempt]],
    turns: Callable[[Attempt], Sequence[VisionPrompt]],
    critic: CriticSettings,
    seed: int,
) -> list[float]:
    """Train `model` (adapter and head) by Eq. 2 on pairs of (chosen, rejected); return the losses.

    `turns` gives what the critic is shown of each turn of an attempt, anew each time: all pictures would be too many.

    The gradient of a pair's loss by each turn's value depends on the values' sums only, so values are computed first
    and each turn then goes backward alone: memory is that of one prompt, however long dialogues are.
    """
    import torch

    learnt = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=critic.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    model.eval()  # no dropout: the two passes must see the same values
    for epoch in range(max(1, round(critic.epochs))):
        order = random.Random(f"{seed}-{epoch}").sample(range(len(pairs)), len(pairs))
        for start in range(0, len(order), critic.batch_size):
            batch = order[start : start + critic.batch_size]
            total = 0.0
            for place in batch:
                chosen, rejected = map(turns, pairs[place])
                with torch.no_grad():
                    sums = [
                        sum(float(prompt_value(model, processor, prompt)) for prompt in prompts)
                        for prompts in (chosen, rejected)
                    ]
                margin = torch.tensor(critic.beta * (sums[0] - sums[1]))
                total += float(torch.nn.functional.softplus(-margin))
                slope = critic.beta * float(torch.sigmoid(-margin)) / len(batch)
                for prompts, sign in ((chosen, -1.0), (rejected, 1.0)):
                    for prompt in prompts:
                        (sign * slope * prompt_value(model, processor, prompt)).backward()
            torch.nn.utils.clip_grad_norm_(learnt, critic.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total / len(batch))
    return losses


def vision_prompts(dialogue: Trajectory, render: Callable[[str], Page], privileged: bool = True) -> list[VisionPrompt]:
    """Return what the critic is shown of each agent turn of a dialogue."""
    replies = [message.content for message in dialogue.messages if message.role == "assistant"]
    return [vision_prompt(dialogue, turn, reply, render, privileged) for turn, reply in enumerate(replies)]


@dataclass(frozen=True)
class VisionCritic:
    """Ranks replies by what their pages look like (sweetrl.protocols.Critic); `model` has an adapter and a head."""

    model: Any
    processor: VisionProcessor
    render: Callable[[str], Page]
    privileged: bool = True
    marks: Marks = MARKS

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The head's value of each candidate at each turn."""
        import torch

        def value(dialogue: Trajectory, turn: int, reply: str) -> float:
            visible = visible_reply(reply, self.marks)
            prompt = vision_prompt(dialogue, turn, visible, self.render, self.privileged)
            return float(prompt_value(self.model, self.processor, prompt))

        with torch.inference_mode():
            return [
                [[value(dialogue, turn, reply.text) for reply in replies] for turn, replies in enumerate(turns)]
                for dialogue, turns in work
            ]


def load_vision(folder: str | Path, dtype: str, device: str, tokens: int = 256) -> tuple[Any, VisionProcessor]:
    """Load a frozen Qwen2-VL model and what it reads with; a UserError where there is none."""
    import torch
    from transformers import Qwen2VLForConditionalGeneration

    # The class that does without torchvision.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from sweetrl.models.load import load_class, load_pictures, load_tokenizer, resolve_device

    try:
        model: Any = load_class(Qwen2VLForConditionalGeneration, folder, dtype=getattr(torch, dtype))
        pictures = load_pictures(Qwen2VLImageProcessorPil, folder)
        processor = VisionProcessor(load_tokenizer(folder), pictures, tokens)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder}: no Qwen2-VL model can be loaded from there ({reason}); name another.") from error
    model.requires_grad_(False)
    return model.to(resolve_device(device)), processor


@dataclass(frozen=True)
class VisionHead:
    """The kind of critic `vision-head`, to be trained and loaded."""

    critic: CriticSettings
    model: ModelSettings
    browser: BrowserSettings
    seed: int

    def fit(
        self, dialogues: Iterable[Trajectory], pairs: Sequence[TrajectoryPair], scratch: Path, where: str
    ) -> TrainingResult:
        """Train an adapter and a head on a vision-language model. A killed run begins again."""
        from sweetrl.browser.renderer import Renderer
        from sweetrl.lm.adapters import attach_adapter, save_adapter

        if not pairs:
            raise UserError(f"{where}: there is no pair to learn from; bring more attempts at each task.")
        base, processor = self._base()
        attempts: list[Trajectory] = []
        places = index_pairs(pairs, dialogues, attempts.append, where)
        adapted = attach_adapter(base, self.critic.lora, self.seed, head=True)
        started = time.monotonic()
        with Renderer(self.browser) as renderer:

            def turns(place: int) -> list[VisionPrompt]:
                return vision_prompts(attempts[place], renderer.render, self.critic.privileged)

            losses = fit(adapted, processor, places, turns, self.critic, self.seed)
        save_adapter(adapted, scratch / "adapter", self.critic.vision.model)
        return TrainingResult(
            scratch / "adapter",
            f"{len(losses)} steps on {len(places)} pairs of dialogues, loss {losses[-1]:.4f}",
            {"pairs": len(places), "seconds_training": time.monotonic() - started, "loss": losses[-1]},
            adapted,
        )

    def load(self, folder: Path) -> VisionCritic:
        """Load the trained critic from `folder`; its browser is closed when the process ends."""
        from sweetrl.browser.renderer import Renderer
        from sweetrl.lm.adapters import load_adapter

        base, processor = self._base()
        render = Renderer(self.browser).render
        return VisionCritic(load_adapter(base, folder), processor, render, self.critic.privileged, self.model.marks)

    def _base(self) -> tuple[Any, VisionProcessor]:
        vision = self.critic.vision
        if not vision.model:
            raise UserError("critic.vision.model: this is empty; name the Qwen2-VL model that looks at the pages.")
        return load_vision(vision.model, self.model.dtype, self.model.device, vision.tokens)
