"""How much of a large base model an unchanged run reads: MiB through read() by fresh processes, for each that asks.

    python benchmarks/unchanged_base.py [--gib 4]

The base is a sparse file in a temporary project with two stages that depend on it: nothing is stored, but whoever
hashes it reads it all. All rows, in this order, are asked three times: when the file has been written (and DVC has run
the stages), unchanged, and after it was touched. A stage asks for its base twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BASE = Path("models/base")
PIPELINE = """
stages:
  one: {cmd: echo 1 > one.txt, deps: [models/base], outs: [one.txt]}
  two: {cmd: echo 2 > two.txt, deps: [models/base, one.txt], outs: [two.txt]}
"""
ROWS = {
    "DVC: which stages have changed": "from tasks.pipeline import changed_stages as f; a = (Path(),)",
    "a stage: what it reads, and its scratch folder": (
        "from sweetrl.file_hashes import dvc_hash\nf = lambda p: (dvc_hash(p), dvc_hash(p)); a = (Path('models/base'),)"
    ),
    "registration after that: the base of the agent": (
        "from sweetrl.stages.registration import config_of as f\n"
        "from sweetrl.config.settings import Settings; a = (Settings(), Path())"
    ),
}
# What /proc says of the whole process, around the call alone: imports do not count.
MEASURE = """
import json, time
from pathlib import Path
{row}
read = lambda: int(Path("/proc/self/io").read_text().split()[1])
before, started = read(), time.perf_counter()
f(*a)
print(json.dumps([(read() - before) / 2**20, time.perf_counter() - started]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the base in GiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sweetrl-base-") as name:
        measured = measure(Path(name), int(options.gib * 2**30))
    print(f"| MiB read of {options.gib:g} GiB (seconds) | new | unchanged | touched |\n|---|---|---|---|")
    for row, values in measured.items():
        print(f"| {row} | " + " | ".join(f"{mib:,.0f} ({seconds:.1f})" for mib, seconds in values) + " |")


def measure(project: Path, size: int) -> dict[str, list[tuple[float, float]]]:
    """Return, for each row, (MiB, seconds) when the base is new, unchanged and touched."""
    weights = project / BASE / "model.safetensors"
    weights.parent.mkdir(parents=True)
    (project / BASE / "config.json").write_text("{}", encoding="utf-8")
    with weights.open("wb") as file:
        file.truncate(size)
    (project / "dvc.yaml").write_text(PIPELINE, encoding="utf-8")
    (project / "params.yaml").touch()
    run(project, "dvc", "init", "--no-scm", "-q")
    run(project, "dvc", "repro", "-q")
    taken: dict[str, list[tuple[float, float]]] = {row: [] for row in ROWS}
    for touched in (True, False, True):
        if touched:
            os.utime(weights)
            time.sleep(2.5)  # a file that was just written is not trusted yet
        for row, code in ROWS.items():
            done = run(project, "-c", MEASURE.format(row=code))
            taken[row].append(tuple(json.loads(done.splitlines()[-1])))
    return taken


def run(project: Path, *arguments: str) -> str:
    """What a fresh Python prints; arguments that are no options are a module's name and its own."""
    command = [sys.executable, *arguments] if arguments[0].startswith("-") else [sys.executable, "-m", *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'src'}", "DVC_NO_ANALYTICS": "1"}
    return subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
