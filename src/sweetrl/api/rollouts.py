"""Domains and dialogues from Python: collect many, play one, evaluate policies on the same tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sweetrl.api.calls import claim, dialogues_call, evaluated, settings_of
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.files import check_ids
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import load_settings, overlaid, parse_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.console.progress import Meter
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import AFTER, BEFORE, compare, compare_parts, results_of, summarize_policy
from sweetrl.io import digest
from sweetrl.rollout.context import OpenEnvironment, open_environment
from sweetrl.rollout.ledger import Ledger, cost
from sweetrl.rollout.run import rollout_scored
from sweetrl.rollout.scored import THOUGHTS, thought_counter
from sweetrl.rollout.users import usage_of
from sweetrl.seeds import check_seed
from sweetrl.types import Report, Result, Split, Task, Trajectory

Tasks = Sequence[Task] | int | None
SERVER_LOG = Path(".scratch/server.log")


@dataclass(frozen=True)
class Running:
    """Where a rollout reports to, and which part of it this process makes.

    `log` is the file of a server's output, `progress` takes the count of finished dialogues, `ledger` what each has
    cost, `mine` says which shards this process makes, `spent` takes what the engines have spent, also after a failure.
    """

    log: Path = SERVER_LOG
    progress: Callable[[int], None] | None = None
    ledger: Ledger | None = None
    mine: Callable[[int], bool] | None = None
    spent: Callable[[Mapping[str, float]], None] | None = None


@dataclass(frozen=True)
class Evaluation:
    """What policies reached on the same tasks: a row for each dialogue, the dialogues, a summary for each policy.

    `comparison` is the paired comparison of `base` and `trained` (what evaluation.json holds), if both are there, and
    `render` makes the domain's own report, if it has one.
    """

    results: Sequence[Result]
    dialogues: Mapping[str, Sequence[Trajectory]]
    summaries: Mapping[str, Mapping[str, Any]]
    comparison: dict[str, Any] = field(default_factory=dict)
    render: Callable[[Report], str] | None = None


def domain(name: str = "", params: str | Path | None = None, **changes: Any) -> Domain:
    """Return a domain: `backend`, `frontend`, an installed one, or one by its path, `my_package.forms:Forms`.

        env = sweetrl.domain("backend", agent={"max_turns": 6}, reward={"semantics": "official"})
        env = sweetrl.domain(params="params.yaml")          # what a project's pipeline works with

    `changes` are settings by section (docs/parameters.md), over those of `params` or over the defaults.
    """
    tree: dict[str, Any] = {}
    if params is not None:
        load_settings(params)  # says what is wrong in the file
        tree = read_yaml(Path(params)) or {}
    tree = overlaid(tree, changes)
    if name:
        tree["suite"] = name
    return load_domain(parse_settings(tree, "sweetrl.domain"))


def collect(
    env: Domain,
    policy: Policy,
    tasks: Tasks = None,
    *,
    attempts: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    running: Running | None = None,
) -> TrajectoryStore:
    """Let `policy` attempt each task `attempts` times and score the answers; return the dialogues.

    `tasks` are tasks, or how many of the domain's own training tasks; what is not given is as `env.settings` has it
    (section `collect`). The dialogues lie in the folder `out` (by default a temporary one) as Parquet shards: the same
    call goes on where a killed one was. Raises UserError when too many are lost, or when `out` belongs to another call.
    """
    env = _seeded(env, seed)
    how = settings_of(env).collect
    chosen = tasks_of(env, tasks, how.tasks)
    count = how.attempts if attempts is None else attempts
    if count < 1:
        raise UserError(f"collect: {count} attempts at a task are none; take 1 or more.")
    # A task's attempts stand side by side: their equal prompts are computed once.
    pairs = [(task, attempt) for task in chosen for attempt in range(count)]
    store = TrajectoryStore.temporary() if out is None else TrajectoryStore(Path(out))
    if out is not None and running is None:  # with `running` the caller sees to it
        claim(Path(out), dialogues_call(env, [policy], chosen, count, how.batch, how.shard))
    name = policy.name
    with attempted(env, {name: policy}, pairs, {name: store}, {name: running or Running()}, "collect"):
        return store


def play(env: Domain, policy: Policy, task: Task | None = None, *, seed: int = 0) -> Trajectory:
    """Let `policy` attempt one task (by default the first test task) with the domain's user; return it, scored."""
    chosen = tasks_of(env, 1 if task is None else [task], 1, "test")
    with serving([policy]) as (served,), opened(env) as environment:
        return attempt_one(environment, served, chosen[0], seed)


