"""What is printed while work goes on: whether anything is, and what libraries log, which goes into a file.

The terminal is for the project's own words (the logger "sweetrl"); warnings of libraries are about other code.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import private_file
from sweetrl.paths import SCRATCH

QUIET = "SWEETRL_QUIET"  # in the environment: nothing but results and errors is printed
FOLDER = SCRATCH / "logs"
TALKATIVE = frozenset({"absl", "alembic", "datasets", "great_expectations", "httpx", "mlflow", "transformers"})
# Libraries keep to themselves and phone nobody, however a program was started; values that are set already win.
ALONE = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # what a server adds to each closed run
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
}


def work_alone() -> None:
    """Set what keeps libraries to themselves; before they are imported."""
    for key, value in ALONE.items():
        os.environ.setdefault(key, value)


def any_letters() -> None:
    """Let no letter end a command: what is printed and a terminal lacks is written by its number, what is typed and is
    no text in the terminal's encoding is replaced (U+FFFD)."""
    for stream, how in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(io.UnsupportedOperation):  # something has been read from it
                stream.reconfigure(errors=how)


def quiet() -> bool:
    """Whether nothing but results and errors is to be printed."""
    return os.environ.get(QUIET, "") not in ("", "0")


class LibraryLog(logging.Handler):
    """Writes what libraries say to `path`, a file that is made with the first record."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path, self.used = path, False
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.addFilter(lambda record: record.name.partition(".")[0] != "sweetrl")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; where the file cannot be written, nothing is."""
        # Logging's own way to say so is a traceback for each record: of a server without files left, gigabytes of them.
        with suppress(OSError, UserError):
            with private_file(self.path).open("a", encoding="utf-8") as file:
                file.write(self.format(record) + "\n")
            self.used = True


def show_progress() -> None:
    """Let INFO be read on stderr, but for TALKATIVE libraries, some of which set their loggers' level themselves."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda row: row.levelno >= logging.WARNING or row.name.partition(".")[0] not in TALKATIVE)


@contextmanager
def own_words_only(command: str) -> Iterator[LibraryLog]:
    """While this holds, the project's words go to stderr, and what libraries say to a file, which is named at the end.

    In a project the file is .scratch/logs/<command>.log; elsewhere it lies in the user's own cache, where nobody else
    can put a link in its place.
    """
    folder = FOLDER if Path("params.yaml").exists() else Path.home() / ".cache/sweetrl/logs"
    aside, screen = LibraryLog(folder / f"{command}.log"), logging.StreamHandler(sys.stderr)
    screen.setFormatter(logging.Formatter("%(message)s"))
    root, own = logging.getLogger(), logging.getLogger("sweetrl")
    level = own.level
    own.setLevel(logging.WARNING if quiet() else logging.INFO)
    own.addHandler(screen)
    root.addHandler(aside)
    with warnings.catch_warnings():
        logging.captureWarnings(True)
        try:
            yield aside
        finally:
            logging.captureWarnings(False)
            root.removeHandler(aside)
            own.removeHandler(screen)
            own.setLevel(level)
            if aside.used and not quiet():
                print(f"warnings of libraries are in {aside.path}", file=sys.stderr)
