"""What is particular about an evaluation of pages: likeness before and at the end, missing pages, wins over a rival.

`look_at_pages` renders and scores what is needed beside the answers (first pages, a rival's, pictures), `summary` is
what evaluation.json says, `render` the report.

Values are rewards in [0, 1] of one named reward; those of different rewards are never compared. A dialogue that was
lost to a failing engine or user is left out, as everywhere.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.files import read_trajectories
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import AFTER, BEFORE, paired
from sweetrl.evaluation.report import (
    critic_section,
    fault_rows,
    fill,
    headline,
    level,
    mean_turns,
    reward_chart,
    turn_chart,
    verdicts,
)
from sweetrl.evaluation.statistics import Estimate, bootstrap_mean, paired_difference, wilson_interval
from sweetrl.frontend.pages import last_page, pages_of, without_pages
from sweetrl.frontend.rewards import PageScorer, PageTools
from sweetrl.types import Message, Report, Result, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import EvaluateSettings

NOT_RENDERED = ("timeout", "bad")
WIDTH, TALLEST, COLORS = 360, 600, 64  # of a picture in the report: pixels, pixels, palette
Ruler = tuple[float, int, int]  # confidence, resamples and seed of intervals
FAULTS = (
    ("first_page", "Likeness of the first page", True),
    ("last_page", "Likeness of the last page, which is the answer", True),
    ("gained_in_dialogue", "Gained between the two", True),
    ("wins_over_other", "Page more like the reference than the other policy's (ties count half)", True),
    ("wins_over_rival", "Page more like the reference than the rival's (ties count half)", True),
    ("no_answer", "No page at all", False),
    ("not_rendered", "Answer could not be rendered", False),
    ("answered", "Ended with an answer", True),
    ("max_turns_reached", "Reached the last turn without one", False),
    ("premature_answers", "Answered with turns left, before the page was right", False),
    ("details_brought_out", "Hidden details that the user told, or that were right unsaid", True),
    ("forgotten_details", "Details told, but not on the last page", False),
    ("mistaken_details", "Details told, but with another value on the last page", False),
)


@dataclass(frozen=True)
class Pages:
    """What the report of pages needs beside the results.

    `reward` is the reward's name. `first` is the reward of each dialogue's first page by (policy, task id); without any
    page it is that of a missing one. `pictures` are small pictures by HTML, as data addresses. `rival` is the rival's
    name (empty: none) and `rival_rewards` theirs by task id.
    """

    reward: str
    first: Mapping[tuple[str, str], float]
    pictures: Mapping[str, str] = field(default_factory=dict)
    rival: str = ""
    rival_rewards: Mapping[str, float] = field(default_factory=dict)


def first_page(messages: Sequence[Message]) -> str | None:
    """Return the first page that the agent showed; None where it showed none."""
    return next(iter(pages_of(messages)), None)


def look_at_pages(
    domain: Domain,
    dialogues: Mapping[str, Sequence[Trajectory]],
    results: Sequence[Result],
    tools: PageTools,
    evaluate: EvaluateSettings,
) -> Pages:
    """Return what the report of pages needs; most pages are in the renderer's cache already."""
    rival_path = evaluate.rival
    scorer = PageScorer(tools.reward, tools.renderer)
    firsts = [
        (policy, dialogue.task, first_page(dialogue.messages))
        for policy, attempts in dialogues.items()
        for dialogue in attempts
        if dialogue.outcome != "lost" or dialogue.outgrown
    ]
    scores = scorer.score_answers([(task, html) for _, task, html in firsts])
    rival = rival_pages(Path(rival_path), domain) if rival_path else {}
    tasks = [dialogue.task for dialogue in dialogues[AFTER]]
    compared = [(task, rival[key]) for task in tasks if (key := key_of(task)) in rival]
    if rival_path and not compared:
        raise UserError(
            f"evaluate.rival: {rival_path} has no dialogue about any of the test tasks; name dialogues "
            "about the same tasks."
        )
    pages = pictured(results, dialogues[BEFORE], dialogues[AFTER])
    return Pages(
        reward=scorer.reward.name,
        first={(policy, task.id): score.reward for (policy, task, _), score in zip(firsts, scores, strict=True)},
        pictures={
            html: thumbnail(page.png) for html, page in zip(pages, scorer.renderer.render_many(pages), strict=True)
        },
        rival=rival_path,
        rival_rewards={
            task.id: score.reward for (task, _), score in zip(compared, scorer.score_answers(compared), strict=True)
        },
    )