def evaluate(
    env: Domain,
    policies: Policy | Sequence[Policy] | Mapping[str, Policy],
    tasks: Tasks = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
) -> Evaluation:
    """Let each of `policies` attempt every task once, with the same seeds, and compare them.

    `tasks` are tasks, or how many of the domain's own test tasks. Two policies in a list are called `base` and
    `trained`, and compared task by task. They are sampled at `evaluate.temperature`, if the settings say one, and talk
    as the settings' `method` has it (`single-turn`: one turn). `out` is a folder for the dialogues, in which the same
    call goes on; each policy's lie in a folder of its name there.
    """
    if isinstance(policies, Policy):
        policies = [policies]
    if not isinstance(policies, Mapping):
        names = (BEFORE, AFTER) if len(policies) == 2 else [policy.name for policy in policies]
        if len(set(names)) < len(names):
            raise UserError('evaluate: two of the policies have one name; name them, as in {"one": ..., "two": ...}.')
        policies = dict(zip(names, policies, strict=True))
    settings = evaluated(settings_of(_seeded(env, seed)))
    env, how = env.configured(settings), settings.evaluate
    chosen = tasks_of(env, tasks, how.tasks, "test")
    if out is not None:
        call = dialogues_call(env, list(policies.values()), chosen, 1, how.batch, how.batch)
        claim(Path(out), digest(call, list(policies)))
    stores = {
        name: TrajectoryStore.temporary() if out is None else TrajectoryStore(Path(out) / folder_name(name))
        for name in policies
    }
    with attempted(env, policies, [(task, 0) for task in chosen], stores) as environment:
        return summarise(env, policies, stores, environment)


