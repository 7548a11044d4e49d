"""How alike an answered page is to the reference: rewards of Frontend Design behind one interface.

A reward's name is part of every result: values of different rewards are never compared. `layout` is computed from
pixels and elements; `clip` is the cosine of CLIP's image embeddings, as in the paper.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sweetrl.browser.page import Page
from sweetrl.errors import UserError
from sweetrl.types import Score, Task, Trajectory

if TYPE_CHECKING:
    from PIL.Image import Image

    from sweetrl.browser.renderer import Renderer
    from sweetrl.config.settings import SimilaritySettings

View = Literal["official", "squash"]
Pairs = Sequence[tuple[Page | None, Page]]
OFFICIAL_MODEL = "openai/clip-vit-base-patch32"
# Pages in memory at a time.
CHUNK = 32
MISSING = (224, 224)  # officially, an answer that is missing is a black picture of this size


class FrontendReward(Protocol):
    """Scores answers against references; `name` says all that changes the values."""

    name: str

    def score(self, pairs: Pairs) -> list[float]:
        """Return the similarity of each (answer, reference), in order; None is a missing answer."""
        ...


class LayoutReward:
    """The deterministic reward (sweetrl.frontend.layout): in [0, 1]; 1 for an equal page, 0 for none."""

    name = "layout"

    def score(self, pairs: Pairs) -> list[float]:
        """Return the layout similarity of each pair."""
        from sweetrl.frontend.layout import similarity

        return [0.0 if answer is None else similarity(answer, reference).score for answer, reference in pairs]


class ClipReward:
    """Cosine of CLIP image embeddings, in [-1, 1] (of pages in practice 0.4 to 1).

    `view` says what CLIP sees of a page: `official` scales the shorter side to the model's and cuts out the centre, as
    the official evaluator does (of a long or wide page the rest is lost); `squash` scales the whole page to a square.
    A missing answer is a black picture, as officially. Embeddings of the pages seen last are kept.
    """

    def __init__(self, model: str = OFFICIAL_MODEL, view: View = "official", device: str = "auto", batch: int = 16):
        from sweetrl.models.load import resolve_device

        self.name = f"clip {view} {Path(model).name if Path(model).is_dir() else model}"
        self.view = view
        self._device = resolve_device(device)
        # How numbers are added up depends on how many pictures there are: beside others a page has another reward.
        self.batch = 1 if self._device == "cpu" else batch
        self._model, self._processor = _load(model, self._device)
        self._kept: dict[bytes, Any] = {}

    def score(self, pairs: Pairs) -> list[float]:
        """Return the cosine of each pair."""
        pictures = [None if page is None else page.png for pair in pairs for page in pair]
        vectors = self._embed(pictures)
        # Six digits: an equal page is 1, which a vector's product with itself may miss by a little.
        return [round(float(vectors[at] @ vectors[at + 1]), 6) for at in range(0, len(vectors), 2)]

    def _embed(self, pictures: Sequence[bytes | None]) -> list[Any]:
        """Unit vectors (float32, on the CPU) of pictures, each computed once."""
        import hashlib

        keys = [b"" if png is None else hashlib.sha256(png).digest() for png in pictures]
        missing = {key: png for key, png in zip(keys, pictures, strict=True) if key not in self._kept}
        names = list(missing)
        fresh: dict[bytes, Any] = {}
        for start in range(0, len(names), self.batch):
            part = names[start : start + self.batch]
            fresh.update(zip(part, self.embed([_open(missing[name]) for name in part]), strict=True))
        vectors = [self._kept[key] if key in self._kept else fresh[key] for key in keys]
        self._kept.update(fresh)
        while len(self._kept) > 4096:
            self._kept.pop(next(iter(self._kept)))
        return vectors

    def embed(self, images: Sequence[Image]) -> Any:
        """Return the embeddings of RGB images as unit vectors, one row for each (float32, on the CPU)."""
        import torch

        options: dict[str, Any] = {}
        if self.view == "squash":
            side = self._model.config.image_size
            options = {"size": {"height": side, "width": side}, "do_center_crop": False}
        inputs = self._processor(images=list(images), return_tensors="pt", **options)
        with torch.inference_mode():
            vectors = self._model(pixel_values=inputs["pixel_values"].to(self._device)).image_embeds
        return torch.nn.functional.normalize(vectors.float(), dim=-1).cpu()


def make_reward(settings: SimilaritySettings) -> FrontendReward:
    """Return the reward that the settings (section `similarity`) name; a UserError where its model is not to be had."""
    if settings.kind == "layout":
        return LayoutReward()
    return ClipReward(settings.model, settings.view, settings.device, settings.batch)


class PageScorer:
    """Scores (task, answer) pairs: `reward` of the answer's page against the reference's, both rendered by `renderer`.

    `Score.semantics` is the reward's name. A cosine below 0 counts as 0. No answer (None) is a missing page, which the
    reward decides about. Raises UserError for a task whose reference is no page, or cannot be rendered.
    """

    def __init__(self, reward: FrontendReward, renderer: Renderer) -> None:
        self.reward, self.renderer = reward, renderer

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue's answer, in order."""
        return self.score_answers([(dialogue.task, dialogue.answer) for dialogue in dialogues])

    def score_answers(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        """Return one score for each (task, answer), in order."""
        return [score for start in range(0, len(items), CHUNK) for score in self._chunk(items[start : start + CHUNK])]

    def _chunk(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        htmls = dict.fromkeys(
            html for task, answer in items for html in (task.ground_truth, answer) if html is not None
        )
        pages = dict(zip(htmls, self.renderer.render_many(htmls), strict=True))
        for task, _ in items:
            status = pages[task.ground_truth].status if "<" in task.ground_truth else "no page"
            if status in ("timeout", "bad", "no page"):
                raise UserError(f"task {task.id}: the reference cannot be rendered ({status}); leave the task out.")
        pairs = [(None if answer is None else pages[answer], pages[task.ground_truth]) for task, answer in items]
        values = self.reward.score(pairs)
        name = self.reward.name
        return [
            # A score is worth nothing without the name of what computed it, and how the page came out.
            Score(
                min(1.0, max(0.0, value)),
                semantics=name,
                isolation="not run",
                notes={"reward": name, "page": "none" if page is None else page.status},
            )
            for value, (page, _) in zip(values, pairs, strict=True)
        ]


@dataclass(frozen=True)
class PageTools:
    """What dialogues about pages need: a browser, and what compares two pages."""

    renderer: Renderer
    reward: FrontendReward


def _open(png: bytes | None) -> Image:
    from PIL import Image

    if png is None:
        return Image.new("RGB", MISSING)
    with Image.open(io.BytesIO(png)) as image:
        return image.convert("RGB")


def _load(model: str, device: str) -> tuple[Any, Any]:
    """The vision half of CLIP with its projection (88M of 151M parameters), and how its pictures are made ready."""
    from transformers import CLIPVisionModelWithProjection
    from transformers import logging as chatter

    # The class that does without torchvision.
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from sweetrl.models.load import load_class, load_pictures

    loud = chatter.get_verbosity()
    chatter.set_verbosity_error()  # else it lists every weight of the text half, which is left out on purpose
    try:
        loaded = load_class(CLIPVisionModelWithProjection, model)
        processor = load_pictures(CLIPImageProcessorPil, model)
    except (OSError, ValueError) as error:
        raise UserError(
            f"similarity.model: {model} cannot be loaded as a CLIP model; name a folder that holds one, let the hub be "
            "asked (HF_HUB_OFFLINE=0), or set similarity.kind to layout."
        ) from error
    finally:
        chatter.set_verbosity(loud)
    vision: Any = loaded
    return vision.to(device).eval(), processor
