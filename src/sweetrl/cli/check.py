"""`sweetrl check`: would a run of this project come to anything? A sample is played before the hours are spent.

What is wrong for certain fails. What a sample can only suggest (a base that never succeeds, equal rewards, no pairs) is
a warning with its n: a batch is many times as large.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sweetrl.api import rollouts
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.leaks import leaked_fragment, squeeze
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.console.printing import in_words, note, print_table
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import wilson_interval
from sweetrl.io import read_json
from sweetrl.methods.base import Method, find_method
from sweetrl.plugins import is_plugin
from sweetrl.rollout.context import OpenEnvironment
from sweetrl.rollout.run import batch_of
from sweetrl.rollout.scored import with_score
from sweetrl.stages.parameters import own_sources, with_values
from sweetrl.stages.tasks import split_tasks
from sweetrl.sweet.pairs import DataCounts
from sweetrl.types import Message, Task, Trajectory
from sweetrl.validation.suites import trajectories_table
from sweetrl.validation.tables import TrajectoryTable

Status = Literal["ok", "warn", "fail"]

TASKS = 200  # of a split that are looked at, whose references are run; of tasks that are generated a quarter
DIALOGUES = 64  # that the base plays, an eighth of them first...
PATIENCE = 15.0  # ... which tell by their seconds whether there is time for the rest
FEW = 0.05  # so large a share of bad tasks may be an oversight; a larger one is a mistake
COPIED = 0.9  # a small base that copies fewer of the user's values than this is not ready
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, how it stands, what was seen, and what to do unless all is well."""

    name: str
    status: Status
    seen: str
    advice: str = ""


def report(checks: Sequence[Check], title: str) -> None:
    """Print the findings for people."""
    rows = [(check.status.replace("fail", "FAIL"), check.name, check.seen, check.advice) for check in checks]
    print_table(title, ("", "what", "seen", "what to do"), rows)
    count = Counter(check.status for check in checks)
    print(f"{count['ok']} ok, {count['warn']} to know about, {count['fail']} to fix")


