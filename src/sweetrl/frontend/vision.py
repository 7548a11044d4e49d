"""The paper's critic of pages: a vision-language model looks at both pages, and a head on the mean of all its tokens
gives the turn's advantage.

A(o_t, a_t, c) = w . (1/N) sum_n h_n + b, with h_n the last layer's states of all N tokens, of words and pictures alike:
the dialogue, the reply, the picture of its page, and (c) the picture of the wanted page. Trained by Eq. 2 on pairs of
whole dialogues. Built on transformers' Qwen2-VL classes.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.frontend.pages import find_page, without_pages
from sweetrl.lm.head import HEAD, base_of
from sweetrl.protocols import Work
from sweetrl.types import Message, Trajectory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sweetrl.browser.page import Page

VisionPrompt = tuple[str | bytes, ...]  # words and pictures (PNG) in their order
PIXELS = 28 * 28  # of a picture that one token stands for


def vision_prompt(
    dialogue: Trajectory, turn: int, reply: str, render: Callable[[str], Page], privileged: bool = True
) -> VisionPrompt:
    """Return what the critic is shown of `reply` in the place of agent turn `turn` (from 0)."""
    speaker = {"user": "Person", "assistant": "Assistant", "system": "System"}
    earlier: Sequence[Message] = dialogue.messages[: 2 * turn + 1]
    said = "\n".join(f"{speaker[one.role]}: {without_pages(one.content)}" for one in earlier)
    parts: list[str | bytes] = [f"{said}\nAssistant: {without_pages(reply)}\nThe assistant's page:\n"]
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

    def batch(self, prompts: Sequence[VisionPrompt], config: Any) -> dict[str, Tensor]:
        """Return the model's inputs: input_ids, attention_mask, mm_token_type_ids [B, N]; pixel_values,
        image_grid_thw of all pictures in order, where there are any.
        """
        import torch
        from PIL import Image

        rows: list[list[int]] = []
        seen: list[Any] = []
        for prompt in prompts:
            row: list[int] = []
            for part in prompt:
                if isinstance(part, str):
                    row += self.tokenizer.encode(part, add_special_tokens=False)
                    continue
                with Image.open(io.BytesIO(part)) as image:
                    size = {"shortest_edge": 4 * PIXELS, "longest_edge": self.tokens * PIXELS}
                    found = self.pictures(images=[image.convert("RGB")], size=size, return_tensors="pt")
                seen.append(found)
                count = int(found["image_grid_thw"].prod()) // self.pictures.merge_size**2
                row += [config.vision_start_token_id, *[config.image_token_id] * count, config.vision_end_token_id]
            rows.append(row)
        longest = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": (ids == config.image_token_id).int() * mask,
        }
        if seen:
            inputs |= {name: torch.cat([one[name] for one in seen]) for name in ("pixel_values", "image_grid_thw")}
        return inputs


def prompt_values(model: nn.Module, processor: VisionProcessor, prompts: Sequence[VisionPrompt]) -> Tensor:
    """The head's value of each prompt, [B]: the mean goes over its own tokens, words and pictures alike."""
    base = base_of(model)
    place = next(base.parameters()).device
    inputs = {name: value.to(place) for name, value in processor.batch(prompts, base.config).items()}
    hidden = base.model(**inputs, use_cache=False).last_hidden_state
    mask = inputs["attention_mask"][..., None].to(hidden.dtype)
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    head = getattr(base, HEAD)
    return head(pooled.to(next(head.parameters()).dtype)).squeeze(-1)


def fit(
    model: nn.Module,
    processor: VisionProcessor,
    pairs: Sequence[tuple[Sequence[VisionPrompt], Sequence[VisionPrompt]]],
    *,
    beta: float,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    clip: float,
    seed: int,
) -> list[float]:
    """Train `model` (adapter and head) by Eq. 2 on (turns of the chosen, turns of the rejected); return the losses.

    The gradient of a pair's loss by each turn's value depends on the values' sums only, so values are computed first
    and each turn then goes backward alone: memory is that of one prompt, however long dialogues are.
    """
    import torch

    learnt = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    model.eval()  # no dropout: the two passes must see the same values
    for epoch in range(epochs):
        order = random.Random(f"{seed}-{epoch}").sample(range(len(pairs)), len(pairs))
        for start in range(0, len(order), batch_size):
            batch = [pairs[place] for place in order[start : start + batch_size]]
            total = 0.0
            for chosen, rejected in batch:
                with torch.no_grad():
                    sums = [
                        sum(float(prompt_values(model, processor, [one])) for one in side)
                        for side in (chosen, rejected)
                    ]
                margin = torch.tensor(beta * (sums[0] - sums[1]))
                total += float(torch.nn.functional.softplus(-margin))
                slope = beta * float(torch.sigmoid(-margin)) / len(batch)
                for side, sign in ((chosen, -1.0), (rejected, 1.0)):
                    for one in side:
                        (sign * slope * prompt_values(model, processor, [one]).sum()).backward()
            torch.nn.utils.clip_grad_norm_(learnt, clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total / len(batch))
    return losses


def vision_prompts(dialogue: Trajectory, render: Callable[[str], Page], privileged: bool = True) -> list[VisionPrompt]:
    """Return what the critic is shown of each agent turn of a dialogue."""
    said = [one.content for one in dialogue.messages if one.role == "assistant"]
    return [vision_prompt(dialogue, turn, reply, render, privileged) for turn, reply in enumerate(said)]


@dataclass(frozen=True)
class VisionCritic:
    """Ranks replies by what their pages look like (sweetrl.protocols.Critic); `model` has an adapter and a head."""

    model: Any
    processor: VisionProcessor
    render: Callable[[str], Page]
    privileged: bool = True

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The head's value of each candidate at each turn."""
        import torch

        found: list[list[list[float]]] = []
        with torch.inference_mode():
            for dialogue, turns in work:
                found.append([])
                for turn, replies in enumerate(turns):
                    prompts = [vision_prompt(dialogue, turn, one.text, self.render, self.privileged) for one in replies]
                    found[-1].append([float(prompt_values(self.model, self.processor, [prompt])) for prompt in prompts])
        return found


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
