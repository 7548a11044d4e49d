"""Readers of files of others, none of which takes memory, time or room without a bound.

A few bytes can stand for gigabytes: a dictionary in a Parquet file, a chat template, a tokenizer's normalizer. What
unfolds so is read in a process of its own, which gets limits before it reads (`apart`, `limit`). Run as a program, this
module is the process for Parquet: a line of JSON for each row.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError

if TYPE_CHECKING:
    import pyarrow.parquet

MIB = 2**20
MEMORY = 256 * MIB  # bytes that a process apart may take beyond what it has when it begins to read
LONGEST_ROW = 6 * MIB  # bytes of a row as JSON, which become 210 MiB at worst (a list of lists)
DEPTH = 64  # levels of JSON in a model's folder, and of a row
FOOTER = 4 * MIB  # bytes of a Parquet file's footer
LISTED = 4096  # columns, row groups and the like in it; twice as many in one another end the process
ROWS = 64 * MIB  # bytes of JSON that any Parquet file may become
TIMES = 1000  # and so many for each of its own
CHECKED = 32  # bytes of memory for each byte of a table that is read through before it is used
LEAST = 64  # bytes that every row counts beside its own
BATCH = 64  # rows in memory at a time
# For starting Python and importing a library on a busy machine, too.
WALL_SECONDS = 120.0


# Files that are read as they are


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; a longer one is a UserError. OSError as `open`."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: this is no regular file; fetch or make it again.")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path}: the file has more than {most // MIB} MiB; no such file needs that, take another.")
    return content


def read_object(path: Path, most: int) -> dict[str, Any]:
    """Read a JSON object of at most `most` bytes and `DEPTH` levels from a model's folder that we do not trust.

    Anything else in the file is a UserError.
    """
    path = Path(path)
    try:
        content = read_bytes(path, most)
    except OSError as error:
        raise UserError(f"{path}: it cannot be read ({error.strerror}); fetch the folder again.") from error
    too_deep = f"{path}: the JSON is nested more than {DEPTH} levels deep; no model needs that, take another folder."
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise UserError(too_deep) from error
    except ValueError as error:  # UnicodeDecodeError and numbers that are too long, too
        raise UserError(f"{path}: this is not JSON ({error}); fetch the folder again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: this is no JSON object; fetch the folder again.")
    if not fits(value, DEPTH):
        raise UserError(too_deep)
    return value


def fits(value: dict[str, Any] | list[Any], levels: int, values: float = math.inf) -> bool:
    """Whether a parsed `value` has at most so many levels of objects and lists, and so many values in them.

    Nothing here recurses, so that no nesting is too deep to be looked at.
    """
    level: list[Any] = [value]
    for _ in range(levels):
        below: list[Any] = []
        for outer in level:
            values -= len(outer)
            inner = outer.values() if isinstance(outer, dict) else outer
            below += (each for each in inner if isinstance(each, dict | list))
        if values < 0 or not below:
            return values >= 0
        level = below
    return False


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; of one with more than `LONGEST_ROW` bytes the first `LONGEST_ROW + 1`."""
    with Path(path).open("rb") as file:
        while line := file.readline(LONGEST_ROW + 1):
            yield line
            while len(line) > LONGEST_ROW and not line.endswith(b"\n"):
                line = file.readline(LONGEST_ROW + 1)


# Processes with limits


def apart(module: str, *arguments: str, request: bytes = b"", patience: float = WALL_SECONDS) -> bytes:
    """Return what the program `module` writes to stdout when it is given `request`, within `patience` seconds.

    One that fails is a UserError: the last line that it wrote to stderr, or that it ran into its limits. The sentence
    begins with "it"; the caller says what that is.
    """
    try:
        done = subprocess.run(
            _command(module, *arguments),
            input=request,
            capture_output=True,
            timeout=patience,
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"it needs more than {patience:g} s") from error
    _raise_fault(done.returncode, done.stderr)
    return done.stdout


