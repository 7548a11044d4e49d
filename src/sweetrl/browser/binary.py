"""Which browser this machine has, what it is called in results, and with which fonts it draws."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from sweetrl.errors import UserError

# Headless shells first: the same engine without a desktop browser around it. Never wrapper scripts (they add flags).
_PLACES = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "/opt/chromium/chrome",
)
_NAMES = ("chrome-headless-shell", "headless_shell", "chrome", "google-chrome", "google-chrome-stable", "chromium")
_PLAYWRIGHT = (
    "chromium_headless_shell-*/*/headless_shell",
    "chromium_headless_shell-*/*/chrome-headless-shell",
    "chromium-*/chrome-linux*/chrome",
)
_FONTS = ("/usr/share/fonts", "/usr/local/share/fonts", "/etc/fonts")
INSTALL = (
    "install one, as in `apt-get install chromium-headless-shell chromium-sandbox fonts-liberation fonts-dejavu-core`, "
    "or name one in params.yaml: browser.path"
)


def find_browser(path: str = "") -> Path:
    """Return the browser to use: `path` where it is given, else this machine's; a UserError says what to install."""
    if path:
        named = Path(shutil.which(path) or path)
        if not (named.is_file() and os.access(named, os.X_OK)):
            raise UserError(
                f"browser.path: {path} is no program that can be run; leave it empty to search, or {INSTALL}."
            )
        return named.resolve()
    for place in _PLACES:
        if os.access(place, os.X_OK):
            return Path(place)
    for name in _NAMES:
        program = shutil.which(name)
        if program and not _is_script(Path(program)):
            return Path(program).resolve()
    home = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    for pattern in _PLAYWRIGHT:
        shells = sorted(home.glob(pattern))
        if shells:
            return shells[-1]
    raise UserError(f"no browser was found, and pages are rendered by Chromium: {INSTALL}.")


def fonts_fingerprint() -> str:
    """Return 12 hex digits of the names and sizes of the system's fonts and of fontconfig's files."""
    digest = hashlib.sha256()
    for folder in _FONTS:
        for root, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".uuid", ".dir", ".scale", "README")):
                    continue
                path = Path(root) / name
                try:
                    digest.update(f"{path} {path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
                except OSError:
                    continue  # a dangling link
    return digest.hexdigest()[:12]


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"
