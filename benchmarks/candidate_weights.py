"""What does stage 2 imitate? The weights that a ranked row's candidates get, centred by the mean and by the median.

    python benchmarks/candidate_weights.py reproduce/vague/seed-data/81 reproduce/vague/variants/{sweet,other-c}/81

first a seed's data, then rows that were trained on them (`objective: listwise`). For each: the share of the candidates
with a weight whose weight is the greatest possible, so that their advantages do not order them; how far the advantages
of questions lie from their median (the median distance), in units of `policy.advantage_temperature`; and how the sum of
all weights is divided over what the suite's judge says of the candidates.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from sweetrl.backend import Backend
from sweetrl.colbench.domain import QUESTION
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import parse_settings
from sweetrl.methods.sweet import LEAST_WEIGHT
from sweetrl.sweet.preferences import CANDIDATES, HIGHEST, reply_weights
from sweetrl.sweet.rank import centered
from sweetrl.sweet.tables import Table
from sweetrl.types import RankedState, Trajectory


def main() -> None:
    data, *rows = map(Path, sys.argv[1:])
    dialogues = {(each.task.id, each.attempt): each for each in TrajectoryStore(data / "trajectories").read()}
    print("| row | centred | greatest weight | spread of questions | shares of the weight |\n|---|---|---|---|---|")
    for row in rows:
        for reply_types in ("mean_centered", "median_centered"):
            print(f"| {row.parent.name} | {reply_types} | {' | '.join(weights(row, reply_types, dialogues))} |")


def weights(row: Path, reply_types: str, dialogues: dict[tuple[str, int], Trajectory]) -> tuple[str, str, str]:
    """Return the share with the greatest weight, the questions' spread, and the shares of the judge's verdicts."""
    policy = parse_settings(json.loads((row / "parameters.json").read_text(encoding="utf-8"))["parameters"]).policy
    how = policy.count_power, policy.advantage_temperature or None, LEAST_WEIGHT, policy.states == "equal"
    domain, given, by_verdict = Backend(), list[float](), defaultdict[str, float](float)
    questions = list[float]()
    for state in centered(Table(row / "preferences" / CANDIDATES, RankedState), domain, reply_types):
        dialogue = dialogues[state.task_id, state.attempt]
        for reply, weight in zip(state.candidates, reply_weights(state.candidates, *how), strict=True):
            judgment = domain.judge(dialogue.task, dialogue.messages[: 2 * state.turn + 1], reply.text)
            by_verdict[judgment.verdict if judgment else "unjudged"] += weight
            given += [weight] if weight else []
            questions += [reply.advantage] * reply.count if domain.reply_type(reply.text) == QUESTION else []
    greatest = sum(weight >= 0.999 * HIGHEST for weight in given) / len(given)
    most = sorted(by_verdict.items(), key=lambda item: -item[1])[:4]
    shares = [f"{verdict} {100 * weight / sum(given):.0f} %" for verdict, weight in most]
    middle = median(questions)
    spread = median(abs(value - middle) for value in questions) / policy.advantage_temperature
    return f"{100 * greatest:.0f} % of {len(given)}", f"{spread:.1f}", ", ".join(shares)


if __name__ == "__main__":
    main()
