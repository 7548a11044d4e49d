"""What the examples come to: an own domain, an own method and an own reward, each trained and evaluated in small.

    python benchmarks/examples.py [--control] [--only forms] [--seed 7] [--folder DIR]

`forms` is examples/forms.py with SWEET-RL and a base agent pre-trained on its demonstrations, `best_attempt` is
examples/best_attempt.py on the same dialogues, `brief` is examples/brief.py on Backend Programming with models/base.
Each has a folder with the project's params.yaml in smaller numbers, in which the bare stages run one after another,
with one thread, without DVC, flows and MLflow. The lines are those of the example's file, with its comments.

--control trains each once more with `chance` for a reward, a number that only the dialogue's words decide: everything
else stays, but successful dialogues are not learnt beside the preferences (`policy.sft_replay: 0`), because success
is the domain's and no chance. It also evaluates each example at temperature 0, base and trained alike: what greedy
decoding gains needs no training. Then the trained agents are compared with these controls on the same tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sweetrl import Task, Trajectory

REPOSITORY = Path(__file__).resolve().parents[1]
FORMS: dict[str, Any] = {
    "suite": "examples.forms:Forms",
    "sources.suite": "examples/forms.py",
    "tasks.train": 200,
    "tasks.validation": 20,
    "tasks.test": 300,
    "agent.max_turns": 8,
    "agent.max_new_tokens": 48,
    "pretrain.steps": 300,
    "pretrain.vocabulary": 384,
    "pretrain.width": 64,
    "pretrain.layers": 2,
    "collect.tasks": 100,
    "collect.attempts": 6,
    "validate.minimum_pairs": 1,
    "validate.duplicate_share": 0.8,  # a few short questions: attempts often use the same words
    "rank.share": 0.3,
    "evaluate.tasks": 300,
}
BEST: dict[str, Any] = {
    "method": "examples.best_attempt:BestAttempt",
    "method_options": {"learning_rate": 1e-3, "epochs": 4, "lead": 0.1},
    "sources.method": "examples/best_attempt.py",
}
BRIEF: dict[str, Any] = {
    "reward.function": "examples.brief:brief",
    "sources.reward": "examples/brief.py",
    "tasks.train": 200,
    "tasks.validation": 20,
    "tasks.test": 200,
    "collect.tasks": 100,
    "validate.minimum_pairs": 1,
    "rank.candidates": 8,
    "rank.margin": 0.0,
    "evaluate.tasks": 200,
}
CHANCE: dict[str, Any] = {
    "reward.function": "benchmarks.examples:chance",
    "sources.reward": "benchmarks/examples.py",
    "policy.sft_replay": 0.0,
}
# The examples are measured at the temperature that dialogues are collected at, and greedily beside it.
COLLECTED: dict[str, Any] = {"evaluate.temperature": None}
GREEDY: dict[str, Any] = {"evaluate.temperature": 0.0}
TASKS, DIALOGUES, BASE, POLICY = "data/tasks", "data/trajectories", "models/base", "models/policy"
LEARN = ("collect", "validate", "train_critic", "rank", "train_policy", "evaluate")


@dataclass(frozen=True)
class Part:
    """One folder: the stages that run in it, over the project's parameters, and what it takes from another folder."""

    name: str
    changes: Mapping[str, Any]
    stages: tuple[str, ...]
    start: str = ""
    takes: tuple[str, ...] = ()


EXAMPLES = (
    Part("forms", FORMS, ("tasks", "pretrain", *LEARN)),
    Part("best_attempt", FORMS | BEST, ("train_policy", "evaluate"), "forms", (TASKS, DIALOGUES, BASE)),
    Part("brief", BRIEF, ("tasks", *LEARN)),
)
BY_CHANCE = (
    Part("forms-chance", FORMS | CHANCE, LEARN, "forms", (TASKS, BASE)),
    Part(
        "best_attempt-chance",
        FORMS | BEST | CHANCE,
        ("train_policy", "evaluate"),
        "forms-chance",
        (TASKS, DIALOGUES, BASE),
    ),
    Part("brief-chance", BRIEF | CHANCE, LEARN, "brief", (TASKS,)),
)
WITHOUT_CHANCE = tuple(
    Part(f"{part.name}-greedy", {**part.changes, **GREEDY}, ("evaluate",), part.name, (TASKS, BASE, POLICY))
    for part in EXAMPLES
)


def chance(task: Task, dialogue: Trajectory) -> float:
    """A reward that says nothing: equal words have an equal number, from 0 to 1."""
    words = "\n".join(message.content for message in dialogue.messages)
    return random.Random(f"{task.id}\n{words}").random()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[part.name for part in EXAMPLES], help="these examples")
    parser.add_argument("--control", action="store_true", help="also random rewards, and temperature 0")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="work here and leave everything; default: a temporary folder")
    options = parser.parse_args()
    if options.folder is not None and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"--folder: {options.folder} is not empty")
    with tempfile.TemporaryDirectory(prefix="examples-") as scratch:
        measure_all(options.folder or Path(scratch), selected(options.only, options.control), options.seed)


