"""Tokenizers' files, tried where they can do no harm: normalizers and patterns in them are programs, too.

Run as a program, this module is the process with limits: it reads the files, and encodes a few texts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.bounded import MEMORY, MIB, apart, limit, read_object
from sweetrl.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BIG_FILES = {"tokenizer.json": 64 * MIB, "vocab.json": 64 * MIB}  # with the most bytes that each may have

CPU_SECONDS = 5  # and one for each MiB of the files
GROWTH = 24  # bytes of memory for each byte of the files, twice what an honest one takes
ROOM, TOKENS_PER_BYTE = 256, 8  # tokens that any text may become, and further ones for each of its bytes
_CHARACTERS = "".join(map(chr, (*range(32, 127), *range(0xA0, 0x250), *range(0x391, 0x450), *range(0x4E00, 0x4E40))))
TEXTS = (
    "hi",
    _CHARACTERS,
    *(f"{_CHARACTERS[at]} " * 64 for at in range(95)),
    "The price of a ticket is 7.50. " * 300,
    "a" * 10_000,
    "ab" * 5_000,
    " " * 10_000,
    "\n\t" * 1_000,
    "7" * 1_000,
    "!?.,;:" * 1_000,
    "def price(hours):\n    return hours * 7\n" * 100,
    "<|end|><|user|></s>" * 50,
)


def try_tokenizer(paths: Sequence[Path]) -> None:
    """Raise UserError where a tokenizer's large files are no JSON objects, or blow texts up, or take too long."""
    if paths:
        _try(tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=256)
def _try(files: tuple[tuple[str, int, int], ...]) -> None:
    try:
        apart(__name__, *(name for name, _, _ in files))
    except UserError as error:
        where = "" if str(error).startswith(tuple(name for name, _, _ in files)) else f"{files[0][0]}: "
        raise UserError(f"{where}{error}; take another folder.") from error


def main() -> None:
    """Read the files that the arguments name; a fault is the exit status."""
    from tokenizers import Tokenizer

    paths = [Path(name) for name in sys.argv[1:]]
    size = sum(path.stat().st_size for path in paths)
    limit(CPU_SECONDS + size // MIB, MEMORY + GROWTH * size)
    try:
        for path in paths:
            read_object(path, BIG_FILES[path.name])
            if path.name == "tokenizer.json":
                _try_texts(Tokenizer.from_file(str(path)))
    except UserError as error:
        sys.exit(str(error))
    except MemoryError:
        sys.exit("the tokenizer needs too much memory for a few texts")
    except Exception as error:  # the library raises this very class
        sys.exit(f"{paths[0]}: this is no tokenizer ({' '.join(str(error).split())[:200]})")


def _try_texts(tokenizer: Tokenizer) -> None:
    """Raise UserError where a text becomes too many tokens, or these too much text."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        most = ROOM + TOKENS_PER_BYTE * len(text.encode())
        if len(ids) > most or len(tokenizer.decode(ids, skip_special_tokens=False)) > 64 * most:
            raise UserError(f"the tokenizer makes {len(ids)} tokens of {text[:12]!r}, a text of {len(text)} characters")


if __name__ == "__main__":
    main()
