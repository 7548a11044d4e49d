"""Best-of-N with the critic of a variant (Figure 3a), run in a folder that links to it.

critics/<variant>/ (of a trained one) and critics/<variant>.yaml, the variant's parameters -> reports/best-of-n.json.
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.config.settings import Settings, load_settings
from sweetrl.stages.best_of_n import pick
from sweetrl.stages.run import stage_main


def best_of_n(settings: Settings) -> None:
    """Let the critic pick replies on the first test tasks."""
    files = sorted(Path("critics").glob("*.yaml"))
    pick(settings, {file.stem: (load_settings(file), file.with_suffix("")) for file in files})


if __name__ == "__main__":
    stage_main(best_of_n)