def selected(only: Sequence[str] | None, control: bool) -> list[Part]:
    """The parts to run, each after the one that it takes things from."""
    every = [*EXAMPLES, *(BY_CHANCE + WITHOUT_CHANCE if control else ())]
    names = {part.name for part in every if only is None or part.name.partition("-")[0] in only}
    for part in reversed(every):
        if part.name in names and part.start:
            names.add(part.start)
    return [part for part in every if part.name in names]


def measure_all(folder: Path, parts: Sequence[Part], seed: int) -> None:
    rows: dict[str, Any] = {}
    for part in parts:
        rows[part.name] = run(folder, part, seed)
    print("\n".join(table(rows)), flush=True)
    for part in EXAMPLES:
        for control, which in (("chance", "trained"), ("greedy", "base"), ("greedy", "trained")):
            if f"{part.name}-{control}" in rows:
                gap = difference(against(folder, part.name, f"{part.name}-{control}", which))
                print(f"{part.name} minus {part.name}-{control}/{which}: success {gap}", flush=True)


def run(folder: Path, part: Part, seed: int) -> dict[str, Any]:
    """Make the part's folder, run its stages there, and return what `evaluate` found."""
    place = folder / part.name
    place.mkdir(parents=True)
    for name in ("examples", "benchmarks"):
        (place / name).symlink_to(REPOSITORY / name)
    changes = {"seed": seed, "model.threads": 1, **COLLECTED, **part.changes}
    (place / "params.yaml").write_text(parameters(changes), encoding="utf-8")
    for name in part.takes:
        shutil.copytree(folder / part.start / name, place / name)
    if "suite" not in part.changes:
        shutil.copytree(REPOSITORY / BASE, place / BASE, dirs_exist_ok=True)
    seconds = 0.0
    for stage in part.stages:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", f"sweetrl.stages.{stage}"],
            cwd=place,
            env={**os.environ, "SWEETRL_TRACKING": "off", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        taken = time.monotonic() - started
        seconds += taken
        if done.returncode:
            sys.exit(f"{part.name}: the stage {stage} failed\n{(done.stdout + done.stderr)[-3000:]}")
        print(f"{part.name}: {stage}, {taken:.0f} s: {last_line(done.stdout)}", flush=True)
    evaluation = json.loads((place / "reports/evaluation.json").read_text(encoding="utf-8"))
    source = REPOSITORY / f"examples/{part.name}.py"
    return {
        **{name: measure(evaluation, name) for name in ("success", "reward")},
        "seconds": seconds,
        "lines": len(source.read_text(encoding="utf-8").splitlines()) if source.exists() else None,
    }


def parameters(changes: Mapping[str, Any]) -> str:
    """The project's params.yaml with other values, by dotted name."""
    tree = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    for name, value in changes.items():
        *sections, key = name.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[key] = value
    text: str = yaml.safe_dump(tree, sort_keys=False)
    return text


def measure(evaluation: Mapping[str, Any], name: str) -> dict[str, float]:
    change = evaluation["difference"][name]
    both = {"before": evaluation[f"{name}_before"], "after": evaluation[f"{name}_after"]}
    return both | {key: change[key] for key in ("value", "low", "high", "p_value")}


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def against(folder: Path, name: str, control: str, which: str) -> dict[str, float]:
    """Success of a trained agent minus that of a control's agent, on the same tasks."""
    from sweetrl.evaluation.metrics import AFTER, read_results
    from sweetrl.evaluation.statistics import mcnemar_exact, paired_difference

    def wins(part: str, policy: str) -> dict[str, bool]:
        rows = read_results(folder / part / "reports/results.parquet")
        return {row.task_id: row.success for row in rows if row.policy == policy and row.reward is not None}

    after, before = wins(name, AFTER), wins(control, which)
    shared = sorted(set(after) & set(before))
    pair = [before[task] for task in shared], [after[task] for task in shared]
    change = paired_difference(*pair, resamples=10_000)
    p_value = mcnemar_exact(*pair).p_value
    return {"value": change.value, "low": change.low, "high": change.high, "p_value": p_value}


def difference(gap: Mapping[str, float]) -> str:
    p = "p < 0.001" if gap["p_value"] < 0.001 else f"p = {gap['p_value']:.3f}"
    return f"{100 * gap['value']:+.1f} [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}], {p}".replace("-", "−")


def table(rows: Mapping[str, Any]) -> list[str]:
    """The table of docs/records/results.md."""
    lines = [
        "| | success before | after | difference | reward before | after | difference | seconds | lines |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        success, reward = row["success"], row["reward"]
        rewards = (f"{100 * reward['before']:.1f} %", f"{100 * reward['after']:.1f} %", difference(reward))
        if name.endswith("-chance"):
            rewards = ("", "", "")
        cells = [
            name,
            f"{100 * success['before']:.1f} %",
            f"{100 * success['after']:.1f} %",
            difference(success),
            *rewards,
            f"{row['seconds']:.0f}",
            str(row["lines"] or ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
