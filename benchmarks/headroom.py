"""What there is to learn on the synthetic suite of programs: the untrained agent, scripted ones, and imitation.

    python benchmarks/headroom.py [--tasks 200] [--temperatures 0 0.25 0.5 0.7 1] [--dialogues 1000] [--json OUT]

On validation tasks, as the stage `tasks` makes them from params.yaml:

base       the shipped base agent at each temperature: the best of them is what training has to beat
scripted   agents of few lines. `hints` reads the request, as the agent could; `usual` asks the usual things in the
           usual order; `random` asks for anything; `oracle` knows what is hidden
imitation  the base agent after likelihood training (the method `rft`) on the successful ones of `--dialogues` dialogues
           of a scripted reader, who asks in the order of a program's steps: how much an actor of this size and
           training can learn from a perfect teacher
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sweetrl
from sweetrl import Message, Policy, Task, Trajectory
from sweetrl.colbench.domain import Domain
from sweetrl.domains.backend.suite.agents import Demonstrator, OracleAgent, ScriptedAgent, Skill
from sweetrl.evaluation.statistics import wilson_interval
from sweetrl.plugins import load_domain
from sweetrl.settings import load_settings
from sweetrl.stages.tasks import split_tasks

ROOT = Path(__file__).resolve().parents[1]
READER = Skill(heed=1.0, follow=1.0, slip=0.0, stop=0.0, forget=0.0)
Act = Callable[[Task, Sequence[Message]], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="validation tasks")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.7, 1.0])
    parser.add_argument("--dialogues", type=int, default=1000, help="of the scripted reader, to imitate; 0: none")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    settings = load_settings(ROOT / "params.yaml")
    wanted = settings.tasks.model_copy(update={"train": max(1, options.dialogues), "validation": options.tasks})
    domain = load_domain(settings.model_copy(update={"tasks": wanted}))
    tasks = split_tasks(domain)
    base = Policy.of(
        settings.model_copy(
            update={"model": settings.model.model_copy(update={"base": str(ROOT / settings.model.base)})}
        )
    )
    rows = [line(f"base, T = {one:g}", at(domain, base, tasks["validation"], one)) for one in options.temperatures]
    for name, agent in scripted(settings.agent.max_turns).items():
        rows.append(line(f"scripted: {name}", told(domain, agent, tasks["validation"])))
    if options.dialogues:
        with tempfile.TemporaryDirectory(prefix="headroom-") as folder:
            trained = imitated(domain, base, tasks["train"], Path(folder))
            rows += [
                line(f"imitation, T = {one:g}", at(domain, trained, tasks["validation"], one)) for one in (0.0, 1.0)
            ]
    if options.json is not None:
        options.json.write_text(json.dumps({"tasks": options.tasks, "rows": rows}, indent=2) + "\n", encoding="utf-8")


def line(name: str, dialogues: Sequence[Trajectory]) -> dict[str, Any]:
    """Print a row, and return it."""
    solved = sum(one.success for one in dialogues)
    found = wilson_interval(solved, len(dialogues))
    print(f"{name:<24}{found.value:6.1%} [{found.low:.1%}, {found.high:.1%}]", flush=True)
    return {"name": name, "solved": solved, "tasks": len(dialogues), "low": found.low, "high": found.high}


def at(domain: Domain, policy: Policy, tasks: Sequence[Task], temperature: float) -> Sequence[Trajectory]:
    """Let a policy attempt each task once at a temperature."""
    agent = domain.settings.agent.model_copy(update={"temperature": temperature})
    env = domain.configured(domain.settings.model_copy(update={"agent": agent}))
    return list(sweetrl.collect(env, policy, tasks, attempts=1))


def scripted(turns: int) -> dict[str, Act]:
    """The scripted agents by name."""
    orders = {order: ScriptedAgent(order, turns).act for order in ("hints", "usual", "random")}
    return {**orders, "oracle": OracleAgent().act}


def told(domain: Domain, act: Act, tasks: Sequence[Task]) -> list[Trajectory]:
    """Let an agent of code attempt each task once."""
    found = []
    with sweetrl.opened(domain) as world:
        for task in tasks:
            talk = world.begin(task, seed=domain.settings.seed)
            while not talk.done:
                talk.say(act(task, talk.messages))
            found.append(talk.score())
    return found


def imitated(domain: Domain, base: Policy, tasks: Sequence[Task], folder: Path) -> Policy:
    """The base agent after Rejection Fine-Tuning on dialogues of the scripted reader."""
    turns, seed = domain.settings.agent.max_turns, domain.settings.seed

    def act(task: Task, messages: Sequence[Message]) -> str:
        return Demonstrator(READER, turns, random.Random(f"{seed}-{task.id}-{len(messages)}")).act(task, messages)

    dialogues = told(domain, act, tasks)
    print(
        f"{sum(one.success for one in dialogues)} of {len(dialogues)} dialogues to imitate are successful", flush=True
    )
    wanted = domain.settings.rft.model_dump()
    return sweetrl.train("rft", domain, base, dialogues=dialogues, out=folder / "policy", **wanted)


if __name__ == "__main__":
    main()
