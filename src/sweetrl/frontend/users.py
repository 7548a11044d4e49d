"""The users of the frontend suite: one who compares pages by rule, and one whom a vision model plays.

Both look at the page in the agent's last reply and at the reference, rendered by the same `render`. Where the browser
fails, the dialogue is lost (SimulatorError) instead of continued with an untrue sentence.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweetrl.browser.page import Page
from sweetrl.colbench.prompts import load_prompt, render
from sweetrl.colbench.users import LlmSimulator, transcript
from sweetrl.errors import SimulatorError, UserError
from sweetrl.frontend.differences import compare
from sweetrl.frontend.outline import Outline, outline_of
from sweetrl.frontend.pages import find_page, read_reply, without_pages
from sweetrl.frontend.phrases import NO_PAGE, answer, say, true_answer
from sweetrl.protocols import Speaker
from sweetrl.types import Content, Message, Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

Render = Callable[[str], Page]

MOST = 3
"""How many differences the scripted user points out at a time, where the settings name no number."""

AGENTS_PAGE = "This is how the assistant's page looks now:"
NO_AGENTS_PAGE = "The assistant has shown no page in its last message, so there is no picture of one."
REFERENCE_PAGE = "This is the page that the person has in mind, which the assistant must not see:"
NO_REFERENCE_PAGE = "There is no picture of the page that the person has in mind."


@dataclass(frozen=True)
class PageUser:
    """Says the most salient differences between the agent's page and the reference, and answers direct questions.

    Every sentence is true of the two rendered pages. `most` is how many differences are named at a time. A function of
    (task, messages, seed) and the renderer; `seed` chooses between wordings.
    """

    render: Render
    most: int = MOST
    name = "scripted"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """The user's reply to the last (assistant) message; SimulatorError where a page cannot be rendered."""
        reply = read_reply(messages[-1].content)
        reference = self._outline(task, task.ground_truth)
        rng = random.Random(f"{seed}-{task.id}-{len(messages)}")
        if reply.html is None:
            return answer(reply.question, reference, rng) if reply.question else rng.choice(NO_PAGE)
        answers = true_answer(reply.question, reference) if reply.question else None
        differences = say(compare(self._outline(task, reply.html), reference), rng, self.most)
        return differences if answers is None else f"{answers} {differences}"

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """As `reply`, while others' pages are rendered beside it."""
        return await asyncio.to_thread(self.reply, task, messages, seed)

    def _outline(self, task: Task, html: str) -> Outline:
        return outline_of(_rendered(self.render, task, html))


class VisionUser(LlmSimulator):
    """A vision model that sees both pages and plays the user: one user message of texts and pictures, in this order:
    the instruction, "how the assistant's page looks", its picture, "the page in mind", its picture.

    Where a picture is missing (no page in the reply), a sentence says so instead. `template` has {request} and
    {dialogue}; the dialogue's pages are replaced by "[SEE RENDERED HTML]".
    """

    def __init__(self, speaker: Speaker, domain: Domain, render: Render, **how: Any) -> None:
        super().__init__(speaker, domain, **{"reply_characters": 1000, **how})
        self.name = self.name.replace("llm:", "vision:", 1)
        self.render = render

    async def instruction(self, task: Task, messages: Sequence[Message], again: bool) -> Content:
        """Return the texts and pictures of the one user message."""
        dialogue = transcript(messages, without_pages)
        text = render(self.template, request=task.problem_description, dialogue=dialogue) + self.manner
        if again:
            text += f"\n\n{load_prompt(self.domain.reminder_template)}"
        shown: list[str | bytes] = [text]
        for html, title, without in (
            (find_page(messages[-1].content), AGENTS_PAGE, NO_AGENTS_PAGE),
            (task.ground_truth.strip() and task.ground_truth, REFERENCE_PAGE, NO_REFERENCE_PAGE),
        ):
            if html:
                shown += [title, (await asyncio.to_thread(_rendered, self.render, task, html)).png]
            else:
                shown.append(without)
        return tuple(shown)


def _rendered(render: Render, task: Task, html: str) -> Page:
    try:
        return render(html)
    except UserError:  # no browser here: nobody's dialogues can go on
        raise
    except Exception as error:  # whatever the browser's failure is, it is not this dialogue's fault
        raise SimulatorError(f"task {task.id!r}: a page could not be rendered ({error})") from error
