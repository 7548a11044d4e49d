"""All attacks on the scorer, and honest programs among them; attack.py says what one is."""

from __future__ import annotations

import attacks_forging
import attacks_kernel
import attacks_leaks
import attacks_limits
from attack import Attack

ATTACKS: list[Attack] = [
    *attacks_limits.ATTACKS,
    *attacks_leaks.ATTACKS,
    *attacks_forging.ATTACKS,
    *attacks_kernel.ATTACKS,
]
