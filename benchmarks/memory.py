"""Peak memory of each stage's data side against the number of dialogues, above an interpreter with the model loaded.

    python benchmarks/memory.py [--dialogues 900 --dialogues 9900] [--stage rank] [--folder DIR] [--json OUT]

Dialogues are made from the seed, 15 attempts at each task, as long as official ones: 8 to 10 agent turns, questions of
60 to 450 characters, user replies of 40 to 400, a program at the end; with ids and log-probs as if they were sampled.
`--folder` keeps them. The model is one layer of width 16 with the project's tokenizer.

Each stage runs in a process of its own, which first imports what the stage needs, loads the model, notes its resident
memory and resets the kernel's peak (/proc/self/clear_refs). What is printed is the peak at the end less that. What the
model would compute is left out, because it would take days: log-probs of the reference are zeros, candidate replies are
drawn from a list, the critic is `random`, and of the training steps 200, evenly spread, are laid out and not computed.
All else is the stage as it is, with the official 16 candidates at 10 % of the dialogues and all pairs of attempts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import official_data

from sweetrl.colbench.find import find_domain
from sweetrl.types import AgentTurn, Candidate, Message, Task, TestResult, Trajectory

ATTEMPTS, TURNS = 15, (8, 10)
SHARD = 300  # dialogues in a file: whole tasks
PHRASES = 2000  # different sentences of each kind
STEPS = 200  # training steps that are laid out
MIB = 2**20
POLICIES: dict[str, dict[str, Any]] = {
    "train-policy (sweet, listwise)": {"policy": {"objective": "listwise"}},
    "train-policy (sweet, dpo)": {"policy": {"objective": "dpo"}},
    "train-policy (rft)": {"method": "rft"},
    "train-policy (multi-turn-dpo)": {"method": "multi-turn-dpo"},
}
STAGES = ("validate", "train-critic", "rank", *POLICIES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, action="append", help=f"how many, in steps of {SHARD}; any number")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only these")
    parser.add_argument("--folder", type=Path, help="keep the dialogues here (225,000: about 5 GB with all outputs)")
    parser.add_argument("--json", type=Path, help="add the numbers to those in this file")
    parser.add_argument("--plot", type=Path, help="draw all numbers of --json as .svg")
    parser.add_argument("--child", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child)
        return
    sizes = [max(1, round(size / SHARD)) * SHARD for size in options.dialogues or [900, 9900]]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        print("| stage | dialogues | above the model, MiB | model, MiB | seconds |\n|---|---|---|---|---|", flush=True)
        for size in sizes:
            project = make_project(folder, size)
            for stage in options.stage or STAGES:
                row = measure(stage, project, size)
                print(
                    "| {stage} | {dialogues:,} | {above:.0f} | {before:.0f} | {seconds:.0f} |".format(**row), flush=True
                )
                if options.json is not None:
                    keep(options.json, row)
    if options.plot is not None and options.json is not None:
        options.plot.write_text(plot(json.loads(options.json.read_text())), encoding="utf-8")


def measure(stage: str, project: Path, size: int) -> dict[str, Any]:
    """Run a stage on the dialogues of `project` in a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", stage]
    environment = os.environ | {"SWEETRL_TRACKING": "off", "OMP_NUM_THREADS": "1", "TMPDIR": str(project)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{stage}, {size} dialogues: {done.stderr[-2000:]}")
    return {"stage": stage, "dialogues": size, **json.loads(done.stdout.splitlines()[-1])}


def keep(path: Path, row: dict[str, Any]) -> None:
    """Put a row into the file, in the place of an older one for the same stage and size."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    rows = [old for old in rows if (old["stage"], old["dialogues"]) != (row["stage"], row["dialogues"])]
    path.write_text(json.dumps([*rows, row], indent=1) + "\n", encoding="utf-8")


# Dialogues and the project that they lie in


def make_project(folder: Path, size: int) -> Path:
    """Make a project with the first `size` dialogues; those that smaller ones have are shared."""
    project = folder / str(size)
    if not (project / "params.yaml").exists():
        make_model(folder / "base")
        write_dialogues(folder / "shards", size, folder / "base")
        trajectories = project / "data/trajectories"
        trajectories.mkdir(parents=True, exist_ok=True)
        for number in range(size // SHARD):
            os.link(folder / "shards" / f"shard-{number:05d}.parquet", trajectories / f"shard-{number:05d}.parquet")
        shutil.copytree(folder / "base", project / "models/base")
        (project / "params.yaml").write_text("{}\n", encoding="utf-8")
    return project


def make_model(folder: Path) -> None:
    """Make the model: one layer of width 16, room for 32,768 tokens, and the tokenizer of the project's base."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if folder.exists():
        return
    source = Path(__file__).resolve().parents[1] / "models/base"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "recipe.json"))
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = LlamaConfig.from_pretrained(source).to_dict()
    config = LlamaConfig(**base | shape | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32768})
    LlamaForCausalLM(config).save_pretrained(folder)