def limit(seconds: int, memory: int = MEMORY) -> None:
    """Allow this process `seconds` of processor time and `memory` more bytes from here on, and no files."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (end, end))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _raise_fault(status: int, stderr: bytes) -> None:
    if status < 0:  # killed by its limits
        raise UserError("it needs more processor time or memory than it may take")
    if status:
        words = stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {status}"]
        raise UserError(words[-1][:1000])


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, *arguments]


def _environment() -> dict[str, str]:
    """This package first, wherever it lies: a registered version brings its own along.

    No threads, and no memory that is taken before it is used: the limits count it.
    """
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]))
    alone = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "RAYON_NUM_THREADS"), "1")
    alone |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **alone, "PYTHONPATH": path}


# Parquet


def open_parquet(path: Path, streamed: bool = False) -> pyarrow.parquet.ParquetFile:
    """Open a Parquet file; a UserError where it is missing or incomplete, or its footer is larger than FOOTER.

    `streamed` reads page by page, however large the row groups are.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    bounds: dict[str, Any] = {"thrift_string_size_limit": FOOTER, "thrift_container_size_limit": LISTED}
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8))
            length, magic = file.read(4), file.read(4)
            if magic == b"PAR1" and int.from_bytes(length, "little") > FOOTER:
                raise UserError(f"{path}: the footer has more than {FOOTER // MIB} MiB; write larger row groups.")
        return pq.ParquetFile(path, pre_buffer=not streamed, buffer_size=MIB if streamed else 0, **bounds)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; check the path, or run the stage that writes it.") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: this is no complete Parquet file; make it again.") from error


def parquet_rows(path: Path) -> Iterator[bytes]:
    """Yield the rows of a Parquet file as lines of JSON; a null is a key that is not there.

    The null of `answer` stays, because it says something: there is no answer. Times and bytes are left out: no key of
    any row holds them. A UserError where they cannot be read, or not within the limits.
    """
    room = ROWS + TIMES * Path(path).stat().st_size
    pipe = subprocess.PIPE
    command, environment = _command(__name__, str(path)), _environment()
    with _unfit(path), subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as process:
        try:
            for line in process.stdout or ():
                room -= len(line) + LEAST
                if room < 0:
                    raise UserError(f"its rows have more than {TIMES} times its size")
                yield line
            _, stderr = process.communicate()
        finally:
            process.kill()
        _raise_fault(process.returncode, stderr)


def check_parquet(paths: Iterable[Path]) -> None:
    """Read Parquet files through, so that reading them again needs memory in proportion to their sizes.

    A UserError where they cannot be read so.
    """
    for path in paths:
        open_parquet(path).close()  # says what is no such file
        with _unfit(path):
            apart(__name__, "--check", str(path), patience=WALL_SECONDS + 4 * _seconds(path))


def _seconds(path: Path) -> int:
    """How much processor time reading a file may take: five times what a slow machine needs."""
    return 15 + 10 * path.stat().st_size // MIB


@contextmanager
def _unfit(path: Path) -> Iterator[None]:
    """Say of which file a process apart speaks."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: this cannot be read as Parquet with rows of text and numbers: {error}.") from error


# In the process of its own


def main() -> None:
    """Write the rows of a Parquet file to stdout, or read it through (`--check`)."""
    import pyarrow as pa

    checked, path = sys.argv[1] == "--check", Path(sys.argv[-1])
    pa.set_cpu_count(1)
    open_parquet(path).close()  # what the library loads late
    limit(_seconds(path), MEMORY + CHECKED * path.stat().st_size if checked else MEMORY)
    try:
        if checked:
            _read_through(path)
        else:
            for line in rows_of(path):
                sys.stdout.buffer.write(line + b"\n")
    except MemoryError:
        sys.exit("it needs too much memory")
    except (pa.ArrowException, KeyError, ValueError, OSError, RecursionError) as error:
        sys.exit(" ".join(str(error).split())[:200] or type(error).__name__)


def _read_through(path: Path) -> None:
    with open_parquet(path) as file:
        for group in range(file.metadata.num_row_groups):
            for batch in file.read_row_group(group, use_threads=False).to_batches(BATCH):
                batch.to_pylist()


def rows_of(path: Path) -> Iterator[bytes]:
    """Yield what `parquet_rows` does, in this process; pyarrow's own errors where it cannot be read."""
    with open_parquet(path, streamed=True) as file:
        for batch in file.iter_batches(batch_size=BATCH, use_threads=False):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                kept = {key: _plain(value) for key, value in row.items() if value is not None or key == "answer"}
                line = json.dumps(kept, ensure_ascii=False).encode()
                if len(line) > LONGEST_ROW:
                    raise ValueError(f"a row has more than {LONGEST_ROW // MIB} MiB")
                yield line


def _plain(value: Any, levels: int = DEPTH) -> Any:
    """A value as JSON has it, with at most `levels` of nesting: without nulls, times and bytes inside."""
    if not levels:
        raise ValueError(f"a row is nested more than {DEPTH} levels deep")
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: plain for key, inner in value.items() if (plain := _plain(inner, levels - 1)) is not None}
    if isinstance(value, list):
        return [_plain(inner, levels - 1) for inner in value]
    return value if isinstance(value, str | int | float) else None


if __name__ == "__main__":
    main()
