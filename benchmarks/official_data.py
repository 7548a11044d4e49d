"""What `sweetrl import` takes for official trajectory files: seconds, memory and disk, at several numbers of dialogues.

    python benchmarks/official_data.py [--dialogues 1000 --dialogues 10000] [--scored]

The file is made from a seed: tasks of the synthetic suite, dialogues as long as official ones (up to 10 turns,
questions of one to three sentences, user replies of at most 400 characters, a program at the end), and in each turn the
whole formatted prompt, as official files have it. Half of the answers are the reference. The import runs in a process
of its own; its peak memory is that of its largest process. Without --scored it takes the file's rewards.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sweetrl.colbench.files import neutral_format, write_trajectories
from sweetrl.colbench.find import find_domain
from sweetrl.types import AgentTurn, Message, Task, Trajectory

WORDS = (
    "should the function handle empty input and return zero or raise an error when the list has no valid entries "
    "also what is the expected format of the result and are negative values allowed in this case please clarify"
)
SEED = 7
ATTEMPTS = 10  # at each task
TURNS = (3, 10)  # agent turns of a dialogue, the answer among them
QUESTION, REPLY = (60, 450), (40, 400)  # characters
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, action="append", help="how many; any number of times")
    parser.add_argument("--scored", action="store_true", help="score the answers in the sandbox")
    options = parser.parse_args()
    sizes = options.dialogues or [1000, 10_000]
    if min(sizes) < ATTEMPTS:
        parser.error(f"--dialogues must be at least {ATTEMPTS}")
    print("| dialogues | file, MiB | seconds | peak RSS, MiB | shards, MiB |\n|---|---|---|---|---|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(Path(folder), size, options.scored)
        print("| {dialogues} | {file:.1f} | {seconds:.1f} | {memory:.0f} | {shards:.2f} |".format(**row), flush=True)


def measure(folder: Path, size: int, scored: bool) -> dict[str, float]:
    """Write a file of `size` dialogues, import it in a fresh process, and return what that took."""
    source, out = folder / "trajectories.jsonl", folder / "shards"
    made = write(source, size)
    command = [sys.executable, "-m", "sweetrl.cli", "import", str(source), "--out", str(out)]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, *([] if scored else ["--keep-rewards"])], cwd=folder, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: ended with {process.returncode}")
    return {
        "dialogues": made,
        "file": source.stat().st_size / MIB,
        "seconds": seconds,
        "memory": usage.ru_maxrss / 1024,
        "shards": sum(path.stat().st_size for path in out.iterdir()) / MIB,
    }


def write(path: Path, size: int) -> int:
    """Write an official trajectory file of about `size` dialogues in blocks of equal tasks; return how many."""
    domain = find_domain("backend")
    system = Message("system", domain.system_prompt("full"))
    tasks = list(domain.tasks("train", size // ATTEMPTS, SEED, 3))
    return write_trajectories(path, dialogues(tasks), ATTEMPTS, lambda messages: neutral_format([system, *messages]))


def dialogues(tasks: list[Task]) -> Iterator[Trajectory]:
    """Yield the attempts at each task, every second one with the reference as its answer."""
    chance = random.Random(SEED)
    for task in tasks:
        for attempt in range(ATTEMPTS):
            messages, turns = [Message("user", task.problem_description)], []
            for _ in range(chance.randint(*TURNS) - 1):
                question = sentence(chance, *QUESTION) + "?"
                turns.append(AgentTurn(len(messages), question))
                messages += [Message("assistant", question), Message("user", sentence(chance, *REPLY))]
            right = (attempt + int(task.id[-1], 36)) % 2 == 0
            program = task.ground_truth if right else f"{task.ground_truth.splitlines()[0]}\n    return None"
            answer = f"\n```python\n{program}\n```"
            last = f"I WANT TO ANSWER:{answer}"
            turns.append(AgentTurn(len(messages), last))
            messages.append(Message("assistant", last))
            yield Trajectory(task, attempt, tuple(messages), tuple(turns), answer, 1.0 if right else 0.0)


def sentence(chance: random.Random, least: int, most: int) -> str:
    """Words of so many characters, at most."""
    text = " ".join(chance.choices(WORDS.split(), k=most // 3))
    return text[: chance.randint(least, most - 1)].rpartition(" ")[0]


if __name__ == "__main__":
    main()
