"""Every wrong input of tests/wrong_inputs.py, given to the program itself; it prints the answers.

    python benchmarks/wrong_inputs.py [--only WORDS]

Each one runs in a folder of its own. An answer counts if it is one sentence on stderr (bad rows may be listed below),
stdout is empty, the exit status is the one that was expected, and no file has come or changed. The script ends with 1
if one does not count.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))
from wrong_inputs import WRONG, Wrong  # type: ignore[import-not-found]  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only those with these words in them")
    options = parser.parse_args()
    count, faults = 0, 0
    for wrong in WRONG:
        if options.only not in f"{wrong.what} {wrong.words}":
            continue
        answer, fault = answer_to(wrong)
        count += 1
        faults += bool(fault)
        print(f"{fault or 'ok':6} {wrong.what}: {answer}", flush=True)
    print(f"{count - faults} of {count} are answered in one sentence, and leave nothing behind")
    sys.exit(faults > 0)


def answer_to(wrong: Wrong) -> tuple[str, str]:
    """Return the answer, and what is wrong with it ("" for nothing)."""
    with tempfile.TemporaryDirectory(prefix="sweetrl-wrong-") as name:
        folder = Path(name)
        wrong.prepare(folder)
        if "flows/__init__.py" in wrong.files:  # a project: its flows are this one's
            shutil.rmtree(folder / "flows")
            for part in ("flows", "tasks"):
                (folder / part).symlink_to(REPOSITORY / part)
        before = contents(folder)
        sources = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        done = subprocess.run(
            [sys.executable, "-m", "sweetrl.cli", *wrong.words.split()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": sources, "COLUMNS": "500"},
            capture_output=True,
            text=True,
            check=False,
        )
        answer = "\n".join(line for line in done.stderr.splitlines() if not line.endswith(" ..."))  # what is loading
        answer = answer.replace(str(folder.resolve()), "PROJECT").removeprefix("error: ")
        sentences = [line for line in answer.splitlines() if not line.startswith("- ")]
        faults = {
            "status": done.returncode != wrong.code,
            "stdout": done.stdout != "",
            "lines": len(sentences) != 1,
            "words": wrong.said not in answer,
            "files": contents(folder) != before,
        }
        return answer, " ".join(name for name, found in faults.items() if found)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder; the lock of a run is no result."""
    found = [Path(place) / name for place, _, names in os.walk(folder) for name in names if name != "run.lock"]
    return {str(path): path.read_bytes() for path in found}


if __name__ == "__main__":
    main()
