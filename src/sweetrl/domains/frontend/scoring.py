"""Scores of answered pages in the form that rollouts take: a reward in [0, 1], named by what computed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sweetrl.browser.page import Page
from sweetrl.domains.frontend.rewards import FrontendReward
from sweetrl.errors import UserError
from sweetrl.types import Score, Task, Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Pages in memory at a time.
CHUNK = 32


class Renders(Protocol):
    """What renders pages: sweetrl.browser.renderer.Renderer."""

    def render_many(self, htmls: Iterable[str]) -> Iterator[Page]:
        """Yield the pages in the order given."""
        ...


class PageScorer:
    """Scores (task, answer) pairs: `reward` of the answer's page against the reference's, both rendered by `renderer`.

    `Score.semantics` is the reward's name. A cosine below 0 counts as 0. No answer (None) is a missing page, which the
    reward decides about. Raises UserError for a task whose reference is no page, or cannot be rendered.
    """

    def __init__(self, reward: FrontendReward, renderer: Renders) -> None:
        self.reward, self.renderer = reward, renderer

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue's answer, in order."""
        return self.score_answers([(one.task, one.answer) for one in dialogues])

    def score_answers(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        """Return one score for each (task, answer), in order."""
        return [one for start in range(0, len(items), CHUNK) for one in self._chunk(items[start : start + CHUNK])]

    def _chunk(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        for task, _ in items:
            if "<" not in task.ground_truth:
                raise UserError(
                    f"task {task.id}: only tasks whose reference is a page can be scored by how pages look."
                )
        wanted = dict.fromkeys(
            html for task, answer in items for html in (task.ground_truth, answer) if html is not None
        )
        pages = dict(zip(wanted, self.renderer.render_many(wanted), strict=True))
        for task, _ in items:
            status = pages[task.ground_truth].status
            if status in ("timeout", "bad"):
                raise UserError(
                    f"task {task.id}: the reference page cannot be rendered ({status}); leave the task out."
                )
        pairs = [(None if answer is None else pages[answer], pages[task.ground_truth]) for task, answer in items]
        values = self.reward.score(pairs)
        name = self.reward.name
        return [
            # A score is worth nothing without the name of what computed it, and how the page came out.
            Score(
                min(1.0, max(0.0, value)),
                semantics=name,
                isolation="not run",
                notes={"reward": name, "page": "none" if page is None else page.status},
            )
            for value, (page, _) in zip(values, pairs, strict=True)
        ]
