"""A larger base agent for Table 4: the stage `pretrain` with the small one's tokenizer, run in a folder of its own.

small/ (the small base), params.yaml (with the sizes) -> models/base/.
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings
from sweetrl.stages.common import stage_main
from sweetrl.stages.pretrain import pretrain

SMALL = Path("small")


def larger(settings: Settings) -> None:
    """Train it; what the small one has said are the same token ids to it."""
    pretrain(settings, SMALL)


def main() -> None:
    """Run it with the parameters in params.yaml of the folder."""
    stage_main(larger)


if __name__ == "__main__":
    main()
