"""Users of the synthetic suite: what an earlier agent has said to them, and how they talk with a served one."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import httpx

import sweetrl
from sweetrl.base_agent.pretraining import demonstrate
from sweetrl.types import ANSWER_MARKER, Message, Task

if TYPE_CHECKING:
    from sweetrl.rollout.context import OpenEnvironment

PATIENCE = 300.0  # seconds for one reply of an agent beside a busy worker
AT_ONCE = 4  # people
ASK_SECONDS = 5.0  # between two requests of `keep_asking`, so that the worker has the processor, too
# Of the demonstrators of the base agent, those who ask for all that the request hints at, and make no mistake.
ALWAYS_RIGHT = {"heed_least": 1.0, "heed_most": 1.0, "poorest": 1.0} | dict.fromkeys(
    ("slip", "stop", "forget", "informed"), 0.0
)
USELESS = f"{ANSWER_MARKER}\n```python\npass\n```"


def write_first_logs(root: Path, hasty: int = 18, good: int = 12, unhappy: int = 20) -> None:
    """Write the folder `first` of the project at `root`: in `hasty` dialogues the agent answers at once, and uselessly.

    They count as successes, by mistake, and are more than the `good` ones: whoever imitates them answers at once more
    often than not. The `unhappy` ones are as useless, and count as failures.
    """
    env = sweetrl.domain(params=root / "params.yaml")
    tasks = env.tasks("train", hasty + good + unhappy, 11, env.settings.tasks.difficulty)
    skill = env.settings.pretrain.model_copy(update=ALWAYS_RIGHT)
    rows = []
    for number, task in enumerate(tasks):
        told = [("user", task.problem_description), ("assistant", USELESS)]
        if number < good:
            shown = demonstrate(task, env, skill, env.settings.agent.max_turns, env.settings.agent.prompt, number)
            told = [(message.role, message.content) for message in shown.messages]
        messages = [{"role": role, "content": content} for role, content in told]
        rows.append({"messages": messages, "outcome": "success" if number < hasty + good else "failure"})
    (root / "first").mkdir()
    (root / "first/dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class People:
    """Users of the project at `root` at the endpoint `url`, each with a task of its own that is for training.

    `versions` are those that have answered, in order, and `failures` what befell requests of `keep_asking`.
    """

    root: Path
    url: str
    model: str
    versions: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.env = sweetrl.domain(params=self.root / "params.yaml")
        self._tasks = self.env.tasks("train", 10_000, 12, self.env.settings.tasks.difficulty)

    def post(self, page: str, body: Mapping[str, Any]) -> Any:
        """Send a request that must be answered."""
        answer = httpx.post(f"{self.url}/v1/{page}", json=body, trust_env=False, timeout=PATIENCE)
        if answer.status_code != 200:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.json()

    def ask(self, messages: Sequence[Message], notes: Mapping[str, str]) -> tuple[str, str]:
        """Return the agent's next reply and the dialogue's id, "" where it is not kept."""
        said = [{"role": one.role, "content": one.content} for one in messages]
        answer = self.post("chat/completions", {"model": self.model, "messages": said, "metadata": dict(notes)})
        self.versions.append(answer["sweetrl"]["version"])
        return answer["choices"][0]["message"]["content"], answer["sweetrl"].get("dialogue", "")

    def talk(self, world: OpenEnvironment, task: Task, notes: Mapping[str, str]) -> tuple[str, bool]:
        """Hold one dialogue to its end; return its id and whether the user is content.

        A user is content with an agent that has asked before it answered.
        """
        talk, name = world.begin(task), ""
        words: str | None = talk.request
        while words is not None:
            reply, name = self.ask(talk.messages, {**notes, **({"dialogue": name} if name else {})})
            words = talk.say(reply)
        return name, talk.outcome == "answered" and len(talk.messages) > 2

    def tell(self, outcomes: Mapping[str, int]) -> None:
        """Talk, with consent, until so many users have told each outcome; the others say nothing of theirs.

        An AssertionError where that takes ten times as many.
        """
        done, limit = Counter[str](), 10 * sum(outcomes.values())
        with sweetrl.opened(self.env) as world, ThreadPoolExecutor(AT_ONCE) as pool:
            while any(done[outcome] < wanted for outcome, wanted in outcomes.items()):
                assert done.total() < limit, dict(done)
                some = list(islice(self._tasks, AT_ONCE))
                for name, content in pool.map(lambda task: self.talk(world, task, {"consent": "true"}), some):
                    outcome = "success" if content else "failure"
                    if done[outcome] < outcomes[outcome]:
                        assert self.post("feedback", {"dialogue": name, "outcome": outcome})["status"] == "kept"
                    done[outcome] += 1

    def talk_without_consent(self) -> None:
        """Hold one dialogue that is not to be kept."""
        with sweetrl.opened(self.env) as world:
            name, _ = self.talk(world, next(self._tasks), {})
        assert name == ""

    @contextlib.contextmanager
    def keep_asking(self) -> Iterator[None]:
        """Ask for one reply after the other, beside everything else, until the block has ended."""
        request, end = [Message("user", next(self._tasks).problem_description)], Event()

        def ask() -> None:
            while not end.wait(ASK_SECONDS):
                try:
                    self.ask(request, {})
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))

        asking = Thread(target=ask, daemon=True)
        asking.start()
        try:
            yield
        finally:
            end.set()
            asking.join(2 * PATIENCE)