def key_of(task: Task) -> tuple[str, str]:
    """What makes a task the same in files of different origin: the request and the reference."""
    return task.problem_description, task.ground_truth


def rival_pages(path: Path, domain: Domain) -> dict[tuple[str, str], str | None]:
    """Return the rival's answers: from a folder of shards, or an official trajectory file; the first attempt counts.

    A dialogue that was lost to a failing engine or user is nobody's answer; one that outgrew the context is none.
    """
    if not path.exists():
        raise UserError(f"evaluate.rival: {path}: there is nothing here; name a folder of dialogues or a file of them.")
    dialogues = TrajectoryStore(path).read() if path.is_dir() else read_trajectories(path, domain)
    answers: dict[tuple[str, str], str | None] = {}
    for dialogue in dialogues:
        if dialogue.outcome != "lost" or dialogue.outgrown:
            answers.setdefault(key_of(dialogue.task), dialogue.answer)
    return answers


def summary(
    dialogues: Mapping[str, Sequence[Trajectory]], results: Sequence[Result], pages: Pages, ruler: Ruler
) -> dict[str, Any]:
    """Return what evaluation.json says about pages, on the tasks that both policies finished.

    For each policy: mean reward of the first and the last page and what the dialogue gained (bootstrap over tasks), the
    shares without an answer and with one that could not be rendered (Wilson), and the win rate over the other policy
    and over the rival: the mean over tasks of 1 for a higher reward than the other's, 1/2 for an equal one, else 0.
    """
    pairs = dict(zip((BEFORE, AFTER), paired(results), strict=True))
    rewards = {policy: {row.task_id: row.reward or 0.0 for row in rows} for policy, rows in pairs.items()}
    policies: dict[str, Any] = {}
    for policy, other in ((BEFORE, AFTER), (AFTER, BEFORE)):
        last = rewards[policy]
        finished = [dialogue for dialogue in dialogues[policy] if dialogue.task.id in last]
        first = [pages.first[policy, task] for task in last]
        policies[policy] = {
            "first_page": bootstrap_mean(first, *ruler).as_dict(),
            "last_page": bootstrap_mean(list(last.values()), *ruler).as_dict(),
            "gained_in_dialogue": paired_difference(first, list(last.values()), *ruler).as_dict(),
            "no_answer": _share([last_page(dialogue.messages) is None for dialogue in finished], ruler),
            "not_rendered": _share([dialogue.extra.get("page") in NOT_RENDERED for dialogue in finished], ruler),
            "wins_over_other": win_rate(last, rewards[other], ruler),
        }
        if pages.rival:
            policies[policy]["wins_over_rival"] = win_rate(last, pages.rival_rewards, ruler)
    return {"reward": pages.reward, "rival": pages.rival, "policies": policies}


def win_rate(rewards: Mapping[str, float], others: Mapping[str, float], ruler: Ruler) -> dict[str, Any]:
    """Return the mean over common tasks of 1 (higher reward), 1/2 (equal) or 0, with a bootstrap interval.

    With fewer than two tasks the interval is everything, from 0 to 1.
    """
    tasks = sorted(rewards.keys() & others.keys())
    points = [0.5 + 0.5 * ((rewards[task] > others[task]) - (rewards[task] < others[task])) for task in tasks]
    if len(tasks) < 2:
        return Estimate(sum(points) if points else 0.5, 0.0, 1.0, len(tasks), ruler[0]).as_dict()
    return bootstrap_mean(points, *ruler).as_dict()


def _share(hits: Sequence[bool], ruler: Ruler) -> dict[str, Any]:
    return wilson_interval(sum(hits), len(hits), ruler[0]).as_dict()


