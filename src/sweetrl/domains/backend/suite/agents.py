"""Who speaks in the synthetic suite: the scripted user, and agents of known skill (oracle, demonstrator)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweetrl.domains.backend.suite.details import BY_NAME, KINDS, kinds_asked
from sweetrl.domains.backend.suite.tasks import Value, read_facts, write_program
from sweetrl.domains.backend.suite.topics import DOMAINS, Domain
from sweetrl.types import ANSWER_MARKER, Demonstration, Message, Task

if TYPE_CHECKING:
    from sweetrl.settings import PretrainSettings

NOTHING = ("No, there is none.", "No, nothing like that.", "No, not that I know of.")
UNKNOWN = ("I do not know.", "Sorry, I am not sure about that.")


class ScriptedSimulator:
    """Answers questions about a synthetic task from its hidden facts, in at most two sentences, and never in code.

    A detail the task does not have is denied; a question about no kind of detail is answered with "I do not know".
    """

    name = "scripted"
    instant = True

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """The user's reply to the last (assistant) message; equal arguments give equal words."""
        facts = read_facts(task.hidden_information)
        asked = kinds_asked(messages[-1].content)
        rng = random.Random(f"{seed}-{task.id}-{len(messages)}")
        if not asked:
            return rng.choice(UNKNOWN)
        present = [name for name in asked if name in facts]
        if not present:
            return rng.choice(NOTHING)
        return " ".join(rng.choice(BY_NAME[name].answers).format(*facts[name]) for name in present[:2])


@dataclass(frozen=True)
class Request:
    """What an agent can read off a synthetic request: the domain and the names in the signature."""

    domain: Domain
    function: str
    argument: str


def read_request(problem_description: str) -> Request:
    """Recognise the domain and the signature in a request of the suite; ValueError if it is not one."""
    wish, _, signature = problem_description.partition("The signature of the function is: def ")
    function, _, rest = signature.partition("(")
    argument = rest.partition(")")[0]
    for domain in DOMAINS:
        if function in domain.functions and any(phrase in wish for phrase in domain.phrases):
            return Request(domain, function, argument)
    raise ValueError("this is not a request of the synthetic suite")


def write_answer(request: Request, known: dict[str, tuple[Value, ...]]) -> str:
    """The final reply: the marker and the program with the details that are known."""
    return f"{ANSWER_MARKER}\n```python\n{write_program(request.function, request.argument, known)}\n```"


class OracleAgent:
    """Asks for everything that is relevant in the domain, once, then writes the program that follows."""

    name = "oracle"

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply, from what an agent may see (the request and the answers) and the true facts behind them."""
        request = read_request(task.problem_description)
        asked = {name for m in messages if m.role == "assistant" for name in kinds_asked(m.content)}
        for name in request.domain.relevant:
            if name not in asked:
                return BY_NAME[name].questions[0]
        facts = read_facts(task.hidden_information)
        return write_answer(request, {name: values for name, values in facts.items() if name in asked})


@dataclass(frozen=True)
class Skill:
    """How good a demonstrator is, from 0 to 1; the faults of the base agent are learnt from these.

    A demonstrator asks in the order in which steps stand in a program, and never turns back: with probability `quality`
    its next question is the next relevant one, but it overlooks each with probability `overlook` x (1 - quality); when
    none is left, the answer comes. What remains is a repeated question (`repeat` of it) or one about any kind at all.
    Before that, it answers early with probability (1 - quality) x (`stop` + `stop_growth` a turn). With probability
    `forget` a detail that it was told does not get into the program.
    """

    quality: float
    overlook: float = 0.6
    repeat: float = 0.15
    stop: float = 0.04
    stop_growth: float = 0.03
    forget: float = 0.02


class Demonstrator:
    """An imperfect scripted agent: what the base agent is pre-trained on.

    An `informed` one has seen the finished program: half of its turns ask for the next detail in it.
    """

    name = "demonstrator"

    def __init__(self, skill: Skill, max_turns: int, rng: random.Random, informed: bool = False) -> None:
        self.skill, self.max_turns, self.rng, self.informed = skill, max_turns, rng, informed
        self._names = [kind.name for kind in KINDS]

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply; always the program in the last turn."""
        request = read_request(task.problem_description)
        facts = read_facts(task.hidden_information)
        asked = [name for m in messages if m.role == "assistant" for name in kinds_asked(m.content)]
        turn = sum(m.role == "assistant" for m in messages)
        furthest = max((self._names.index(name) for name in asked), default=-1)
        ahead = [name for name in self._names[furthest + 1 :] if name in request.domain.relevant]
        fault = 1.0 - self.skill.quality
        early = self.rng.random() < fault * (self.skill.stop + self.skill.stop_growth * turn)
        good = self.rng.random() < self.skill.quality
        noticed = next((name for name in ahead if self.rng.random() >= fault * self.skill.overlook), None)
        if turn >= self.max_turns - 1 or early or (good and noticed is None):
            known: dict[str, tuple[Value, ...]] = {}
            known |= {n: v for n, v in facts.items() if n in asked and self.rng.random() >= self.skill.forget}
            return write_answer(request, known)
        needed = [name for name in ahead if name in facts]
        if self.informed and needed and self.rng.random() < 0.5:
            name = needed[0]
        elif good and noticed is not None:
            name = noticed
        elif asked and self.rng.random() < self.skill.repeat:
            name = self.rng.choice(asked)
        else:
            name = self.rng.choice(self._names)
        return self.rng.choice(BY_NAME[name].questions)


def demonstrate(task: Task, settings: PretrainSettings, max_turns: int, seed: int) -> Demonstration:
    """Play one dialogue of an imperfect demonstrator with the scripted user; a function of its arguments."""
    rng = random.Random(f"demonstration-{seed}")
    quality = rng.uniform(settings.poorest, settings.best)
    skill = Skill(quality, settings.overlook, settings.repeat, settings.stop, settings.stop_growth, settings.forget)
    informed = rng.random() < settings.informed
    agent, user = Demonstrator(skill, max_turns, rng, informed), ScriptedSimulator()
    messages = [Message("user", task.problem_description)]
    for _ in range(max_turns):
        reply = agent.act(task, messages)
        messages.append(Message("assistant", reply))
        if ANSWER_MARKER in reply:
            break
        messages.append(Message("user", user.reply(task, messages, seed)))
    return Demonstration(tuple(messages), informed)
