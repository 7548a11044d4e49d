"""Pictures of the built site at three widths, for docs/site/README.md: docs/images/docs-home-360.png and so on.

    make docs-site && python docs/site/shots.py [--page index.html] [--site build/docs] [--out docs/images]

The site is opened from the disk, in the browser that Frontend Design uses.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from sweetrl.browser.binary import find_browser

SIZES = ((360, 800), (1024, 800), (2560, 1400))


def main() -> None:
    """Write a picture of the page for each width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, default=Path("build/docs"))
    parser.add_argument("--page", default="index.html")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    chosen = parser.parse_args()
    page = (chosen.site / chosen.page).resolve()
    if not page.exists():
        raise SystemExit(f"{page} is not there; run make docs-site first.")
    # Our own pages are shown here: as root Chromium needs --no-sandbox for that.
    options = ["--headless", "--hide-scrollbars", "--virtual-time-budget=5000", "--force-prefers-reduced-motion"]
    options += ["--no-sandbox"] if os.getuid() == 0 else []
    for width, height in SIZES:
        name = "home" if page.stem == "index" else page.stem
        out = (chosen.out / f"docs-{name}-{width}.png").resolve()
        size = [f"--window-size={width},{height}", f"--screenshot={out}"]
        subprocess.run(
            [str(find_browser()), *options, *size, page.as_uri()], check=True, capture_output=True, timeout=120
        )
        print(out)


if __name__ == "__main__":
    main()
