"""The critic that looks at pages, with a tiny Qwen2-VL of random weights."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from sweetrl.browser.page import Page
from sweetrl.config.settings import CriticSettings, LoraSettings, PretrainSettings
from sweetrl.errors import UserError
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import demonstrate
from sweetrl.frontend.vision import VisionCritic, fit, load_vision, prompt_value, vision_prompt, vision_prompts
from sweetrl.lm.adapters import attach_adapter, load_adapter, save_adapter
from sweetrl.types import Reply, Trajectory

TASKS = list(generate("train", 2, 3, 2))


def render(html: str) -> Page:
    """A different picture for each page: bars of the bytes' sums."""
    image = Image.new("RGB", (140, 84), "white")
    draw = ImageDraw.Draw(image)
    for place in range(10):
        height = sum(html[place::10].encode()) % 84
        draw.rectangle((14 * place, 0, 14 * place + 13, height), fill=(height * 3, 255 - 2 * height, 17 * place))
    target = io.BytesIO()
    image.save(target, "PNG")
    return Page(target.getvalue(), 140, 84, (), (255, 255, 255), "ok", (), "bars")


def dialogue(quality: float, seed: int = 1) -> Trajectory:
    return Trajectory(
        TASKS[0],
        int(quality * 10),
        demonstrate(TASKS[0], PretrainSettings(poorest=quality, best=quality, informed=0.0), 3, seed).messages,
    )


@pytest.fixture
def adapted(tiny_vision: Path):
    model, processor = load_vision(tiny_vision, "float32", "cpu", tokens=16)
    return attach_adapter(model, LoraSettings(rank=2, alpha=4.0), 3, head=True), processor


def awake(model: torch.nn.Module) -> torch.nn.Module:
    """Give the head and the adapter weights that matter: they start at zero."""
    torch.manual_seed(9)
    for name, value in model.named_parameters():
        if value.requires_grad:
            value.data.normal_(0.0, 0.2 if "score" in name else 0.05)
    return model


def test_what_is_shown_is_the_dialogue_and_both_pages():
    shown = dialogue(1.0)
    prompt = vision_prompt(shown, 1, shown.messages[3].content, render)
    words = "".join(part for part in prompt if isinstance(part, str))
    assert "<html" not in words and "[SEE RENDERED HTML]" in words and shown.messages[2].content in words
    assert [part for part in prompt if isinstance(part, bytes)][1] == render(TASKS[0].ground_truth).png
    uninformed = vision_prompt(shown, 1, "Blue?", render, privileged=False)
    assert not any(isinstance(part, bytes) for part in uninformed)
    assert len(vision_prompts(shown, render)) == sum(message.role == "assistant" for message in shown.messages)


def test_the_value_is_the_heads_of_the_mean_of_all_tokens(adapted):
    model, processor = adapted
    prompts = vision_prompts(dialogue(0.5), render)[:2]
    assert [prompt_value(model, processor, prompt).item() for prompt in prompts] == [0.0, 0.0]  # every turn starts at 0
    awake(model).eval()
    base = model.get_base_model()
    with torch.no_grad():
        inputs = processor.inputs(prompts[0], base.config)
        assert inputs["pixel_values"].shape[0] == int(inputs["image_grid_thw"].prod(1).sum())
        assert int(inputs["mm_token_type_ids"].sum()) == inputs["pixel_values"].shape[0] // 4
        hidden = base(**inputs, output_hidden_states=True).hidden_states[-1][0]
        expected = base.score(hidden.mean(0)).item()
        assert prompt_value(model, processor, prompts[0]).item() == pytest.approx(expected, abs=1e-5)
        other = (*prompts[0][:-1], render("another page").png)
        assert prompt_value(model, processor, other).item() != pytest.approx(expected, abs=1e-6)


def test_a_step_is_that_of_eq_2(adapted):
    model, processor = adapted
    awake(model).eval()
    pair = vision_prompts(dialogue(1.0), render)[:2], vision_prompts(dialogue(0.0), render)[:1]
    first, second = (sum(prompt_value(model, processor, prompt) for prompt in prompts) for prompts in pair)
    margin = 0.5 * (first - second)
    loss = -torch.nn.functional.logsigmoid(margin)
    learnt = [value for value in model.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(loss, learnt, allow_unused=True)
    actual: list[torch.Tensor] = []
    step = torch.optim.AdamW.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.optim.AdamW,
            "step",
            lambda self, *rest: (actual.extend(p.grad.clone() for p in learnt if p.grad is not None), step(self))[1],
        )
        how = CriticSettings(beta=0.5, learning_rate=1e-12, epochs=1, batch_size=1, max_grad_norm=1e9)
        losses = fit(model, processor, [pair], list, how, seed=0)
    assert losses[0] == pytest.approx(loss.item(), abs=1e-5)
    expected = [gradient for gradient in gradients if gradient is not None]
    assert len(actual) == len(expected) > 4
    for gradient, expected_gradient in zip(actual, expected, strict=True):
        assert torch.allclose(gradient, expected_gradient, atol=1e-5)


def test_it_learns_ranks_and_comes_back(adapted, tiny_vision: Path, tmp_path: Path):
    model, processor = adapted
    good, bad = dialogue(1.0), dialogue(0.0)
    how = CriticSettings(beta=1.0, learning_rate=0.02, epochs=4, batch_size=2, max_grad_norm=1.0)
    losses = fit(model, processor, [(good, bad)] * 2, lambda attempt: vision_prompts(attempt, render), how, seed=0)
    assert losses[-1] < losses[0]
    replies = [Reply((1,), good.messages[3].content), Reply((2,), bad.messages[3].content), Reply((3,), "Blue?")]
    work = [(good, [[], replies])]
    ((first, values),) = VisionCritic(model.eval(), processor, render).rate(work)
    assert first == [] and len(set(values)) == 3
    save_adapter(model, tmp_path / "critic", str(tiny_vision))
    again, processor = load_vision(tiny_vision, "float32", "cpu", tokens=16)
    loaded = VisionCritic(load_adapter(again, tmp_path / "critic"), processor, render)
    assert loaded.rate(work)[0][1] == pytest.approx(values, abs=1e-6)


def test_another_model_is_refused_in_one_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="no Qwen2-VL model can be loaded from there"):
        load_vision(tmp_path, "float32", "cpu")