def thumbnail(png: bytes) -> str:
    """Return a small picture (WIDTH wide, cut at TALLEST) of a screenshot as a data address; equal bytes for equal."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        full = image.convert("RGB")
    height = max(1, round(full.height * WIDTH / full.width))
    small = full.resize((WIDTH, height), Image.Resampling.LANCZOS).crop((0, 0, WIDTH, min(height, TALLEST)))
    target = io.BytesIO()
    small.quantize(COLORS, Image.Quantize.MEDIANCUT).save(target, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode()


Side = tuple[Trajectory, Result]


def examples(
    results: Sequence[Result], before: Sequence[Trajectory], after: Sequence[Trajectory]
) -> list[tuple[str, str, Side, Side]]:
    """Return (kind, label, before, after) of the dialogues that the report shows, each with its result.

    They are of different tasks: the largest gain of reward by training, the largest loss, the worst and the best page
    after training; ties go to the first task.
    """
    dialogues = [{dialogue.task.id: dialogue for dialogue in attempts} for attempts in (before, after)]
    left = list(zip(*paired(results), strict=True))
    gains = {last.task_id: (last.reward or 0.0) - (first.reward or 0.0) for first, last in left}
    ends = {last.task_id: last.reward or 0.0 for _, last in left}
    shown = []
    for kind, label, values, sign in (
        ("won", "Gained most by training", gains, -1),
        ("lost", "Lost most by training", gains, 1),
        ("neither", "Least like the reference after training", ends, 1),
        ("neither", "Most like the reference after training", ends, -1),
    ):
        fitting = [pair for pair in left if values is ends or sign * gains[pair[0].task_id] < 0]
        if fitting:
            pair = min(fitting, key=lambda pair: sign * values[pair[0].task_id])
            left.remove(pair)
            first, second = ((by_task[row.task_id], row) for by_task, row in zip(dialogues, pair, strict=True))
            shown.append((kind, label, first, second))
    return shown


def pictured(results: Sequence[Result], before: Sequence[Trajectory], after: Sequence[Trajectory]) -> dict[str, None]:
    """Return the HTML of every picture that the report shows, in order: references, first and last pages."""
    pages: dict[str, None] = {}
    for _, _, *sides in examples(results, before, after):
        pages[sides[0][0].task.ground_truth] = None
        htmls = (page_of(dialogue.messages) for dialogue, _ in sides for page_of in (first_page, last_page))
        pages |= dict.fromkeys(html for html in htmls if html is not None)
    return pages


def _side(dialogue: Trajectory, result: Result, policy: str, pages: Pages) -> dict[str, Any]:
    shown = [
        {"title": title, "picture": pages.pictures.get(html), "reward": reward}
        for title, html, reward in (
            ("first page", first_page(dialogue.messages), pages.first.get((policy, dialogue.task.id))),
            ("last page: the answer", last_page(dialogue.messages), result.reward),
        )
        if html is not None
    ]
    messages = [Message(message.role, without_pages(message.content)) for message in dialogue.messages[1:]]
    name = "Before training" if policy == BEFORE else "After training"
    return {"name": name, "reward": result.reward or 0.0, "pages": shown, "messages": messages}


def render(report: Report, pages: Pages) -> str:
    """Return the report as HTML: what its template shows, as plain values, charts and pictures."""
    comparison = report.comparison
    before, after = paired(report.results)
    of_pages = comparison["pages"]["policies"]
    policies = {name: {**of_pages[name], **comparison["policies"][name]} for name in of_pages}
    shown = [
        {
            "kind": kind,
            "label": label,
            "task": first[0].task,
            "reference": pages.pictures.get(first[0].task.ground_truth),
            "sides": [_side(*first, BEFORE, pages), _side(*second, AFTER, pages)],
        }
        for kind, label, first, second in examples(report.results, report.before, report.after)
    ]
    facts = {
        "comparison": comparison,
        "level": level(comparison),
        "reward": pages.reward,
        "rival": pages.rival,
        "verdicts": verdicts(comparison),
        "headline": [
            headline(comparison, "reward", f"Likeness to the reference ({pages.reward})"),
            headline(comparison, "success", "Equal to the reference"),
        ],
        "turns": mean_turns(comparison["policies"]),
        "reward_chart": reward_chart(before, after, "likeness to the reference, %"),
        "turn_chart": turn_chart(before, after),
        "rows": fault_rows(policies, FAULTS),
        "examples": shown,
        "critic": critic_section(report.states, report.contexts, report.domain),
        "facts": dict(report.facts),
    }
    return fill("pages.html", facts, "sweetrl.frontend")