def rehearse(settings: Settings) -> Iterator[Check]:
    """Look at method, tasks, references and c, let the base play a few dialogues, and look at what they offer."""
    step = "method"
    try:
        method, domain = find_method(settings.method), load_domain(settings)
        code = ", ".join(sorted(map(str, own_sources(settings).values())))
        yield Check(step, "ok", f"{method.name}, and its settings fit" + (f"; your own code in {code}" if code else ""))
        step = "tasks"
        sizes = settings.tasks
        generated = sizes.source == "synthetic" and not is_plugin("domains", settings.suite)  # alike: a few say enough
        few = {f"tasks.{split}": min(getattr(sizes, split), TASKS // 4) for split in ("train", "validation", "test")}
        splits = split_tasks(load_domain(with_values(settings, few)) if generated else domain)
        if not generated:  # files may hold fewer than are asked for
            there = {"collect": len(splits["train"]), "evaluate": len(splits["test"])}
            fitting = {f"{name}.tasks": min(getattr(settings, name).tasks, count) for name, count in there.items()}
            settings = with_values(settings, fitting)
        train = _spread(batch_of(splits["train"], settings.collect.first, settings.collect.tasks), TASKS)
        looked_at = [*train, *_spread(splits["test"], TASKS)]
        seen = ", ".join(f"{len(tasks):,} {split}" for split, tasks in splits.items())
        yield Check(step, "ok", f"the first {seen}" if generated else seen)
        yield _secrets(domain, looked_at, "critic" in method.needs and settings.critic.privileged)
        step = "references"
        with rollouts.opened(domain) as world:
            if any(task.ground_truth for task in looked_at):
                yield _references(world, [task for task in looked_at if task.ground_truth])
            step = "dialogues"
            if settings.collect.source == "files" or settings.simulator.kind == "human":
                yield Check(step, "ok", "none are sampled; `validate` looks at all before anything is trained")
                return
            if settings.simulator.kind == "scripted" and not all(map(domain.knows, looked_at)):
                raise UserError("the scripted user knows nothing about these tasks; take another `simulator.kind`.")
            note("the base plays a few dialogues ...")
            sample = _spread(train, max(4, DIALOGUES // settings.collect.attempts))
            yield from _played(world, settings, method, sample)
    except UserError as error:
        yield Check(step, "fail", str(error), "put this right first")


def _spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """At most `count` of `tasks`, evenly: files may be sorted."""
    return list(tasks[:: max(1, len(tasks) // count)][:count])


def _secrets(domain: Domain, tasks: Sequence[Task], needed: bool) -> Check:
    """Whether there is training-time information c, and none of it in the agent's first prompt."""
    system = squeeze(domain.system_prompt(domain.settings.agent.prompt))
    faults: list[str] = []
    for task in tasks:
        fragments, request = domain.hidden_fragments(task), squeeze(task.problem_description)
        for name, text, public in (("request", request, ()), ("system prompt", system, (request,))):
            if leak := leaked_fragment(fragments, text, public):
                faults.append(f"the {name} of task {task.id} holds {leak.name}")
                break
        else:
            if needed and not domain.reference(task):
                faults.append(f"task {task.id} has no reference")
    fine = "every task has some, and no prompt holds it" if needed else "no prompt holds any"
    return _share("c", faults, len(tasks), fine, "the agent must not see it, and the critic must: mend the tasks")


def _references(world: OpenEnvironment, tasks: Sequence[Task]) -> Check:
    """Whether the reference, handed over as the answer, solves its own task."""
    domain, tested = world.domain, bool(tasks[0].test_cases)
    answers = []
    for task in tasks if tested else tasks[:8]:
        handed_over = Message("assistant", "".join(domain.reference_answer(task)))
        messages = Message("user", task.problem_description), handed_over
        answers.append(Trajectory(task, 0, messages, answer=domain.final_answer(messages)))
    faults = []
    for answer, score in zip(answers, domain.scorer(world.tools).score(answers), strict=True):
        if not with_score(answer, score).success:
            test = next((test for test in score.tests if not test.passed), None)
            why = f"{test.name}: {test.reason} {test.detail}" if test else f"a reward of {score.reward:g}"
            faults.append(f"that of task {answer.task.id} fails ({why.strip()})")
    check = _share("references", faults, len(answers), f"{len(answers)} solve their own tasks", "mend or remove them")
    return check if tested or not faults else Check("references", "warn", check.seen, check.advice)


def _share(name: str, faults: Sequence[str], count: int, fine: str, advice: str) -> Check:
    if not faults:
        return Check(name, "ok", fine)
    status: Status = "fail" if len(faults) > FEW * count else "warn"
    return Check(name, status, f"{len(faults)} of {count}: {faults[0]}", advice)


def _played(world: OpenEnvironment, settings: Settings, method: Method, tasks: Sequence[Task]) -> Iterator[Check]:
    """Let the base attempt `tasks`, as far as there is time, and judge what comes of it."""
    how, policy = settings.collect, Policy(settings.model, settings.engine)
    sizes = {"batch": min(DIALOGUES, how.batch), "shard": DIALOGUES, "seed": settings.seed}
    dialogues, size, seconds, each = list[Trajectory](), 0, 0.0, 0.0
    eighth, ended = max(1, len(tasks) // 8), list[float]()
    running = rollouts.Running(progress=lambda count: ended.append(time.monotonic()))
    with rollouts.serving([policy]) as (served,):
        for part in (tasks[:eighth], tasks[eighth:]):
            if not part or seconds > PATIENCE:
                break
            store = TrajectoryStore.temporary()
            ended.clear()
            pairs = [(task, attempt) for task in part for attempt in range(how.attempts)]
            rollouts.attempt(world, served, pairs, store, running, name=policy.name, lost_share=0.5, **sizes)
            seconds = ended[-1] - ended[0]  # the first call is before the first dialogue, when all is loaded
            each, size = seconds / len(pairs), size + sum(path.stat().st_size for path in store.shards().values())
            dialogues += store
    yield _expected(world.domain, settings, dialogues)
    finished = [dialogue for dialogue in dialogues if dialogue.reward is not None]
    yield from (_success(settings, world.domain, finished), _rewards(finished))
    yield from _pairs(settings, world.domain, method, dialogues)
    about = "about" if len(dialogues) == len(tasks) * how.attempts else "at most"  # few together take longer each
    yield _room(settings, size / len(dialogues), each, about)


def _expected(domain: Domain, settings: Settings, dialogues: Sequence[Trajectory]) -> Check:
    """The checks that the stage `validate` makes of every dialogue, made of these."""
    table = TrajectoryTable(domain, settings.agent.max_turns, domain.system_prompt(settings.agent.prompt))
    places = [f"task {each.task.id}, attempt {each.attempt}" for each in dialogues]
    list(table.watch(dialogues, places))
    rows = table.rows()
    for rule in trajectories_table(rows, settings.validate_).rules:
        if "mostly" in rule.arguments:
            faults = [f"{place}: {why}" for place, why in zip(places, rows.column(rule.name), strict=True) if why]
            allowed = 1 - rule.arguments["mostly"]
            if len(faults) > allowed * len(rows):
                seen = f"{len(faults)} of {len(rows)}: {faults[0]}"
                return Check("dialogues", "warn" if allowed else "fail", seen, rule.says)
    return Check("dialogues", "ok", f"{len(rows)} are as `validate` will want them")


def _success(settings: Settings, domain: Domain, dialogues: Sequence[Trajectory]) -> Check:
    """Whether the base ever succeeds: pass@k, over tasks."""
    solved = Counter[str]()
    for dialogue in dialogues:
        solved[dialogue.task.id] += dialogue.success
    total, tasks = solved.total(), sum(map(bool, solved.values()))
    rate = in_words(wilson_interval(tasks, len(solved), settings.evaluate.confidence).as_dict())
    seen = f"the base succeeds in {total} of {len(dialogues)} dialogues; pass@{settings.collect.attempts} {rate}"
    seen, recipe = f"{seen} of {len(solved)} tasks", Path(settings.model.base) / "recipe.json"
    copied = read_json(recipe).get("copied_values", 1.0) if recipe.is_file() else 1.0
    if copied < COPIED:
        advice = f"it copies {copied:.0%} of the values that it is told: raise `pretrain.steps`, then `make base-model`"
        return Check("base", "warn", seen, advice)
    if total or domain.measure != "success":
        return Check("base", "ok", seen)
    advice = "take easier tasks, an abler `model.base`, or a warm start (docs/real-models.md)"
    return Check("base", "warn", seen, advice)


def _rewards(dialogues: Sequence[Trajectory]) -> Check:
    """Whether rewards tell dialogues apart."""
    rewards = [dialogue.reward or 0.0 for dialogue in dialogues]
    least, greatest = min(rewards, default=0.0), max(rewards, default=0.0)
    if least == greatest:
        advice = "equal rewards teach nothing: look at `reward`, or take other tasks or a higher `agent.temperature`"
        return Check("rewards", "warn", f"all {len(rewards)} are {least:g}", advice)
    seen = f"{len(set(rewards))} different ones, {least:g} to {greatest:g}, mean {sum(rewards) / len(rewards):.3f}"
    return Check("rewards", "ok", f"{seen} (n = {len(rewards)})")


def _pairs(settings: Settings, domain: Domain, method: Method, dialogues: Sequence[Trajectory]) -> Iterator[Check]:
    """Whether the method finds what it learns from, which mostly are pairs of a better and a worse attempt."""
    data = DataCounts(domain, settings.critic, settings.rank, settings.rft)
    counts, tasks = data.read(dialogues)[1], len({dialogue.task.id for dialogue in dialogues})
    why, batch = method.missing_data(data), settings.collect.tasks
    about = data.pairs * batch // tasks
    seen = f"{data.pairs} at {counts['tasks_with_pairs']} of {tasks} tasks, so about {about:,} at {batch:,}"
    if why or ("pairs" in method.needs and about < settings.validate_.minimum_pairs):
        yield Check("pairs", "warn", seen, why or "raise collect.tasks or collect.attempts, or lower critic.gap")
    elif "pairs" in method.needs:
        yield Check("pairs", "ok", seen)


def _room(settings: Settings, size: float, seconds: float, about: str) -> Check:
    """Whether dialogues of `size` bytes fit on the disk, twice (DVC keeps a copy), and how long they take."""
    counts = {"collect": settings.collect.tasks * settings.collect.attempts, "evaluate": 2 * settings.evaluate.tasks}
    minutes = [f"{stage} {max(1, round(count * seconds / 60)):,} min" for stage, count in counts.items()]
    need, free = 2 * size * sum(counts.values()), shutil.disk_usage(Path.cwd()).free
    seen = f"{about} {', '.join(minutes)}, training besides; {need / MIB:,.0f} MiB of {free / GIB:.1f} GiB"
    return Check("room", "ok" if need < free else "fail", seen, "" if need < free else "make room on the disk")
