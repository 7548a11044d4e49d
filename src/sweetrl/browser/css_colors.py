"""From computed colours of CSS Color 4, as a browser writes them, to the red, green and blue that it paints.

Chromium writes `rgb()` and `rgba()` for old notations, and new notations as the page has them: `lab()`, `lch()`,
`oklab()`, `oklch()`, `color()` (of which sRGB and Display P3 are read). Matrices and curves are those of the standard
(css-color-4, section 18); what lies outside of sRGB is clipped in each channel, as Chromium paints it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

Rgba = tuple[float, float, float, float]
NOTHING: Rgba = (0.0, 0.0, 0.0, 0.0)

# One colour anywhere in a computed value; none contains another.
COLOR = re.compile(r"\b(?:rgba?|lab|lch|oklab|oklch|color)\([^()]*+\)")
_PART = re.compile(r"none|[-+]?(?:\d++\.?\d*+|\.\d++)(?:e[-+]?\d{1,3})?", re.I)
_FUNCTION = re.compile(r"(\w+)\(\s*([a-z][\w-]*\s)?([^()]*)\)")
_LONGEST = 200  # characters; Chromium writes fewer

Matrix = tuple[tuple[float, float, float], ...]
_XYZ_TO_SRGB: Matrix = (
    (12831 / 3959, -329 / 214, -1974 / 3959),
    (-851781 / 878810, 1648619 / 878810, 36519 / 878810),
    (705 / 12673, -2585 / 12673, 705 / 667),
)
_D50_TO_D65: Matrix = (
    (0.955473421488075, -0.02309845494876471, 0.06325924320057072),
    (-0.0283697093338637, 1.0099953980813041, 0.021041441191917323),
    (0.012314014864481998, -0.020507649298898964, 1.330365926242124),
)
_OKLAB_TO_LMS: Matrix = (
    (1.0, 0.3963377773761749, 0.2158037573099136),
    (1.0, -0.1055613458156586, -0.0638541728258133),
    (1.0, -0.0894841775298119, -1.2914855480194092),
)
_LMS_TO_XYZ: Matrix = (
    (1.2268798758459243, -0.5578149944602171, 0.2813910456659647),
    (-0.0405757452148008, 1.1122868032803170, -0.0717110580655164),
    (-0.0763729366746601, -0.4214933324022432, 1.5869240198367816),
)
_P3_TO_XYZ: Matrix = (
    (608311 / 1250200, 189793 / 714400, 198249 / 1000160),
    (35783 / 156275, 247089 / 357200, 198249 / 2500400),
    (0.0, 32229 / 714400, 5220557 / 5000800),
)


def parse_color(text: str) -> Rgba:
    """Return (red, green, blue) in 0..255 and alpha in 0..1 of a computed colour; all 0 for anything else."""
    match = _FUNCTION.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        return NOTHING
    kind, space, rest = match.group(1), (match.group(2) or "").strip(), match.group(3)
    parts = [0.0 if number.lower() == "none" else float(number) for number in _PART.findall(rest)]
    if len(parts) not in (3, 4):
        return NOTHING
    first, second, third = parts[:3]
    if kind in ("rgb", "rgba"):
        red, green, blue = first, second, third
    else:
        convert = _KINDS.get(f"{kind} {space}".strip())
        if convert is None:
            return NOTHING
        try:
            red, green, blue = (255 * channel for channel in convert(first, second, third))
        except (OverflowError, ValueError):  # numbers that are no colour's
            return NOTHING
    alpha = min(max(parts[3], 0.0), 1.0) if len(parts) == 4 else 1.0
    return (_within(red), _within(green), _within(blue), alpha)


def _within(channel: float) -> float:
    return min(max(channel, 0.0), 255.0) if math.isfinite(channel) else 0.0


Triple = tuple[float, float, float]


def _times(matrix: Matrix, vector: Triple) -> Triple:
    x, y, z = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return (x, y, z)


def _encode(linear: float) -> float:
    """Linear light to sRGB's numbers."""
    size = abs(linear)
    value = 12.92 * size if size <= 0.0031308 else 1.055 * size ** (1 / 2.4) - 0.055
    return math.copysign(value, linear)


def _from_xyz(x: float, y: float, z: float) -> Triple:
    red, green, blue = _times(_XYZ_TO_SRGB, (x, y, z))
    return (_encode(red), _encode(green), _encode(blue))


def _from_lab(light: float, a: float, b: float) -> Triple:
    kappa, epsilon = 24389 / 27, 216 / 24389
    fy = (light + 16) / 116
    fx, fz = a / 500 + fy, fy - b / 200
    x = fx**3 if fx**3 > epsilon else (116 * fx - 16) / kappa
    y = fy**3 if light > kappa * epsilon else light / kappa
    z = fz**3 if fz**3 > epsilon else (116 * fz - 16) / kappa
    white = (x * 0.3457 / 0.3585, y, z * (1.0 - 0.3457 - 0.3585) / 0.3585)
    return _from_xyz(*_times(_D50_TO_D65, white))


def _from_oklab(light: float, a: float, b: float) -> Triple:
    long, middle, short = (response**3 for response in _times(_OKLAB_TO_LMS, (light, a, b)))
    return _from_xyz(*_times(_LMS_TO_XYZ, (long, middle, short)))


def _round(convert: Callable[[float, float, float], Triple]) -> Callable[[float, float, float], Triple]:
    """The same colour space by lightness, chroma and hue (degrees)."""

    def converted(light: float, chroma: float, hue: float) -> Triple:
        angle = math.radians(hue)
        return convert(light, chroma * math.cos(angle), chroma * math.sin(angle))

    return converted


def _from_p3(red: float, green: float, blue: float) -> Triple:
    def linear(value: float) -> float:
        size = abs(value)
        return math.copysign(size / 12.92 if size <= 0.04045 else ((size + 0.055) / 1.055) ** 2.4, value)

    return _from_xyz(*_times(_P3_TO_XYZ, (linear(red), linear(green), linear(blue))))


_KINDS: dict[str, Callable[[float, float, float], Triple]] = {
    "lab": _from_lab,
    "lch": _round(_from_lab),
    "oklab": _from_oklab,
    "oklch": _round(_from_oklab),
    "color srgb": lambda red, green, blue: (red, green, blue),
    "color display-p3": _from_p3,
}
