"""Agents for the synthetic suite: scripted controls, and the demonstrators of the base agent."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from sweetrl.backend.suite.details import BY_NAME, KINDS
from sweetrl.backend.suite.tasks import Value, read_facts, write_program
from sweetrl.backend.suite.topics import DOMAINS, Domain, named_kinds
from sweetrl.backend.suite.users import (
    REFUSAL,
    Persona,
    ScriptedSimulator,
    answer_counts,
    answered_questions,
    complete_details,
    questions_of,
)
from sweetrl.colbench.dialogue import converse
from sweetrl.types import ANSWER_MARKER, Demonstration, Message, Task

if TYPE_CHECKING:
    from sweetrl.config.settings import PretrainSettings


NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Request:
    """What an agent can read off a synthetic request: the domain, the names in the signature, what it hints at."""

    domain: Domain
    function: str
    argument: str
    named: tuple[str, ...]
    """The kinds of detail, in program order, that are plausible in the domain and that the request hints at."""


@lru_cache(maxsize=4096)
def read_request(problem_description: str) -> Request:
    """Recognise the domain, the signature and the hints in a request of the suite; ValueError if it is not one."""
    wish, _, signature = problem_description.partition("The signature of the function is: def ")
    function, _, rest = signature.partition("(")
    argument = rest.partition(")")[0]
    for domain in DOMAINS:
        if function in domain.functions and any(phrase in wish for phrase in domain.phrases):
            hinted = named_kinds(wish)
            named = tuple(kind.name for kind in KINDS if kind.name in hinted and kind.name in domain.relevant)
            return Request(domain, function, argument, named)
    raise ValueError("this is not a request of the synthetic suite")


def write_answer(request: Request, details: dict[str, tuple[Value, ...]]) -> str:
    """The final reply: the marker and the program with these details."""
    return f"{ANSWER_MARKER}\n```python\n{write_program(request.function, request.argument, details)}\n```"


class Dialogue:
    """A dialogue that ends with a message of the user: the request, the facts behind it, and how far they are told.

    `asked` are the kinds of detail in the agent's questions, `heard` the details told with all their parts and the
    values that the user gave, `open` those told in part (none once the user refused): a follow-up brings out the rest.
    """

    def __init__(self, task: Task, messages: Sequence[Message]) -> None:
        self.request, self.facts = read_request(task.problem_description), read_facts(task.hidden_information)
        questions, answered = questions_of(messages), answered_questions(messages)
        replies = [message.content for message in messages[2::2]]
        complete, begun = complete_details(self.facts, answered), answer_counts(self.facts, answered)
        self.heard = {name: values for name, values in self.facts.items() if name in complete}
        for kinds, reply in zip(questions, replies, strict=True):  # a forgetful user's numbers, wrong or corrected
            numbers = NUMBER.findall(reply)
            for name in self.heard:
                if name in kinds and len(kinds) == len(numbers) == 1 and BY_NAME[name].parts == 1:
                    self.heard[name] = (numbers[0],)
        self.asked, self.turn = {name for kinds in questions for name in kinds}, len(questions)
        self.open = [name for name in begun if name not in complete and REFUSAL not in replies]

    def ask(self, name: str, wording: random.Random | None = None) -> str:
        """A question about a kind of detail, or a follow-up if a part of it has been told."""
        kind = BY_NAME[name]
        wordings = kind.follow_ups if name in self.open else kind.questions
        return wording.choice(wordings) if wording else wordings[0]

    def answer(self, without: Sequence[str] = ()) -> str:
        """The program with what was heard."""
        return write_answer(self.request, {name: v for name, v in self.heard.items() if name not in without})


Order = Literal["hints", "usual", "random"]


@dataclass(frozen=True)
class ScriptedAgent:
    """A control: asks until the last turn or until it has no more questions, then writes what it was told.

    hints    asks for what the request hints at: all that an actor can know, so the bar for trained actors
    usual    asks for what is plausible in the domain, in the order of a program's steps, whatever the request says
    random   asks for any kind of detail
    """

    order: Order
    max_turns: int
    seed: int = 0

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply, from what an agent may see and the facts that the user has told."""
        dialogue = Dialogue(task, messages)
        if self.order == "hints":
            candidates: Sequence[str] = dialogue.request.named
        elif self.order == "usual":
            candidates = [kind.name for kind in KINDS if kind.name in dialogue.request.domain.relevant]
        else:
            candidates = random.Random(f"{self.seed}-{task.id}").sample(list(BY_NAME), len(BY_NAME))
        remaining = dialogue.open + [name for name in candidates if name not in dialogue.asked]
        return dialogue.ask(remaining[0]) if remaining and dialogue.turn < self.max_turns - 1 else dialogue.answer()


