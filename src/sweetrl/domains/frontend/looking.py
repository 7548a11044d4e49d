"""What is rendered and scored for an evaluation of pages beside the answers: first pages, a rival's, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.errors import UserError

if TYPE_CHECKING:
    from sweetrl.domains.frontend.domain import Frontend, PageTools
    from sweetrl.domains.frontend.evaluation import Pages
    from sweetrl.types import Result, Task, Trajectory


def look_at_pages(
    domain: Frontend, dialogues: Mapping[str, Sequence[Trajectory]], results: Sequence[Result], tools: PageTools
) -> Pages:
    """Return what the report of pages needs; most pages are in the renderer's cache already."""
    from sweetrl.domains.frontend.evaluation import Pages, first_page, needed, thumbnail
    from sweetrl.domains.frontend.scoring import PageScorer
    from sweetrl.evaluation.metrics import AFTER, BEFORE

    rival_path = domain.settings.evaluate.rival
    scorer = PageScorer(tools.reward, tools.renderer)
    firsts = [
        (name, one.task, first_page(one.messages))
        for name, spoken in dialogues.items()
        for one in spoken
        if one.outcome != "lost" or one.outgrown
    ]
    scores = scorer.score_answers([(task, html) for _, task, html in firsts])
    rival = rival_pages(Path(rival_path), domain) if rival_path else {}
    compared = [(one.task, rival[key]) for one in dialogues[AFTER] if (key := key_of(one.task)) in rival]
    if rival_path and not compared:
        raise UserError(
            f"evaluate.rival: {rival_path} has no dialogue about any of the test tasks; name dialogues "
            "about the same tasks."
        )
    pages = needed(results, dialogues[BEFORE], dialogues[AFTER])
    return Pages(
        reward=scorer.reward.name,
        first={(name, task.id): score.reward for (name, task, _), score in zip(firsts, scores, strict=True)},
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


def rival_pages(path: Path, domain: Frontend) -> dict[tuple[str, str], str | None]:
    """Return the rival's answers: from a folder of shards, or an official trajectory file; the first attempt counts.

    A dialogue that was lost to a failing engine or user is nobody's answer; one that outgrew the context is none.
    """
    from sweetrl.colbench.files import read_trajectories
    from sweetrl.colbench.store import TrajectoryStore

    if not path.exists():
        raise UserError(f"evaluate.rival: {path}: there is nothing here; name a folder of dialogues or a file of them.")
    spoken = TrajectoryStore(path).read() if path.is_dir() else read_trajectories(path, domain)
    found: dict[tuple[str, str], str | None] = {}
    for one in spoken:
        if one.outcome != "lost" or one.outgrown:
            found.setdefault(key_of(one.task), one.answer)
    return found
