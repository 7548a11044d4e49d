"""Rewards of Frontend Design: `layout` puts edits in order and cannot be talked into anything; `clip` is CLIP."""

from __future__ import annotations

import io
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.browser import Box, Element, Page, Renderer
from sweetrl.config.settings import SimilaritySettings
from sweetrl.errors import UserError
from sweetrl.frontend import layout
from sweetrl.frontend.rewards import ClipReward, LayoutReward, make_reward
from tests.frontend import page_edits

LINK = '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'
HOME = (
    f"<html>{LINK}<body class='bg-gray-100'><nav class='bg-blue-700 text-white p-4 flex justify-between'><b>Bakery</b>"
    "<a>Order now</a></nav><section class='p-8'><h1 class='text-3xl font-bold'>Fresh bread every day</h1><p>We bake "
    "with flour of the valley and the patience of a night.</p></section><section class='p-8 bg-white'>"
    "<h2 class='text-2xl'>Our cakes</h2><img src='https://picsum.photos/300/200'></section>"
    "<footer class='bg-gray-800 text-white p-6'>Open from six</footer></body></html>"
)


def picture(color: tuple[int, int, int] = (255, 255, 255), size: tuple[int, int] = (1366, 682)) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.new("RGB", size, color).save(target, "PNG")
    return target.getvalue()


def page(*elements: Element, png: bytes | None = None) -> Page:
    return Page(png or picture(), 1366, 682, elements, (255, 255, 255), "ok", (), "test")


def text(words: str, x: float = 10, y: float = 10, **other: Any) -> Element:
    values: dict[str, Any] = {
        "tag": "p", "box": Box(x, y, 300, 20), "text": words, "color": (0, 0, 0), "background": None, "font_size": 16.0,
        "bold": False, "align": "left", "role": "", "depth": 0, "parent": -1,
    }  # fmt: skip
    return Element(**{**values, **other})


def score_pages(answer: Page | None, reference: Page) -> float:
    return make_reward(SimilaritySettings()).score([(answer, reference)])[0]


@pytest.fixture(scope="module")
def home(renderer: Renderer) -> Page:
    return renderer.render(HOME)


def test_an_equal_page_is_one_and_a_missing_or_blank_one_nothing(renderer: Renderer, home: Page):
    assert score_pages(home, home) == 1.0
    assert score_pages(None, home) == 0.0
    assert score_pages(renderer.render(page_edits.BLANK), home) == 0.0
    assert score_pages(replace(home, status="timeout"), home) == 0.0


def test_tags_that_nobody_sees_make_no_difference(renderer: Renderer, home: Page):
    for old, new in (
        ("patience", "<span>patience</span>"),
        ("<h2 class='text-2xl'>Our cakes</h2>", "<div class='text-2xl'>Our cakes</div>"),
        ("<footer class='bg-gray-800 text-white p-6'>", "<div class='bg-gray-800 text-white p-6' title='End'>"),
    ):
        other = renderer.render(HOME.replace(old, new))
        assert other.png == home.png and score_pages(other, home) == 1.0


def test_it_is_symmetric(renderer: Renderer, home: Page):
    other = renderer.render(HOME.replace("bg-blue-700", "bg-red-400").replace("p-8", "p-4"))
    assert score_pages(other, home) == pytest.approx(score_pages(home, other), abs=1e-9)


def test_each_part_sees_its_own_difference(renderer: Renderer, home: Page):
    worded = layout.similarity(renderer.render(HOME.replace("Fresh bread every day", "Grand hotels by the sea")), home)
    colored = layout.similarity(renderer.render(HOME.replace("bg-blue-700", "bg-red-600")), home)
    assert worded.text < 0.9 < worded.geometry
    assert colored.pixel < 0.95 and colored.text > 0.9
    assert 0.5 < colored.score < 1.0 and 0.5 < worded.score < 1.0


