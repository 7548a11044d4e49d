"""What another busy program costs a stage: torch's threads with libgomp's own waiting, and with ours.

    python benchmarks/busy_machine.py [--steps 8] [--busy 1]

Prints seconds of a training step and of a decoding step of models/base with two threads, alone and beside `--busy`
programs that only count, and their ratios to libgomp's own waiting alone, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from sweetrl.console.progress import SPINS

BASE = Path(__file__).resolve().parents[1] / "models" / "base"
STEPS = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(2)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
rows, last = torch.randint(0, 400, (8, 256)), torch.randint(0, 400, (16, 1))

def train():
    model(input_ids=rows, labels=rows).loss.backward()
    model.zero_grad()

@torch.no_grad()
def decode():
    model(input_ids=last)

def seconds(step, count):
    for _ in range(2):
        step()
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count

count = int(sys.argv[2])
print(json.dumps([seconds(train, count), seconds(decode, 8 * count)]))
"""


def measure(steps: int, spins: str | None) -> list[float]:
    """Return seconds of a training step and of a decoding step in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    environment |= {"GOMP_SPINCOUNT": spins} if spins else {}
    command = [sys.executable, "-c", STEPS, str(BASE), str(steps)]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure all four, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="training steps of each measurement")
    parser.add_argument("--busy", type=int, default=1, help="programs that only count")
    options = parser.parse_args()
    first: list[float] = []
    print(f"{'':28s} {'training step':>20s} {'decoding step':>20s}")
    for busy in (0, options.busy):
        others = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(busy)
        ]
        try:
            for name, spins in (("libgomp's own", None), (f"GOMP_SPINCOUNT={SPINS}", SPINS)):
                seconds = measure(options.steps, spins)
                first = first or seconds
                cells = [f"{taken:9.4f} s {taken / base:6.2f} x" for taken, base in zip(seconds, first, strict=True)]
                print(f"{name:22s} {'beside ' + str(busy) if busy else 'alone':8s} " + " ".join(cells), flush=True)
        finally:
            for process in others:
                process.kill()


if __name__ == "__main__":
    main()
