"""A stage cut into shares: several processes, here or elsewhere, make its parts; the stage itself puts them together.

`collect` and `evaluate` have shards, `rank` has blocks: parts whose bytes depend on nothing else. With
SWEETRL_SHARE=2/8 a stage makes every eighth part from number 2 on, leaves them in its scratch folder (which all
processes must see), and writes no result. The stage without that variable finds what is there, makes what is missing,
and writes the same bytes as if it had been alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sweetrl.errors import UserError

VARIABLE = "SWEETRL_SHARE"
SPREAD = ("collect", "rank", "evaluate")


@dataclass(frozen=True)
class Share:
    """Every `count`-th part from `index` (from 0) on; the default is all of them. Call it with a part's number."""

    index: int = 0
    count: int = 1

    def __call__(self, part: int) -> bool:
        """Whether `part` belongs to this share."""
        return part % self.count == self.index

    @property
    def whole(self) -> bool:
        """Whether this is everything."""
        return self.count == 1

    @property
    def suffix(self) -> str:
        """What tells this share's files from those of others; empty for everything."""
        return "" if self.whole else f"-{self.index}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def current_share() -> Share:
    """Return the share that the environment asks for; UserError where it makes no sense."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return Share()
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UserError(f"{VARIABLE}={text}: this is no share; write INDEX/COUNT, as in 0/4 for the first of four.")
    return Share(int(index), int(count))