def test_likeness_of_pages_made_by_hand_is_what_it_was():
    """Texts match whatever their order, what is left over counts, and a box of its ground's colour is none."""
    first, second, box = text("alpha beta gamma", y=10), text("delta epsilon", y=200), text("", tag="div")
    red, white = replace(box, background=(200, 0, 0)), replace(box, background=(255, 255, 255))
    for answer, reference, score in (
        ((first, second), (second, first), 0.986464),
        ((first,), (first, second), 0.768992),
        ((first, red), (first,), 0.92467),
        ((first, white), (first,), 0.986464),
        ((red, replace(red, parent=0)), (red,), 0.986464),
    ):
        other = page(*reference, png=picture((250, 250, 255)))  # pages of one picture are not looked at
        assert layout.similarity(page(*answer), other).score == pytest.approx(score, abs=1e-6)


def test_very_large_pages_are_bounded():
    """Eight times the items: at most 20 times the time (64 times if it were quadratic)."""

    def seconds(count: int) -> float:
        many = page(*(text(f"item {at}", y=at, background=(at % 255, 0, 0)) for at in range(count)))
        other = replace(many, png=picture((255, 255, 254)))  # pages of one picture are not looked at
        began = time.process_time()
        layout.similarity(many, other)
        return time.process_time() - began

    small, large = [], []
    for _ in range(5):  # whoever else is at work here makes some of them longer, and none shorter
        small.append(seconds(3_000))
        large.append(seconds(24_000))
        if min(large) < 20 * min(small):
            return
    raise AssertionError((min(small), min(large)))


def variants(rows: list[dict[str, str]], at: int) -> dict[str, str]:
    """A page, its edits, another of its topic, one of another topic, and a blank one."""

    def topic(row: dict[str, str]) -> str:
        return row["problem_description"].split(":")[0].strip().lower()

    row, choices = rows[at], random.Random(at)
    made = {"same": row["ground_truth"], "blank": page_edits.BLANK}
    for kind in page_edits.KINDS:
        edited = page_edits.edit(row["ground_truth"], kind, at)
        if edited is not None:
            made[kind] = edited
    alike = [each for each in rows if each is not row and topic(each) == topic(row)]
    other = [each for each in rows if topic(each) != topic(row)]
    if alike:
        made["topic"] = choices.choice(alike)["ground_truth"]
    made["random"] = choices.choice(other)["ground_truth"]
    return made


def ordered(scores: dict[str, float]) -> Counter[tuple[str, str, bool]]:
    """Each pair that has an order (same > edits > other pages > blank), and whether the scores have it."""
    ranks = {"same": 3, **dict.fromkeys(page_edits.KINDS, 2), "topic": 1, "random": 1, "blank": 0}
    return Counter(
        (high, low, scores[high] > scores[low]) for high in scores for low in scores if ranks[high] > ranks[low]
    )


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_layout_puts_edits_of_real_pages_in_order(count: int, renderer: Renderer, real_frontend_tasks: Path):
    rows = [json.loads(line) for line in real_frontend_tasks.read_text(encoding="utf-8").splitlines()]
    counts: Counter[tuple[str, str, bool]] = Counter()
    for at in range(100, 100 + count):
        made = variants(rows, at)
        pages = dict(zip(made, renderer.render_many(made.values()), strict=True))
        scores = {name: score_pages(each, pages["same"]) for name, each in pages.items()}
        assert scores["same"] == 1.0 and scores["blank"] == 0.0
        counts += ordered(scores)
    right = sum(number for (_, _, ok), number in counts.items() if ok)
    print(f"{right} of {counts.total()} in order")
    assert right / counts.total() >= 0.9


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random CLIP with its picture processor, as it would be saved."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return save_clip(tmp_path_factory.mktemp("clip"), shape)


def save_clip(folder: Path, vision: dict[str, int]) -> Path:
    import torch
    from transformers import CLIPConfig, CLIPModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    torch.manual_seed(0)
    words = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    pictures = {**vision, "image_size": 224, "patch_size": 32}
    config = CLIPConfig(vision_config=pictures, text_config=words, projection_dim=512)
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    return folder