@contextmanager
def attempted(
    env: Domain,
    policies: Mapping[str, Policy],
    pairs: Sequence[tuple[Task, int]],
    stores: Mapping[str, TrajectoryStore],
    running: Mapping[str, Running] | None = None,
    section: Literal["collect", "evaluate"] = "evaluate",
) -> Iterator[OpenEnvironment]:
    """Let each of `policies` make all attempts, (task, number), into its store; yield the environment, still open."""
    chosen: Any = getattr(settings_of(env), section)
    how = {"batch": chosen.batch, "lost_share": chosen.lost_share, "seed": env.settings.seed}
    how["shard"] = getattr(chosen, "shard", chosen.batch)  # an evaluation's is a batch
    by_name = running or dict.fromkeys(policies, Running())
    first = next(iter(by_name.values()))
    share = [pair for number, pair in enumerate(pairs) if first.mine is None or first.mine(number // how["shard"])]
    with (
        opened(env) as world,
        Meter(section, len(policies) * len(share), "dialogues") if first.progress is None else nullcontext() as meter,
    ):
        for model in dict.fromkeys(policy.served for policy in policies.values()):  # a GPU has room for one server
            names = [name for name, policy in policies.items() if policy.served == model]
            with serving([policies[name] for name in names], first.log) as served:
                for name, policy in zip(names, served, strict=True):
                    own = replace(by_name[name], progress=meter or first.progress)
                    attempt(world, policy, pairs, stores[name], own, name=name, **how)
        yield world


def summarise(
    env: Domain,
    policies: Mapping[str, Policy],
    stores: Mapping[str, TrajectoryStore],
    environment: OpenEnvironment,
) -> Evaluation:
    """Describe the dialogues of every policy, and compare `base` and `trained` where there are both."""
    evaluate = settings_of(env).evaluate
    ruler = evaluate.confidence, evaluate.resamples, env.settings.seed
    dialogues = {name: list(store) for name, store in stores.items()}
    results = results_of(dialogues, env, env.settings.agent.max_turns)
    summaries, thoughts = {}, dict[str, dict[str, Any]]()
    for name, spoken in dialogues.items():
        count = thought_counter(policies[name].model)
        tokens, replies = sum(map(count, spoken)), sum(len(each.turns) for each in spoken)
        thoughts[name] = {THOUGHTS: {"value": tokens / replies}} if tokens else {}
        if scored := [result for result in results if result.policy == name and result.reward is not None]:
            summaries[name] = summarize_policy(scored, *ruler) | thoughts[name]
    if not {BEFORE, AFTER} <= dialogues.keys():
        return Evaluation(results, dialogues, summaries)
    more, render = env.examine(dialogues, results, environment.tools, evaluate)
    comparison: dict[str, Any] = compare(results, *ruler)
    for name, summary in comparison["policies"].items():
        summary |= thoughts[name]
    if parts := compare_parts(dialogues[BEFORE], dialogues[AFTER], *ruler):
        comparison["parts"] = parts
    comparison["measure"] = env.measure
    comparison["labels"] = {"success": env.shown_labels.success, "reward": env.shown_labels.reward}
    return Evaluation(results, dialogues, summaries, comparison | more, render)


def attempt(
    environment: OpenEnvironment,
    policy: Policy,
    pairs: Sequence[tuple[Task, int]],
    store: TrajectoryStore,
    running: Running,
    *,
    name: str,
    batch: int,
    **how: Any,
) -> None:
    """Let one policy make all attempts, (task, number), as `how` says (sweetrl.rollout.run.rollout_scored)."""
    agent = policy.open(batch, singly=True)
    context, domain = environment.context(agent), environment.domain
    talking = domain.configured(domain.settings.model_copy(update={"model": policy.model}))  # what it thinks is its own
    try:
        rollout_scored(
            pairs,
            replace(context, domain=talking),
            store,
            policy_name=name,
            batch=batch,
            progress=running.progress,
            ledger=running.ledger,
            mine=running.mine,
            **how,
        )
    finally:
        if running.spent is not None:
            running.spent(cost(agent.engine.usage()) | cost(usage_of(environment.simulator), "simulator/"))
        agent.engine.close()


def attempt_one(environment: OpenEnvironment, policy: Policy, task: Task, seed: int) -> Trajectory:
    """Let one policy attempt one task in an open environment; return the dialogue, scored (or lost)."""
    store = TrajectoryStore.temporary()
    attempt(environment, policy, [(task, 0)], store, Running(), name=policy.name, batch=1, shard=1, seed=seed)
    return store[0]


@contextmanager
def serving(policies: Sequence[Policy], log: Path = SERVER_LOG) -> Iterator[list[Policy]]:
    """Yield `policies` with servers behind those that need one; one serves all that differ only in their adapter."""
    with ExitStack() as stack:
        served: dict[Policy, Policy] = {}
        for model in dict.fromkeys(policy.served for policy in policies):
            ranks = [policy.lora_rank for policy in policies if policy.served == model]
            served[model] = stack.enter_context(model.serving(log, max(ranks)))
        yield [served[policy.served].adapted(policy.adapter) for policy in policies]


@contextmanager
def opened(env: Domain) -> Iterator[OpenEnvironment]:
    """Open what the domain's dialogues need."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # else a missing folder is looked for on the hub, again and again
    with open_environment(env) as environment:
        yield environment


def tasks_of(env: Domain, tasks: Tasks, count: int, split: Split = "train") -> list[Task]:
    """Return tasks that are given, or so many of the domain's own (by default `count`)."""
    settings = env.settings
    if tasks is None or isinstance(tasks, int):
        number = max(0, count if tasks is None else tasks)
        tasks = list(islice(env.tasks(split, number, settings.seed, settings.tasks.difficulty), number))
    own = [env.own(task) for task in tasks]
    if not own:
        raise UserError(f"{env.name}: there are no tasks to attempt; give some.")
    check_ids(own, env.name)
    return own


def folder_name(policy: str) -> str:
    """Return the name of the folder for a policy's dialogues: its own if a folder can have it, else with a digest."""
    plain = re.sub(r"[^\w.+@=,-]+", "-", policy).strip(".-")[:100]
    return policy if plain == policy else f"{plain}-{digest(policy)[:8]}"


def _seeded(env: Domain, seed: int | None) -> Domain:
    """Return the domain with another seed in its settings, if one is given; an impossible one is a UserError."""
    check_seed(seed)
    return env if seed is None else env.configured(env.settings.model_copy(update={"seed": seed}))