def write_dialogues(folder: Path, size: int, base: Path) -> None:
    """Write the shards of `size` dialogues that are not there yet."""
    from sweetrl.colbench.store import TrajectoryStore

    store, domain = TrajectoryStore(folder), find_domain("backend")
    present = store.shards()
    tasks = iter(domain.tasks("train", size // ATTEMPTS, 7, 3))
    for number in range(size // SHARD):
        some = [next(tasks) for _ in range(SHARD // ATTEMPTS)]
        if number not in present:
            made = [dialogue(task, attempt, base) for task in some for attempt in range(ATTEMPTS)]
            store.write_shard(number, made)


@cache
def chat_of(base: Path) -> Any:
    """The chat format of the model."""
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.models.load import load_tokenizer

    return ChatFormat(load_tokenizer(str(base)))


@cache
def phrases(base: Path) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Questions, the user's replies, and long comments, each with its ids as a reply."""
    chance, chat = random.Random(7), chat_of(base)
    lengths = {"question": official_data.QUESTION, "reply": official_data.REPLY, "comment": (400, 1200)}
    texts = {
        kind: [official_data.sentence(chance, *span) + "?" for _ in range(PHRASES)] for kind, span in lengths.items()
    }
    return {kind: [(text, chat.reply(text)) for text in some] for kind, some in texts.items()}


def dialogue(task: Task, attempt: int, base: Path) -> Trajectory:
    """One attempt; its reward is a multiple of 0.1, and a third of them succeed."""
    chat = chat_of(base)
    chance, phrases_by_kind = random.Random(f"{task.id} {attempt}"), phrases(base)
    messages, turns = [Message("user", task.problem_description)], []

    def speak(text: str, ids: tuple[int, ...]) -> None:
        turns.append(AgentTurn(len(messages), text, ids, (-0.5,) * len(ids), "stop"))
        messages.append(Message("assistant", text))

    for _ in range(chance.randint(*TURNS) - 1):
        speak(*chance.choice(phrases_by_kind["question"]))
        messages.append(Message("user", chance.choice(phrases_by_kind["reply"])[0]))
    answer = f"\n```python\n{task.ground_truth}\n# {chance.choice(phrases_by_kind['comment'])[0]}\n```"
    last = f"I WANT TO ANSWER:{answer}"
    speak(last, chat.reply(last))
    passed = 10 if chance.random() < 1 / 3 else chance.randint(0, 9)
    passed = passed * len(task.test_cases) // 10
    tests = tuple(
        TestResult(name, place < passed, "ok" if place < passed else "wrong")
        for place, (name, _) in enumerate(task.test_cases)
    )
    domain = find_domain("backend")
    return Trajectory(
        task,
        attempt,
        tuple(messages),
        tuple(turns),
        domain.final_answer(tuple(messages)),
        passed / len(tests),
        tests,
        seed=chance.getrandbits(62),
        policy="base",
        simulator="scripted",
    )


# In the process that is measured


def child(stage: str) -> None:
    """Run `stage` in the working directory; print what it took as a line of JSON."""
    import logging

    from sweetrl.config.settings import ModelSettings, parse_settings
    from sweetrl.lm.adapters import load_base

    logging.disable(logging.WARNING)
    if stage == "validate":
        import great_expectations  # noqa: F401
    import sweetrl.api.learning
    import sweetrl.sweet.trainer  # noqa: F401
    from sweetrl.stages import rank, train_critic, train_policy, validate

    tree: dict[str, Any] = {
        "suite": "backend",
        "model": {"base": "models/base", "device": "cpu", "threads": 1},
        "agent": {"max_turns": 10},
        "collect": {"attempts": ATTEMPTS},
        "critic": {"pairs": "all"},
        "rank": {"share": 0.1, "candidates": 16, "critic": "random" if stage == "rank" else "trained"},
        "policy": {"sft_replay": 0.2},
        "multi_turn_dpo": {"sft_replay": 0.2},
    }
    for key, value in POLICIES.get(stage, {}).items():
        tree[key] = tree.get(key, {}) | value if isinstance(value, dict) else value
    settings = parse_settings(tree)
    held = load_base(ModelSettings(base="models/base", device="cpu"))
    stand_in()
    run = {"validate": validate.validate, "train-critic": train_critic.train_critic, "rank": rank.rank}.get(
        stage, train_policy.train_policy
    )
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    started = time.perf_counter()
    run(settings)
    seconds = time.perf_counter() - started
    del held
    print(json.dumps({"above": memory("VmHWM") - before, "before": before, "seconds": seconds}))


def memory(name: str) -> float:
    """A line of /proc/self/status in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stand_in() -> None:
    """Put something that takes no time in the place of what the model computes."""
    import torch

    from sweetrl.lm import reference
    from sweetrl.sweet import candidates
    from sweetrl.sweet.trainer import PreferenceTrainer

    def computed(model: Any, rows: Any, layout: Any, passes: Any) -> Iterator[tuple[int, Any]]:
        for indices in passes:
            for index in indices:
                yield index, torch.zeros(rows[index].reply_tokens)

    def fit(trainer: Any) -> list[dict[str, float]]:
        steps = trainer.train_dataset
        for number in range(0, len(steps), max(1, len(steps) // STEPS)):
            trainer.make_micro_batches(steps[number])
        return [{"loss": 0.0, "tokens_per_second": 0.0}]

    def sampled(rows: Any, engine: Any, sampling: Any, seed: int) -> list[Any]:
        phrases_by_kind = phrases(Path("models/base"))
        candidates_of = []
        for dialogue, row in rows:
            chance = random.Random(f"{dialogue.task.id} {dialogue.attempt}")
            replies = [*phrases_by_kind["question"], *phrases_by_kind["comment"][: PHRASES // 8]]
            turns = [chance.sample(replies, sampling.n) for _ in row.spans]
            candidates_of.append([tuple(Candidate(ids, text, 1) for text, ids in some) for some in turns])
        return candidates_of

    reference._computed = computed
    PreferenceTrainer.fit = fit  # type: ignore[method-assign]
    candidates.sample_candidates = sampled


# The figure


def plot(rows: list[dict[str, Any]]) -> str:
    """The memory of every stage against the number of dialogues, both axes logarithmic, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "sweetrl"
    from io import StringIO

    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for stage in STAGES:
        points = sorted((row["dialogues"], row["above"]) for row in rows if row["stage"] == stage)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=stage)
    axes.axhline(2048, color="grey", linestyle="--", linewidth=1, label="2 GiB")
    axes.set(xscale="log", yscale="log", xlabel="dialogues", ylabel="peak memory above the model, MiB")
    axes.legend(fontsize=8)
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return text.getvalue()


if __name__ == "__main__":
    main()