def direct(folder: Path, *pngs: bytes) -> float:
    """The official way: the complete CLIPModel, one picture at a time."""
    import torch
    from PIL import Image
    from transformers import CLIPModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    model, processor = CLIPModel.from_pretrained(folder).eval(), CLIPImageProcessorPil.from_pretrained(folder)
    vectors = []
    for png in pngs:
        inputs = processor(images=Image.open(io.BytesIO(png)).convert("RGB"), return_tensors="pt")
        with torch.no_grad():
            vectors.append(model.get_image_features(**inputs).pooler_output[0])
    return float(torch.nn.functional.cosine_similarity(*vectors, dim=0))


def striped(seed: int, size: tuple[int, int] = (1366, 900)) -> Page:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", size, "white")
    draw, choices = ImageDraw.Draw(image), random.Random(seed)
    for _ in range(60):
        x, y = choices.randrange(size[0]), choices.randrange(size[1])
        draw.rectangle((x, y, x + 200, y + 90), fill=tuple(choices.randrange(256) for _ in range(3)))
    target = io.BytesIO()
    image.save(target, "PNG")
    return replace(page(), png=target.getvalue(), width=size[0], height=size[1])


def test_clip_is_what_transformers_says(clip_folder: Path):
    reward = ClipReward(str(clip_folder), device="cpu", batch=2)
    first, second, third = striped(1), striped(2), striped(3, (1366, 2400))
    scores = reward.score([(first, second), (third, second), (second, second), (None, second)])
    assert scores[0] == pytest.approx(direct(clip_folder, first.png, second.png), abs=1e-5)
    assert scores[1] == pytest.approx(direct(clip_folder, third.png, second.png), abs=1e-5)
    assert scores[2] == pytest.approx(1.0, abs=1e-5)
    assert scores[3] == pytest.approx(direct(clip_folder, picture((0, 0, 0), (224, 224)), second.png), abs=1e-5)
    assert reward.name == f"clip official {clip_folder.name}"


def test_clip_of_an_equal_page_is_one(clip_folder: Path):
    """Only a reward of 1 is a success, and a vector's product with itself may be less in its last digits."""
    pages = [striped(seed, (300, 240)) for seed in range(16)]
    assert ClipReward(str(clip_folder), device="cpu").score([(each, each) for each in pages]) == [1.0] * 16


def test_clip_of_a_page_is_the_same_beside_whichever_others(clip_folder: Path):
    """A killed run goes on with other pages in memory, and is to end with the same bytes."""
    pages = [striped(seed, (300, 240)).png for seed in range(16)]
    together, alone = (ClipReward(str(clip_folder), device="cpu") for _ in range(2))
    one_by_one = [alone._embed([page])[0] for page in reversed(pages)]
    pairs = zip(together._embed(pages), one_by_one[::-1], strict=True)
    assert all(bool((vector == other).all()) for vector, other in pairs)


def test_squash_sees_what_the_official_crop_does_not(clip_folder: Path):
    reference = striped(1, (1366, 682))
    from PIL import Image

    with Image.open(io.BytesIO(reference.png)) as image:
        changed = image.convert("RGB")
    changed.paste((0, 0, 0), (0, 0, 300, 682))  # left of the centre square
    target = io.BytesIO()
    changed.save(target, "PNG")
    other = replace(reference, png=target.getvalue())
    official = ClipReward(str(clip_folder), "official", "cpu").score([(other, reference)])[0]
    squashed = ClipReward(str(clip_folder), "squash", "cpu").score([(other, reference)])[0]
    assert official == pytest.approx(1.0, abs=1e-5)
    assert squashed < 1 - 1e-4


def test_rewards_are_made_by_name(clip_folder: Path):
    assert isinstance(make_reward(SimilaritySettings()), LayoutReward)
    named = make_reward(SimilaritySettings(kind="clip", model=str(clip_folder), view="squash", device="cpu"))
    assert named.name == f"clip squash {clip_folder.name}"
    with pytest.raises(UserError, match=r"similarity\.model"):
        make_reward(SimilaritySettings(kind="clip", model=str(clip_folder / "none"), device="cpu"))
