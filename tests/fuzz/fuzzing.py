"""`make fuzz`: varies inputs of every target, guided by the code that they reach, and keeps those that break it.

    python tests/fuzz/fuzzing.py --seconds 600            all targets, the time shared among them
    python tests/fuzz/fuzzing.py --seconds 60 frame page  only these

The corpus (inputs that reach something new) grows in `.cache/fuzz`. A find is written to tests/fuzz/finds as
TARGET-HASH: mend its cause and keep the file, the everyday tests run it from then on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = Path(".cache/fuzz")
FINDS = HERE / "finds"
LONGEST = 16_384  # bytes of an input
SLOWEST = 5  # seconds for an input
MEMORY = 2048  # MiB of the process


def main() -> int:
    """Share the time among the targets, each in a process of its own; 1 if an input broke one of them."""
    from fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=600.0, help="processor time for all together")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.seconds)
    if unknown := set(args.names) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; known are {', '.join(TARGETS)}")
    names = args.names or list(TARGETS)
    total = finds = 0
    for name in names:
        began = time.monotonic()
        command = [sys.executable, str(Path(__file__)), "--child", name, "--seconds", str(args.seconds / len(names))]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        runs = re.findall(r"^(?:Done|stat::number_of_executed_units:)\s*(\d+)", done.stderr, re.M)
        count = int(runs[-1]) if runs else 0
        total += count
        status = "nothing found"
        if done.returncode:
            finds += 1
            kept = re.findall(r"Test unit written to (\S+)", done.stderr)
            status = f"FOUND {Path(kept[-1]).name if kept else ''}".strip()
        print(f"{name:14s} {count:10,d} inputs, {time.monotonic() - began:5.0f} s: {status}", flush=True)
        if done.returncode:
            trace = done.stdout + done.stderr
            print(trace[trace.find("Uncaught") :][:3000] if "Uncaught" in trace else trace[-3000:], flush=True)
    print(f"{total:,d} inputs; finds are in {FINDS}" if finds else f"{total:,d} inputs, nothing found")
    return int(bool(finds))


def child(name: str, seconds: float) -> int:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["sweetrl"]):
        from fuzz_targets import TARGETS

        target = TARGETS[name]
        for seed in target.seeds:  # modules that are imported late are instrumented, too
            run_target(name, seed)
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(target.seeds):
        (corpus / f"seed-{index}").write_bytes(seed)
    FINDS.mkdir(exist_ok=True)
    options = [
        f"-max_len={LONGEST}",
        f"-timeout={SLOWEST}",
        f"-rss_limit_mb={MEMORY}",
        f"-artifact_prefix={FINDS}/{name}-",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    count = 0

    def run(data: bytes) -> None:
        nonlocal count
        run_target(name, data)
        count += 1
        if time.process_time() > seconds:  # the fuzzer's own limit is by the clock, and machines are busy
            print(f"Done {count}", file=sys.stderr, flush=True)
            os._exit(0)

    atheris.Setup([sys.argv[0], *options, str(corpus)], run)
    atheris.Fuzz()
    return 0


def run_target(name: str, data: bytes) -> None:
    """Give an input to a target."""
    from fuzz_targets import TARGETS

    target = TARGETS[name]
    with contextlib.suppress(target.allowed):
        target.run(data)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
