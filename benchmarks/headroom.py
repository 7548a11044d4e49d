"""What there is to learn on the synthetic suites: the untrained agent, scripted ones, and imitation.

    python benchmarks/headroom.py [--tasks 200] [--temperatures 0 0.25 0.5 0.7 1] [--dialogues 1000]
    python benchmarks/headroom.py --profile frontend      # pages, with the settings of reproduce/frontend

On validation tasks, as the stage `tasks` makes them from params.yaml:

base       the shipped base agent at each temperature: the best of them is what training has to beat; and, for 40 of the
           tasks, whether one of `--attempts` at temperature 1 succeeds: whether there is something to find
scripted   agents of few lines. `hints` reads the request, as the agent could; `usual` asks the usual things in the
           usual order, or begins with a plain page; `random` asks for anything, or begins with any look; `oracle`
           (programs) knows what is hidden
imitation  the base agent after likelihood training (the method `rft`) on the successful ones of `--dialogues` dialogues
           of a scripted reader, who asks in the order of a program's steps: how much an actor of this size and
           training can learn from a perfect teacher
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

import sweetrl
from sweetrl import Message, Policy, Task, Trajectory
from sweetrl.backend.suite import agents as programs
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.evaluation.statistics import wilson_interval
from sweetrl.frontend.suite import agents as pages
from sweetrl.reproduce.variants import merged
from sweetrl.stages.tasks import split_tasks

ROOT = Path(__file__).resolve().parents[1]
FOUND = 40  # tasks that are attempted often
Act = Callable[[Task, Sequence[Message]], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="", help="take the settings of reproduce/PROFILE")
    parser.add_argument("--tasks", type=int, default=200, help="validation tasks")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.25, 0.5, 0.7, 1.0])
    parser.add_argument("--attempts", type=int, default=32, help="at each of 40 tasks; 0: none")
    parser.add_argument("--dialogues", type=int, default=1000, help="of the scripted reader, to imitate; 0: none")
    options = parser.parse_args()
    settings = settings_of(options.profile)
    sizes = settings.tasks.model_copy(update={"train": max(1, options.dialogues), "validation": options.tasks})
    domain = load_domain(settings.model_copy(update={"tasks": sizes}))
    tasks = split_tasks(domain)
    base = Policy(settings.model, settings.engine)
    for t in options.temperatures:
        line(f"base, T = {t:g}", at(domain, base, tasks["validation"], t))
    if options.attempts:
        often = at(domain, base, tasks["validation"][:FOUND], 1.0, options.attempts)
        solved = {dialogue.task.id for dialogue in often if dialogue.success}
        row(f"base, one of {options.attempts}", len(solved), len({dialogue.task.id for dialogue in often}))
    for name, agent in scripted(domain).items():
        line(f"scripted: {name}", played(domain, agent, tasks["validation"]))
    if options.dialogues:
        with tempfile.TemporaryDirectory(prefix="headroom-") as folder:
            trained = imitated(domain, base, tasks["train"], Path(folder))
            for t in (0.0, 1.0):
                line(f"imitation, T = {t:g}", at(domain, trained, tasks["validation"], t))


def settings_of(profile: str) -> Settings:
    """The settings of params.yaml, or of a profile of reproduce/; the base's folder wherever this is run."""
    tree = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    if profile:
        profile_tree = yaml.safe_load((ROOT / "reproduce" / profile / "params.yaml").read_text(encoding="utf-8"))
        tree = merged(tree, profile_tree["settings"])
    return parse_settings(merged(tree, {"model.base": str(ROOT / tree["model"]["base"])}))


def line(name: str, dialogues: Sequence[Trajectory]) -> None:
    """Print a row of as many attempts as dialogues."""
    row(name, sum(dialogue.success for dialogue in dialogues), len(dialogues))


def row(name: str, solved: int, tasks: int) -> None:
    """Print a row."""
    share = wilson_interval(solved, tasks)
    print(f"{name:<24}{share.value:6.1%} [{share.low:.1%}, {share.high:.1%}]", flush=True)


def at(
    domain: Domain, policy: Policy, tasks: Sequence[Task], temperature: float, attempts: int = 1
) -> Sequence[Trajectory]:
    """Let a policy attempt each task at a temperature."""
    agent = domain.settings.agent.model_copy(update={"temperature": temperature})
    env = domain.configured(domain.settings.model_copy(update={"agent": agent}))
    return list(sweetrl.collect(env, policy, tasks, attempts=attempts))


def scripted(domain: Domain) -> dict[str, Act]:
    """The scripted agents by name."""
    turns = domain.settings.agent.max_turns
    if domain.spec == "frontend":
        return {start: pages.ScriptedAgent(start, turns).act for start in ("hints", "usual", "random")}
    orders = {order: programs.ScriptedAgent(order, turns).act for order in ("hints", "usual", "random")}
    return {**orders, "oracle": programs.OracleAgent().act}


def reader(domain: Domain, rng: random.Random) -> programs.Demonstrator | pages.Demonstrator:
    """The demonstrator that heeds the request in everything, and has no faults."""
    turns = domain.settings.agent.max_turns
    if domain.spec == "frontend":
        return pages.Demonstrator(turns, rng, quality=1.0, heed=1.0)
    return programs.Demonstrator(turns, rng, heed=1.0, follow=1.0, slip=0.0, stop=0.0, forget=0.0)


def played(domain: Domain, act: Act, tasks: Sequence[Task]) -> list[Trajectory]:
    """Let an agent of code attempt each task once."""
    dialogues = []
    with sweetrl.opened(domain) as world:
        for task in tasks:
            talk = world.begin(task, seed=domain.settings.seed)
            while not talk.done:
                talk.say(act(task, talk.messages))
            dialogues.append(talk.score())
    return dialogues


def imitated(domain: Domain, base: Policy, tasks: Sequence[Task], folder: Path) -> Policy:
    """The base agent after Rejection Fine-Tuning on dialogues of the scripted reader."""
    seed = domain.settings.seed

    def act(task: Task, messages: Sequence[Message]) -> str:
        return reader(domain, random.Random(f"{seed}-{task.id}-{len(messages)}")).act(task, messages)

    dialogues = played(domain, act, tasks)
    successes = sum(dialogue.success for dialogue in dialogues)
    print(f"{successes} of {len(dialogues)} dialogues to imitate are successful", flush=True)
    options = domain.settings.rft.model_dump()
    return sweetrl.train("rft", domain, base, dialogues=dialogues, out=folder / "policy", **options)


if __name__ == "__main__":
    main()
