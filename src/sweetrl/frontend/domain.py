"""Frontend Design as a domain: its tasks, user, reward, and what replies about pages are worth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.domain import ANSWER, QUESTION, Domain, Labels, Pretraining
from sweetrl.colbench.leaks import Fragment, squeeze
from sweetrl.colbench.prompts import load_prompt
from sweetrl.config.sections import Section
from sweetrl.errors import UserError
from sweetrl.frontend.pages import find_page, last_page
from sweetrl.frontend.rewards import PageScorer, PageTools
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import demonstrate
from sweetrl.frontend.suite.designs import WORDS
from sweetrl.frontend.suite.judge import page_faults, worth
from sweetrl.frontend.suite.looks import LOOKS
from sweetrl.frontend.users import MOST, PageUser, VisionUser
from sweetrl.types import Demonstration, Judgment, Leak, Message, Split, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.config.settings import CriticSettings, EvaluateSettings, PretrainSettings
    from sweetrl.frontend.vision import VisionHead
    from sweetrl.protocols import Scorer, Speaker, UserSimulator
    from sweetrl.types import Report, Result

PAGE = "page"  # a reply that shows a page to be looked at
_MARKUP = re.compile(
    r"```|~~~|</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>|"
    r"\b(?:bg|text|font|border|rounded|shadow|grid-cols|col-span|space-[xy]|[mp][xytrbl]?|w|h|max-w|min-h|gap)"
    r"-(?:[a-z]+-\d{2,3}|\d+(?:/\d+)?|[xsml2-9]{1,2}xl|[xs]?[sml]g?|full|screen|auto|center|left|right|bold|white|black)\b"
)


class Frontend(Domain):
    """ColBench Frontend Design: show pages until they are what the user has in mind.

    The training-time information is the reference's HTML. The reward is how much the last page shown looks like it
    (settings: sections `browser` and `similarity`). Without task files the tasks are those of a synthetic suite.
    """

    name = spec = "frontend"
    shipped_prompts = "frontend"
    choices = Section()
    privileged_template = "privileged_page"
    simulator_template = "frontend_simulator"
    reminder_template = "frontend_simulator_reminder"
    judge_template = "judge_any"
    reply_characters = 1000
    reply_types = (QUESTION, PAGE, ANSWER)
    measure = "reward"
    model_kind = "vision"
    syntax = "html"

    # Tasks

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield tasks of the synthetic suite."""
        return generate(split, count, seed, difficulty)

    def parse_task(self, row: dict[str, Any], where: str, default_id: str) -> Task:
        """Build a Task, whose reference is a page."""
        task = super().parse_task(row, where, default_id)
        if "<" not in task.ground_truth:
            raise UserError(f"{where}: `ground_truth` holds no HTML; a frontend task needs the page that is wanted.")
        return task

    def read_answer(self, answer: str | None, messages: Sequence[Message]) -> str | None:
        """Return the last page shown where a file names the picture that was made of it, as official files do."""
        return answer if answer is not None and find_page(answer) is not None else last_page(messages)

    # The dialogue

    def final_answer(self, messages: Sequence[Message]) -> str | None:
        """Return the last page that any reply held, marker or not; None where no reply held one."""
        return last_page(messages)

    def reply_type(self, text: str) -> str:
        """Return `page` for a reply that shows a page to be looked at."""
        visible = self.visible(text)
        if self.answers(visible):
            return ANSWER
        return PAGE if find_page(visible) is not None else QUESTION

    # The user and the score

    @contextmanager
    def open(self) -> Iterator[PageTools]:
        """Yield the browser and the reward."""
        from sweetrl.browser.renderer import Renderer
        from sweetrl.frontend.rewards import make_reward

        reward = make_reward(self.settings.similarity)  # before the browser: it fails sooner
        with Renderer(self.settings.browser) as renderer:
            yield PageTools(renderer, reward)

    def scripted_user(self, tools: PageTools) -> UserSimulator:
        """Return the user who compares two rendered pages by rule."""
        return PageUser(tools.renderer.render, self._differences())

    def _differences(self) -> int:
        """How many differences the scripted user points out at a time."""
        count = self.scripted_option("differences", MOST)
        if type(count) is not int or count < 1:
            raise UserError(f"params.yaml: simulator.options.differences: {count!r} is no number of at least 1.")
        return count

    def model_user(self, kind: str, speaker: Callable[[], Speaker], tools: PageTools, **how: Any) -> UserSimulator:
        """Return the user whom a vision model plays."""
        if kind != "vision":
            raise UserError("simulator.kind: `llm` cannot see pages; take `vision` (a vision model) or `scripted`.")
        if not self.settings.simulator.server.urls.strip():
            raise UserError("simulator.server: `urls` is empty; name the server of the vision model that is the user.")
        return VisionUser(speaker(), self, tools.renderer.render, **how)

    def scorer(self, tools: PageTools) -> Scorer:
        """Return what compares answers with references."""
        return PageScorer(tools.reward, tools.renderer)

    def scoring(self) -> str:
        """Return the kind of likeness."""
        return self.settings.similarity.kind

    def evaluation_rules(self) -> list[Any]:
        """Return how pages are compared and rendered."""
        speed = {"path", "tabs", "memory_mib", "cache"}  # and not what comes out
        looks = self.settings.browser.model_dump(mode="json", exclude=speed)
        return [self.settings.similarity.model_dump(mode="json"), looks]

    def find_leak(self, task: Task, words: str) -> Leak | None:
        """Return a fence, an HTML tag or the name of a utility class in `words`; the page's texts are no leak."""
        match = _MARKUP.search(words)
        return Leak("code", match[0]) if match else None

    def telling(self, text: str, lines: int) -> bool:
        """Only markup counts: a page's texts are there to be read."""
        return "<" in text

    def hidden_fragments(self, task: Task) -> tuple[Fragment, ...]:
        """Leave out what the shipped prompts ask for in every page, such as the line with the stylesheet."""
        public = squeeze(f"{load_prompt('frontend_agent_full')}\n{load_prompt('frontend_agent_single')}")
        return tuple(fragment for fragment in super().hidden_fragments(task) if fragment.text not in public)

    # What replies are worth

    def judge(self, task: Task, earlier: Sequence[Message], reply: str) -> Judgment | None:
        """Return the share of the page's details that a reply has right, for tasks of the synthetic suite."""
        value = worth(task, self.visible(reply))
        return None if value is None else Judgment(value)

    def diagnose(self, trajectory: Trajectory, questions: Sequence[str], max_turns: int) -> dict[str, Any]:
        """Return what went wrong in a dialogue about a page of the synthetic suite."""
        return page_faults(trajectory, max_turns) or {}

    def own_critic(self, critic: CriticSettings) -> VisionHead:
        """Return the critic that looks at pages: a head on a vision-language model (`vision-head`)."""
        from sweetrl.frontend.vision import VisionHead

        return VisionHead(critic, self.settings.model, self.settings.browser, self.settings.seed)

    # Evaluation and report

    @property
    def labels(self) -> Labels:
        """Likeness, by its kind."""
        from sweetrl.frontend.evaluation import FAULTS

        return Labels(
            answer="page",
            success="Equal to the reference",
            reward=f"Likeness to the reference ({self.scoring()})",
            reward_axis="likeness to the reference, %",
            faults=FAULTS,
        )

    def examine(
        self,
        dialogues: Mapping[str, Sequence[Trajectory]],
        results: Sequence[Result],
        tools: PageTools,
        evaluate: EvaluateSettings,
    ) -> tuple[dict[str, Any], Callable[[Report], str] | None]:
        """Return likeness before and at the end and wins over the other policy, and the report with pictures of pages.

        All of it is about likeness: where another reward was measured (`reward.function`, `reward.turn_cost`), the
        report is the usual one.
        """
        if self.settings.reward.function or self.settings.reward.turn_cost:
            return {}, None
        from sweetrl.frontend.evaluation import look_at_pages, render, summary

        pages = look_at_pages(self, dialogues, results, tools, evaluate)
        ruler = evaluate.confidence, evaluate.resamples, self.settings.seed
        return {"pages": summary(dialogues, results, pages, ruler)}, partial(render, pages=pages)

    # For people at a terminal

    def display(self, text: str) -> list[tuple[str, str]]:
        """Return the words and the page."""
        html = find_page(text)
        if html is None:
            return [("", text)]
        before, _, after = text.partition(html)
        pieces = [("", before.strip()), ("html", html), ("", after.strip())]
        return [(language, piece) for language, piece in pieces if piece]

    def file_of(self, text: str) -> tuple[str, str] | None:
        """Return the page, to be opened in a browser."""
        html = find_page(text)
        return None if html is None else (".html", html)

    def picture(self, content: str) -> bytes | None:
        """Return a page as the renderer draws it."""
        from sweetrl.browser.renderer import Renderer

        with Renderer(self.settings.browser) as renderer:
            return renderer.render(content).png

    # Pre-training

    @property
    def pretraining(self) -> Pretraining:
        """Each reply is the complete page again; what changes in it is what the user said."""
        phrases = [words for look in LOOKS for words in look.words]
        return Pretraining((*WORDS, *phrases), revises=True, pieces=True, positions=4096)

    def demonstrate(self, task: Task, settings: PretrainSettings, max_turns: int, seed: int) -> Demonstration:
        """Play one dialogue of an imperfect agent of the synthetic suite."""
        return demonstrate(task, settings, max_turns, seed, self._differences())
