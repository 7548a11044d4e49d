"""Do the main job's results have the same bytes as before? Runs every stage again and compares what dvc.lock records.

    make same-bytes                          # against the dvc.lock of the last commit
    make same-bytes BEFORE=/elsewhere/dvc.lock

Floating-point results differ between processors, so `BEFORE` was recorded on this machine: by `make run`, or by this
script, at the commit to compare with. About ten minutes.
"""

import subprocess
import sys
from pathlib import Path

import yaml


def outs(lock: str) -> dict[str, str]:
    """The hash of each output of each stage."""
    return {out["path"]: out["md5"] for stage in yaml.safe_load(lock)["stages"].values() for out in stage["outs"]}


def main(before: str) -> int:
    """Run the job; print each output that has changed; 1 if there is one."""
    committed = ["git", "show", "HEAD:dvc.lock"]
    text = Path(before).read_text() if before else subprocess.check_output(committed, text=True)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--force", "dvc.yaml"], check=True)
    recorded, made = outs(text), outs(Path("dvc.lock").read_text())
    changed = [path for path in recorded.keys() | made.keys() if recorded.get(path) != made.get(path)]
    for path in sorted(changed):
        print(f"{path}: {recorded.get(path)} -> {made.get(path)}")
    print(f"{len(made)} outputs, {len(changed)} with other bytes than before")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or [""]))
