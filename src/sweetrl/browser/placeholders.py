"""Pictures of the web, as far as pages of ColBench use them: placeholder services, answered by a drawing of our own.

Every picture looks the same, whatever its number or topic: nobody could know the reference's. It has the size that the
address asks for, up to a limit, and always costs the browser the same to draw.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

LIMIT = 4000  # CSS pixels a side
_HOSTS = (
    "picsum.photos", "placeholder.com", "placehold.it", "placehold.co", "placehold.jp", "dummyimage.com", "fakeimg.pl",
    "loremflickr.com", "lorempixel.com", "placekitten.com", "placebear.com", "placeimg.com", "unsplash.com",
    "unsplash.it",
)  # fmt: skip
_PAIR = re.compile(r"(\d{1,5})\s*[x×/]\s*(\d{1,5})(?=$|[/.?&@x])")
_SIDE = re.compile(r"/(\d{1,5})(?=$|[/.?&])")
_ID = re.compile(r"/(?:id|seed)/[^/]*")


def size(address: str) -> tuple[int, int] | None:
    """Return the width and height that a placeholder's address asks for; None if it is no such address or malformed."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        query = parse_qs(parts.query)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not any(host == name or host.endswith("." + name) for name in _HOSTS):
        return None
    path = parts.path
    if host.endswith("picsum.photos"):
        path = _ID.sub("", path, count=1)
    if pair := _PAIR.search(path):
        width, height = int(pair.group(1)), int(pair.group(2))
    elif host.endswith("unsplash.com"):
        try:
            width = int(query.get("w", ["1080"])[0])
            height = int(query.get("h", [str(width * 2 // 3)])[0])
        except ValueError:
            return None
    elif side := _SIDE.search(path):
        width = height = int(side.group(1))
    else:
        return None
    return (min(width, LIMIT), min(height, LIMIT)) if width > 0 and height > 0 else None


def picture(width: int, height: int) -> bytes:
    """Return an SVG of this size: a grey field with hills and a sun."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 300 200" '
        'preserveAspectRatio="none"><path fill="#b8c0cc" d="M0 0h300v200H0z"/>'
        '<circle cx="75" cy="55" r="22" fill="#e8ebf0"/>'
        '<path fill="#8d98a8" d="M0 200l95-95 55 55 60-80 90 90v30z"/></svg>'
    ).encode()