class OracleAgent:
    """Asks for every hidden detail, and for nothing else, then writes the program."""

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply, by someone who knows the facts and only has to bring them out."""
        dialogue = Dialogue(task, messages)
        remaining = dialogue.open + [name for name in dialogue.facts if name not in dialogue.asked]
        return dialogue.ask(remaining[0]) if remaining else dialogue.answer()


@dataclass(frozen=True)
class Demonstrator:
    """A scripted agent with a habit: what the base agent is pre-trained on.

    Its habit is to ask for what is plausible in the domain in the order of a program's steps, whatever the request
    says, and to answer when the turns are over. At each turn, with probability `heed`, it looks at the request instead:
    it asks for something that is hinted at, or answers if nothing of that is left. It follows up on what was told in
    part with probability `follow`; asks about any kind at all with probability `slip`; answers early with probability
    `stop`; and leaves a detail that it was told out of the program with probability `forget`.

    An `informed` demonstrator has seen the finished program: with probability `heed_program` it asks for a detail of
    the program, or answers if it knows them all.
    """

    max_turns: int
    rng: random.Random
    heed: float
    follow: float = 0.8
    slip: float = 0.02
    stop: float = 0.02
    forget: float = 0.01
    informed: bool = False
    heed_program: float = 0.85

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply; always the program in the last turn."""
        dialogue, rng = Dialogue(task, messages), self.rng
        name = self._next(dialogue)
        if name is None or dialogue.turn >= self.max_turns - 1 or rng.random() < self.stop:
            return dialogue.answer([name for name in dialogue.facts if rng.random() < self.forget])
        return dialogue.ask(name, rng)

    def _next(self, dialogue: Dialogue) -> str | None:
        """The kind to ask for; None to answer. It goes on from the last kind asked for, and does not turn back."""
        rng = self.rng
        order = list(BY_NAME)
        furthest = max((order.index(name) for name in dialogue.asked), default=-1)
        ahead = order[furthest + 1 :]
        if self.informed and rng.random() < self.heed_program:
            remaining = dialogue.open + [name for name in ahead if name in dialogue.facts]
            return remaining[0] if remaining else None
        if dialogue.open and rng.random() < self.follow:
            return dialogue.open[0]
        if rng.random() < self.slip:
            return rng.choice(order)
        likely = dialogue.request.named if rng.random() < self.heed else dialogue.request.domain.relevant
        return next((name for name in ahead if name in likely), None)


def demonstrate(task: Task, settings: PretrainSettings, max_turns: int, seed: int) -> Demonstration:
    """Play one dialogue of a demonstrator with the scripted user; a function of its arguments."""
    rng = random.Random(f"demonstration-{seed}")
    heed = rng.uniform(settings.heed_least, settings.heed_most)
    informed = rng.random() < settings.informed
    persona: Persona = rng.choices(("plain", "terse", "talkative"), (3, 1, 1))[0]
    agent = Demonstrator(max_turns, rng, heed, informed=informed, heed_program=settings.informed_heed)
    return Demonstration(converse(agent.act, ScriptedSimulator(persona), task, max_turns, seed), informed)
