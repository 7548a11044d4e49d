"""Who plays the user of any domain: a language model, recorded dialogues, and you.

A simulator knows the hidden reference (Task.ground_truth) and must never hand it over; what it says is all that the
agent learns about it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sweetrl.colbench.described import Fact
from sweetrl.colbench.jsonl import Row, parse_row, raw_lines, read_as, read_rows
from sweetrl.colbench.leaks import leaked_fragment, squeeze
from sweetrl.colbench.personas import IN_WORDS
from sweetrl.colbench.prompts import load_prompt, render
from sweetrl.config.sections import Persona
from sweetrl.errors import SimulatorError, UserError
from sweetrl.io import private_file
from sweetrl.protocols import Speaker
from sweetrl.text import printable
from sweetrl.thoughts import MARKS, Marks, split_thoughts
from sweetrl.types import Content, Leak, Message, Task, Trajectory

ATTEMPTS = 3  # at one answer, where leaks are refused
_OTHER = re.compile(r"\n[ \t]*(?:Assistant|ASSISTANT):")  # where a model goes on with the other side's turn


@dataclass(eq=False)
class LlmSimulator:
    """A language model that plays the user, from an instruction with the reference in it.

    Its answer is cut at `reply_characters`, which is what the agent sees and what is searched for leaks. With
    leaks="refuse" a leaking answer, and one that `validate` would not accept, is asked for again, with a reminder and
    another seed, ATTEMPTS times in all.
    `persona` is how the model is told to be. `recording` keeps answers for later runs. `identity` tells speakers with
    other models, prompts or sampling apart.
    """

    speaker: Speaker
    domain: Any  # the sweetrl.Domain of the tasks: what its user is told, and may not say
    template: str = ""
    reply_characters: int = 400
    leaks: Literal["count", "refuse"] = "count"
    persona: Persona = "plain"
    recording: Recording | None = None
    identity: str = ""
    checked = True

    def __post_init__(self) -> None:
        self.name = f"llm:{self.speaker.name}" + (f":{self.persona}" if self.persona != "plain" else "")
        self.template = self.template or self.domain.simulator_template
        self.identity = self.identity or self.name

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """As `answer`, waiting for it; not for use inside an event loop."""
        return asyncio.run(self.answer(task, messages, seed))

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the user's words after `messages`; SimulatorError where there are none, or none without a leak."""
        if self.recording is not None:
            recorded = self.recording.find(task, messages, self.identity)
            if recorded is not None:
                return recorded
        words = await self._ask(task, messages, seed)
        if self.recording is not None:
            self.recording.add(task, messages, self.identity, words)
        return words

    async def _ask(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        leak: Leak | None = None
        for attempt in range(ATTEMPTS if self.leaks == "refuse" else 1):
            instruction = await self.instruction(task, messages, attempt > 0)
            text = await self.speaker.say(instruction, seed + attempt)
            words = spoken(text, marks := self.domain.settings.model.marks)[: self.reply_characters]
            if not words:
                endless = not split_thoughts(f"{text}.", marks)[1]
                why = ": its model's thoughts have no end (simulator.server.max_new_tokens)" if endless else ""
                raise SimulatorError(f"the user said nothing{why}")
            if self.leaks == "count":  # whoever records the dialogue searches it
                return words
            leak = self.domain.find_leak(task, words) or self._fragment(task, messages, words)
            if leak is None:
                return words
        assert leak is not None
        raise SimulatorError(f"the user's answer leaks the reference ({leak.kind}) in each of {ATTEMPTS} attempts")

    def _fragment(self, task: Task, messages: Sequence[Message], words: str) -> Leak | None:
        """What `validate` would find in `words`: a batch with it is not accepted."""
        earlier = [squeeze(message.content) for message in messages]
        fragment = leaked_fragment(self.domain.hidden_fragments(task), squeeze(words), earlier)
        return None if fragment is None else Leak("quote", fragment.text)

    async def instruction(self, task: Task, messages: Sequence[Message], again: bool) -> Content:
        """Return the model's instruction; `again`: its last answer leaked and was not sent."""
        reminder = f"\n\n{load_prompt(self.domain.reminder_template)}" if again else ""
        facts = self.domain.facts(task) if "{facts}" in load_prompt(self.template) else ()
        return simulator_prompt(task, messages, self.template, facts) + self.manner + reminder

    @property
    def manner(self) -> str:
        """The end of the instruction, about the persona; "" where the persona is plain."""
        return "" if self.persona == "plain" else f"\n\n{IN_WORDS[self.persona]}"


def spoken(text: str, marks: Marks = MARKS) -> str:
    """Return what a model means the other to hear: without its thoughts, the name in front, and the other's next turn.

    Thoughts go over the reference, so thoughts that the token limit has cut off are left out too.
    """
    words = split_thoughts(text, marks)[1].strip()
    for name in ("Person:", "PERSON:"):
        words = words.removeprefix(name).lstrip()
    return _OTHER.split(words, maxsplit=1)[0].rstrip()


@dataclass(frozen=True)
class ScriptedUser:
    """The scripted user of a domain that has a method `reply` (Domain.reply)."""

    reply: Callable[[Task, Sequence[Message], int], str]
    name = "scripted"
    instant = True


class ConsoleUser:
    """Whoever sits at the terminal, one dialogue at a time; the end of the input (Ctrl-D) loses the dialogue."""

    name = "human"
    serial = checked = True

    def __init__(self, ask: Callable[[str], str] = input, tell: Callable[[str], None] = print) -> None:
        self.ask, self.tell = ask, tell
        self._lock = threading.Lock()

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Show who you are (at the first question) and the agent's words; return what is typed."""
        with self._lock:
            if len(messages) == 2:
                self.tell(printable(f"\ntask {task.id}: you asked for\n{task.problem_description}\n"))
                self.tell(printable(f"what you have in mind (never paste it):\n{task.ground_truth}\n"))
            self.tell(printable(f"agent> {messages[-1].content}"))
            try:
                return self.ask("you> ").strip()
            except EOFError:
                raise SimulatorError("the user left the dialogue") from None


class RecordedRow(Row):
    """One recorded answer: who spoke, `dialogue_key` of what was said before, and the words."""

    speaker: str
    dialogue: str
    reply: str


class Recording:
    """Recorded answers of users, by speaker and by all that was said before, so that reruns cost nothing.

    In a file they are a JSON object a line: `add` appends it at once, so a killed run keeps what it has paid for; a
    line that a kill has broken off is left out. Thread-safe. Raises UserError for a file of another kind.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._replies: dict[tuple[str | None, str], str] = {}
        if path is not None and path.exists():
            self._read(path)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Recording:
        """Return what the user said in `trajectories`, as a recording in memory."""
        recording = cls()
        for trajectory in trajectories:
            for index, message in enumerate(trajectory.messages[2::2], start=1):
                key = dialogue_key(trajectory.task, trajectory.messages[: 2 * index])
                recording._keep("", key, message.content)
        return recording

    def find(self, task: Task, messages: Sequence[Message], speaker: str | None = None) -> str | None:
        """Return what `speaker` (None: whoever was recorded first) answered, or None."""
        with self._lock:
            return self._replies.get((speaker, dialogue_key(task, messages)))

    def add(self, task: Task, messages: Sequence[Message], speaker: str, reply: str) -> None:
        """Keep what `speaker` answered."""
        key = dialogue_key(task, messages)
        row = json.dumps({"speaker": speaker, "dialogue": key, "task": task.id, "reply": reply})
        with self._lock:
            if (speaker, key) in self._replies:
                return
            self._keep(speaker, key, reply)
            if self.path is not None:
                with private_file(self.path).open("a", encoding="utf-8", newline="\n") as target:
                    target.write(f"\n{row}")  # the line end comes first: it also ends what a kill has broken off

    def _keep(self, speaker: str, key: str, reply: str) -> None:
        self._replies.setdefault((speaker, key), reply)
        self._replies.setdefault((None, key), reply)

    def _read(self, path: Path) -> None:
        for number, line in raw_lines(path):
            where = f"{path}: line {number}"
            try:
                row = read_as(RecordedRow, parse_row(line, where), where)
            except UserError:
                if line.rstrip().endswith(b"}"):
                    raise
                continue  # broken off by a kill
            self._keep(row.speaker, row.dialogue, row.reply)


@dataclass(frozen=True)
class ReplaySimulator:
    """Says what is recorded for exactly this dialogue, by whomever; a dialogue that left the recording is lost.

    For running an imported dialogue again: in tests, for demonstrations, or to score it as if it were new.
    """

    recording: Recording
    name = "replay"
    instant = checked = True

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the recorded answer; SimulatorError where there is none."""
        reply = self.recording.find(task, messages)
        if reply is None:
            raise SimulatorError(
                f"task {task.id!r}: no recorded reply after {len(messages)} messages; the agent has left the recording"
            )
        return reply


def dialogue_key(task: Task, messages: Sequence[Message]) -> str:
    """Return what identifies a dialogue about a task so far: a digest of the request, the reference and every word."""
    content = [task.problem_description, task.ground_truth, *[[message.role, message.content] for message in messages]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def is_recording(path: Path) -> bool:
    """Whether a JSON Lines file holds recorded answers (not trajectories), by its first row."""
    return any({"dialogue", "speaker"} <= row.keys() for _, row in islice(read_rows(path), 1))


def simulator_prompt(task: Task, messages: Sequence[Message], template: str, facts: Sequence[Fact] = ()) -> str:
    """Return the instruction that makes a language model play the user of `task` at this point of the dialogue.

    `template` is a shipped prompt's name or a file of your own with {request}, {dialogue} and {reference} in it, or
    {facts} in the place of the reference. The result is for the simulator's model and nobody else.
    """
    hidden = {"reference": task.ground_truth or task.hidden_information or ""}
    if "{facts}" in load_prompt(template):
        hidden = {"facts": "\n".join(f"- {fact.text}" for fact in facts) or "- nothing in particular"}
    return render(template, request=task.problem_description, **hidden, dialogue=transcript(messages))


def transcript(messages: Sequence[Message], shown: Callable[[str], str] = str) -> str:
    """Return a dialogue as models read it, a paragraph for each message, of which `shown` gives the words."""
    names = {"user": "Person", "assistant": "Assistant", "system": "System"}
    return "\n".join(f"{names[message.role]}: {shown(message.content)}" for message in messages)
