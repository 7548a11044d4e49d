"""Colours as people name them and as eyes tell them apart."""

from __future__ import annotations

import colorsys
from functools import lru_cache

Rgb = tuple[int, int, int]

# Two colours less apart than this (CIE76 in Lab) are not called different, whatever their names are.
APART = 8.0
# Lightness steps of one hue that deserve "lighter" or "darker".
LIGHTER = 8.0


@lru_cache(maxsize=65536)
def color_name(color: Rgb) -> str:
    """Return the plain name of a colour: a hue, with `light` or `dark` in front where it is."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(part / 255 for part in color))
    chroma = (max(color) - min(color)) / 255
    if lightness > 0.985 or (lightness > 0.97 and chroma < 0.02):
        return "white"
    if lightness < 0.06 or (lightness < 0.13 and chroma < 0.1):
        return "black"
    if chroma < (0.03 if lightness > 0.93 else 0.055) or (saturation < 0.3 and chroma < 0.17):
        return "light gray" if lightness > 0.7 else "gray" if lightness > 0.38 else "dark gray"
    name = _hue_name(hue * 360)
    dark = lab(color)[0] < 36
    if name in ("orange", "yellow") and lab(color)[0] < 46:
        return "brown"
    if name == "red" and lightness > 0.8:
        return "light pink"
    if name == "yellow":
        return "light yellow" if lightness > 0.72 else "yellow"
    return f"light {name}" if lightness > 0.75 else f"dark {name}" if dark else name


def _hue_name(degrees: float) -> str:
    for end, name in ((15, "red"), (40, "orange"), (70, "yellow"), (165, "green"), (190, "teal"), (250, "blue")):
        if degrees < end:
            return name
    return "purple" if degrees < 292 else "pink" if degrees < 345 else "red"


@lru_cache(maxsize=65536)
def lab(color: Rgb) -> tuple[float, float, float]:
    """Return the colour in CIE Lab (D65): lightness 0 to 100, and two axes of hue."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in color)]
    red, green, blue = linear
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(color: Rgb, other: Rgb) -> float:
    """Return how far two colours are apart for the eye: about 2 is just visible, 100 is white against black."""
    return float(sum((a - b) ** 2 for a, b in zip(lab(color), lab(other), strict=True)) ** 0.5)


def distinguishing_names(expected: Rgb, actual: Rgb) -> tuple[str, str] | None:
    """Return two different names, as a user would call the two colours; None where the difference is too small.

    Where both have the same name, they differ in lightness, and the first is "a lighter ..." or "a darker ...".
    """
    if distance(expected, actual) < APART:
        return None
    names = color_name(expected), color_name(actual)
    if names[0] != names[1]:
        return names
    gap = lab(expected)[0] - lab(actual)[0]
    if abs(gap) < LIGHTER:
        return None
    return f"a {'lighter' if gap > 0 else 'darker'} {names[0]}", names[1]
