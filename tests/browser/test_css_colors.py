"""Colours as the browser writes them, against the colours that it paints."""

from __future__ import annotations

import io
import random

import pytest

from sweetrl.browser import Renderer
from sweetrl.browser.css_colors import parse_color


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rgb(1, 2, 3)", (1, 2, 3, 1)),
        ("rgba(1, 2, 3, 0.5)", (1, 2, 3, 0.5)),
        ("oklch(0.51975 0.17686 142.495)", (0, 128, 0, 1)),  # green, as in the standard's examples
        ("oklab(0.51975 -0.1403 0.10768)", (0, 128, 0, 1)),
        ("lab(46.2775 -47.5621 48.5837)", (0, 128, 0, 1)),
        ("lch(46.2775 67.9892 134.3912)", (0, 128, 0, 1)),
        ("color(srgb 0 0.5 1 / 0.25)", (0, 127.5, 255, 0.25)),
        ("color(display-p3 0.26374 0.59085 0.16434)", (1, 154, 1, 1)),
        ("oklch(none none none)", (0, 0, 0, 1)),
        ("oklab(1 -2e-05 1e-6)", (255, 255, 255, 1)),
        ("color(srgb 9 -9 0)", (255, 0, 0, 1)),
        ("transparent", (0, 0, 0, 0)),
        ("color(xyz 1 1 1)", (0, 0, 0, 0)),
        ("lab(1)", (0, 0, 0, 0)),
        ("lab(" + "9" * 150 + " 1 1)", (0, 0, 0, 0)),
    ],
)
def test_colours_of_the_standard(text: str, expected: tuple[float, float, float, float]) -> None:
    assert parse_color(text) == pytest.approx(expected, abs=1.1)


def test_what_is_read_is_what_is_painted(renderer: Renderer) -> None:
    """Eighty random colours in all notations, in and out of sRGB: the pixel and the element's colour agree."""
    from PIL import Image

    draw = random.Random(7)

    def random_colour() -> str:
        a, b = draw.uniform(-1, 1), draw.uniform(-1, 1)
        unit = " ".join(f"{draw.random():.4f}" for _ in range(3))
        space = draw.choice(["srgb", "display-p3"])
        return draw.choice(
            [
                f"lab({draw.uniform(10, 90):.2f} {60 * a:.2f} {60 * b:.2f})",
                f"lch({draw.uniform(10, 90):.2f} {60 * abs(a):.2f} {360 * abs(b):.1f})",
                f"oklab({draw.uniform(0.2, 0.9):.4f} {0.15 * a:.4f} {0.15 * b:.4f})",
                f"oklch({draw.uniform(0.2, 0.9):.4f} {0.2 * abs(a):.4f} {360 * abs(b):.1f} / 0.8)",
                f"color({space} {unit})",
                f"hsl({360 * abs(a):.0f} 60% 40%)",
                f"color-mix(in oklab, rgb(200 30 40), rgb(10 90 200) {100 * abs(b):.0f}%)",
            ]
        )

    colours = [random_colour() for _ in range(80)]
    boxes = "".join(f"<div style='width:40px;height:8px;background:{colour}'></div>" for colour in colours)
    page = renderer.render(f"<!doctype html><body style='margin:0'>{boxes}")
    with Image.open(io.BytesIO(page.png)) as image:
        picture = image.convert("RGB")
    assert len(page.elements) == 80
    for colour, element in zip(colours, page.elements, strict=True):
        painted = picture.getpixel((20, int(element.box.y) + 4))
        assert element.background == pytest.approx(painted, abs=2), colour
