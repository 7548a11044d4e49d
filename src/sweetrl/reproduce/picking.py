"""Best-of-N with the critics of several cells (Figure 3a), run in a folder that links to them.

critics/<cell>/ and critics/<cell>.yaml, the parameters it was trained with -> reports/best-of-n.json.
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings, load_settings
from sweetrl.stages.best_of_n import pick
from sweetrl.stages.common import stage_main

CRITICS = Path("critics")


def best_of_n(settings: Settings) -> None:
    """Let each of the critics, and the controls, pick replies on the same tasks."""
    files = sorted(CRITICS.glob("*.yaml"))
    pick(settings, {file.stem: (load_settings(file), CRITICS / file.stem) for file in files})


def main() -> None:
    """Run it with the parameters in params.yaml of the folder."""
    stage_main(best_of_n)


if __name__ == "__main__":
    main()
